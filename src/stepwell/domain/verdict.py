"""What deciding gives: changes of rows, and a reply. A refusal is an exception, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from stepwell.domain.commands import Command
from stepwell.domain.replies import AnyReply, Reply, Row
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import BodyRef
from stepwell.errors import InvalidArgument, OutOfScope, StepwellError, revive

if TYPE_CHECKING:
    from stepwell.domain.state import State


RowT_co = TypeVar("RowT_co", bound=Row, covariant=True)


class RowChanged(Struct, Generic[RowT_co], frozen=True, gc=False):
    """A row before and after. None before: it was created; None after: it was deleted.

    The one description of what happened: forwards it evolves the state and feeds whatever follows the state,
    backwards it undoes a transaction.
    """

    before: RowT_co | None
    after: RowT_co | None


AnyChange = RowChanged[Row]


class Verdict(Struct, frozen=True, gc=False):
    """The reply, the rows that change, the fragment that was read and the bodies that came inline."""

    reply: AnyReply
    changes: tuple[AnyChange, ...] = ()
    accessed: tuple[str, str] | None = None
    bodies: dict[bytes, bytes] = msgspec.field(default_factory=dict[bytes, bytes])


class Origin(Struct, frozen=True):
    """Who asks, when, and what they sent before. `projects` is the session's scope; None is unrestricted."""

    session_id: str
    now_ms: int
    projects: frozenset[str] | None = None
    uploads: Mapping[int, BodyRef | StepwellError] = MappingProxyType({})
    """What this connection has uploaded, by number, or why it was refused."""

    def require(self, projects: Iterable[str]) -> None:
        """Refuse what names a project outside the session's scope."""
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
        """Whether all of these are in scope."""
        return self.projects is None or self.projects.issuperset(projects)

    def held(self, body: bytes | int) -> BodyRef:
        """The digest and size of a body that came inline, or of an upload."""
        if isinstance(body, bytes):
            return digest_of(body), len(body)
        upload = self.uploads.get(body)
        if upload is None:
            raise InvalidArgument(
                f"there is no upload {body} on this connection: offer it and send its bytes first", upload=body
            )
        if isinstance(upload, StepwellError):
            # Another one each time: what is raised keeps the frames that it went through.
            raise revive(upload.kind, upload.message, upload.details)
        return upload


C = TypeVar("C", bound=Command[Reply])
Decider = Callable[["State", C, Origin], Verdict]

DECIDERS: dict[type[Command[Reply]], Decider[Command[Reply]]] = {}


def decides(command: type[C]) -> Callable[[Decider[C]], Decider[C]]:
    """Register the function that decides a command."""

    def register(decider: Decider[C]) -> Decider[C]:
        # Dispatch is by exact type, so that a decider only ever sees its own command.
        DECIDERS[command] = cast(Decider[Command[Reply]], decider)
        return decider

    return register
