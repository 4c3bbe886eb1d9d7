"""The messages: closed unions of frozen, bounded Structs, `array_like` so that they are small and quick.

client                                   manager
Hello(version, session, scope)  ──▶
◀──      Welcome(version, epoch, revision)   or Rejected, and the end
Request(id, commands)           ──▶
Transaction(id, commands)       ──▶      requests may be sent before earlier ones are answered;
◀──      a connection's responses come in the order of its requests
Response(id, results)
AskStatus(id)                   ──▶
◀──      Status(id, …)
Goodbye()                       ──▶      ends the session, not only the connection
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain.checks import checked
from stepwell.domain.commands import AnyCommand, AnyWrite
from stepwell.domain.names import Identifier, ProjectName
from stepwell.domain.replies import AnyReply, TierMetrics
from stepwell.errors import Detail, StepwellError, revive

VERSION: Final = 1

RequestId = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Message(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the messages."""


@checked
class Hello(Message, frozen=True):
    """Opens a connection. The same `session_id` on several connections is one session."""

    version: int
    session_id: Identifier
    projects: (
        Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)] | None
    ) = None


class Request(Message, frozen=True):
    """Commands that take effect one by one, each with its own result."""

    request_id: RequestId
    commands: Annotated[tuple[AnyCommand, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]


class Transaction(Message, frozen=True):
    """Commands that take effect together at one revision, or not at all."""

    request_id: RequestId
    commands: Annotated[tuple[AnyWrite, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]


class AskStatus(Message, frozen=True):
    """Asks how the manager is."""

    request_id: RequestId


class Goodbye(Message, frozen=True):
    """The session is over: its leases end now, without a grace."""


ClientMessage = Hello | Request | Transaction | AskStatus | Goodbye


class Welcome(Message, frozen=True):
    """The connection is open."""

    version: int
    epoch: str
    revision: int
    manager_pid: int


class Answer(Message, frozen=True):
    """A command took effect. `bodies` are those that its reply refers to, by digest."""

    revision: int
    reply: AnyReply
    bodies: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])


class Refusal(Message, frozen=True):
    """A command was refused and changed nothing. The error travels as itself."""

    revision: int
    kind: str
    message: str
    details: dict[str, Detail] = field(default_factory=dict[str, Detail])

    @classmethod
    def of(cls, error: StepwellError, revision: int) -> Refusal:
        return cls(revision, error.kind, error.message[: limits.ERROR_CHARS_MAX], error.details)

    def error(self) -> StepwellError:
        return revive(self.kind, self.message, self.details)


Result = Answer | Refusal


class Response(Message, frozen=True):
    """The results of a request, in order. An aborted transaction has one: its refusal."""

    request_id: int
    results: tuple[Result, ...]


class Status(Message, frozen=True):
    """What `stepwell status` shows."""

    request_id: int
    pid: int
    epoch: str
    revision: int
    uptime_s: float
    peers: int
    sessions: int
    requests: int
    evicted: int
    metrics: TierMetrics


class Rejected(Message, frozen=True):
    """What the peer sent is not our protocol; the connection ends."""

    refusal: Refusal


ManagerMessage = Welcome | Response | Status | Rejected
