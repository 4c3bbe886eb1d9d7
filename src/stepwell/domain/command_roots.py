"""The roots of the commands. The type parameter of a command is its reply."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from msgspec import Struct

from stepwell.domain.replies import Reply

R_co = TypeVar("R_co", bound=Reply, covariant=True)


class Command(Struct, Generic[R_co], frozen=True, array_like=True, gc=False, tag=True):
    """The root of the commands; `R_co` is what it answers."""

    is_modest: ClassVar[bool] = False
    """Whether no fragment goes down to make room in memory for the bodies that come with it."""

    @property
    def inline(self) -> tuple[int, ...]:
        """Lengths of the bodies that come in the command itself."""
        return ()


class Read(Command[R_co], Generic[R_co], frozen=True):
    """Asks. It has no revision of its own, and no place in a transaction."""


class Write(Command[R_co], Generic[R_co], frozen=True):
    """Changes. Each that succeeds has its own revision."""


class Ephemeral(Command[R_co], Generic[R_co], frozen=True):
    """Changes what ends with the manager. No revision counts it, and nothing of it is kept."""


class Internal(Command[R_co], Generic[R_co], frozen=True):
    """What the manager asks of itself; no peer can send it."""


class EphemeralInternal(Internal[R_co], Generic[R_co], frozen=True):
    """Housekeeping of what ends with the manager: no revision counts it either."""
