"""Verdicts: the result of deciding a command, and the request's origin, which deciders read besides the state.

A decider is a function `(state, command, origin) -> Verdict`, registered with `@decides(TheCommand)`. It is pure: it
changes nothing, does no I/O, and takes the time from the origin and new ids from the command. A refusal is an exception
of `stepwell.errors`, so that a verdict always means "yes".

The changes of rows in a verdict are the single description of what happened. The state evolves by them, the store
writes them, events are made of them, views follow them, and backwards they undo a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.commands import Command
from stepwell.domain.replies import AnyReply, Reply, Row
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import BodyRef, Work, Writer
from stepwell.errors import InvalidArgument, OutOfScope, StepwellError, revive

if TYPE_CHECKING:
    from stepwell.domain.state import State


RowT_co = TypeVar("RowT_co", bound=Row, covariant=True)


class RowChanged(Struct, Generic[RowT_co], frozen=True, gc=False):
    """A row before and after a change. `before` is None for a new row, `after` is None for a deleted one.

    Both have the same type and key. A change is only valid for the state in which `before` is the current row.
    """

    before: RowT_co | None
    after: RowT_co | None


AnyChange = RowChanged[Row]


class Verdict(Struct, frozen=True, gc=False):
    """The effect that a command is allowed to have.

    `changes` are made in their order. `accessed` is the key of the fragment that the command read, whose recency and
    access count change. `bodies` are the bytes that came inside the command, by digest.
    """

    reply: AnyReply
    changes: tuple[AnyChange, ...] = ()
    accessed: tuple[str, str] | None = None
    bodies: dict[bytes, bytes] = {}


class Origin(Struct, frozen=True):
    """The session that sends a command, the time of its arrival, its scope, and its uploads.

    `projects` is the scope of the session: it can name no other project and sees no plan or receipt of one. None means
    unrestricted. `now_ms` never decreases from one command to the next.
    """

    session_id: str
    now_ms: int
    projects: frozenset[str] | None = None
    uploads: Mapping[int, BodyRef | StepwellError] = MappingProxyType({})
    """The bodies that this connection has uploaded, by number, or the error with which an upload was refused."""
    writer: Writer | None = None
    """The session as the writer of fragments; None for the manager itself, which writes none."""

    def require(self, projects: Iterable[str]) -> None:
        """Raise `OutOfScope` if one of the projects is outside the session's scope."""
        if self.projects is None:
            return
        for project in projects:
            if project not in self.projects:
                raise OutOfScope(
                    f"project {project!r} is not in this session's scope: {', '.join(sorted(self.projects))}; "
                    "connect with it in projects=",
                    project=project,
                )

    def sees(self, projects: Iterable[str]) -> bool:
        """Return True if all of the projects are in the session's scope."""
        return self.projects is None or self.projects.issuperset(projects)

    def writer_for(self, work: Work | None) -> Writer | None:
        """Return the provenance of a fragment that the session stores for some work, as an object that they share."""
        return self.writer if work is None or self.writer is None else _writer_for(self.writer, work)

    def resolve_body(self, body: bytes | int) -> BodyRef:
        """Return the digest and size of a body that came inside the command, or of the upload with this number.

        Raises `InvalidArgument` for a number that was never offered, and the error of an upload that was refused.
        """
        if isinstance(body, bytes):
            return digest_of(body), len(body)
        upload = self.uploads.get(body)
        if upload is None:
            raise InvalidArgument(
                f"there is no upload {body} on this connection: offer it and send its bytes first", upload=body
            )
        if isinstance(upload, StepwellError):
            # A new exception each time, because a raised one keeps a reference to every frame that it went through.
            raise revive(upload.kind, upload.message, upload.details)
        return upload


@lru_cache(limits.WRITERS_CACHED_MAX)
def _writer_for(writer: Writer, work: Work) -> Writer:
    return replace(writer, work=work)


C = TypeVar("C", bound=Command[Reply])
Decider = Callable[["State", C, Origin], Verdict]

DECIDERS: dict[type[Command[Reply]], Decider[Command[Reply]]] = {}
"""The decider of each command. Filled by `@decides` while the modules in `machine.RULES` are imported."""


def decides(command: type[C]) -> Callable[[Decider[C]], Decider[C]]:
    """Register the decorated function as the decider of a command."""

    def register(decider: Decider[C]) -> Decider[C]:
        # Dispatch is by exact type, so that a decider only ever sees its own command. The cast says no more than that.
        DECIDERS[command] = cast(Decider[Command[Reply]], decider)
        return decider

    return register
