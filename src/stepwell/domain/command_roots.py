"""The root classes of the commands. The type parameter of a command is the type of its reply.

    Command
    ├── Read                 a client asks; no revision of its own
    ├── Write                a client changes what survives the manager; one revision each
    ├── Ephemeral            a client or worker changes tasks and workers; no revision
    └── Internal             only the manager sends it; a revision if it changed a row
        └── EphemeralInternal    only the manager sends it, and it changes tasks and workers; no revision

They are a module of their own, below the subjects' commands, because `commands` imports all of these.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from stepwell.domain.replies import Reply

R_co = TypeVar("R_co", bound=Reply, covariant=True)


class Command(Struct, Generic[R_co], frozen=True, array_like=True, gc=False, tag=True):
    """The root of all commands. A command is an immutable, bounded value; `R_co` is the type of its reply."""

    no_eviction: ClassVar[bool] = False
    """True if no fragment may be demoted to make room in memory for the bodies that come with the command."""

    @property
    def inline(self) -> tuple[int, ...]:
        """The lengths of the bodies inside the command. The manager makes room for them before it decides."""
        return ()


class Read(Command[R_co], Generic[R_co], frozen=True):
    """A command that asks. It has no revision of its own, and no place in a transaction."""


class Write(Command[R_co], Generic[R_co], frozen=True):
    """A command that changes what survives the manager. Each one that succeeds has a revision of its own."""


class Ephemeral(Command[R_co], Generic[R_co], frozen=True):
    """A command that changes tasks and workers, which end with the manager: no revision, and nothing is stored."""


class Internal(Command[R_co], Generic[R_co], frozen=True):
    """A command that only the manager sends. It is in no union that a decoder accepts, so no peer can send it."""


class EphemeralInternal(Internal[R_co], Generic[R_co], frozen=True):
    """An internal command that changes tasks and workers only: no revision, and nothing is stored."""
