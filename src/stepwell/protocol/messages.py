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
Offer(number, size)             ──▶      before a large body; the answer can take a while
◀──      Granted(number, accepted)
the body's bytes, raw           ──▶      only if accepted; the next request can refer to `number`
AskView(id, projects)           ──▶
◀──      ViewOpened(id, …)               or a Response with the refusal
Watch(id, since, projects)      ──▶      on a connection of its own, its last message
◀──      Events(events, revision)        from then on, whole revisions; the first at once; or a Response, refused
◀──      Missed(resume)                  what happened until then was forgotten
Work(id, offers)                ──▶      on a connection of a worker's own, whose requests are its results
◀──      Employed(id)                    or a Response, refused
◀──      Assigned(task, …)               from then on: one to be done, and one to be done next
◀──      Recalled(task, attempt)         not to be done next
Progressed(task, …)             ──▶      as often as the worker likes
Follow(id, tasks)               ──▶      on a connection of its own: whatever becomes of this session's tasks
◀──      Followed(id, unknown)
◀──      TaskProgressed(task, …)         from then on
◀──      TaskEnded(task, …)              until it is received
Received(tasks)                 ──▶      they can be forgotten
Released(segments)              ──▶      no longer mapped
Goodbye()                       ──▶      ends the session, not only the connection

◀──      Segments(…)                     with their descriptors, before the first message that refers to them
◀──      Retired(segments)               nothing refers to them any more
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain.bounded_types import Identifier, Positive, ProjectName, Revision, Sentence, UploadNumber
from stepwell.domain.checks import checked
from stepwell.domain.commands import AnyCommand, AnyWrite
from stepwell.domain.events import AnyEvent
from stepwell.domain.replies import AnyReply, TierMetrics
from stepwell.domain.tasks.model import StrategyOffer, TaskFault, TaskState, WorkerDeath
from stepwell.errors import Detail, StepwellError, revive
from stepwell.protocol.handles import CatalogueEnd, Handle

VERSION: Final = 7

ENCODING: Final = "o200k_base"
"""In which tokens are counted, unless somebody says otherwise."""

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
    mapped: Annotated[tuple[int, ...], Meta(max_length=limits.MAPPED_MAX)] = ()  # segments, from earlier connections


class Request(Message, frozen=True):
    """Commands that take effect one by one, each with its own result.

    Sent again under the same number, by the same session, they do not take effect again: the response is the same.
    """

    request_id: RequestId
    commands: Annotated[tuple[AnyCommand, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]
    answered: RequestId = 0  # so have all requests of this session with a smaller number: they can be forgotten


class TransactionRequest(Message, frozen=True):
    """Commands that take effect together at one revision, or not at all."""

    request_id: RequestId
    commands: Annotated[tuple[AnyWrite, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]
    answered: RequestId = 0


class AskStatus(Message, frozen=True):
    """Asks how the manager is."""

    request_id: RequestId


class OfferUpload(Message, frozen=True):
    """Asks for room for a body that is too large for a frame. The next request can refer to it by its number."""

    number: UploadNumber
    size: Annotated[int, Meta(ge=1, le=limits.BODY_BYTES_MAX, description="a body has at most 64 MiB; split it")]
    is_modest: bool = False  # no fragment goes down for it: where there is no room now, it is refused


class AskView(Message, frozen=True):
    """Asks for all fragments of some projects at one revision."""

    request_id: RequestId
    projects: Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)]


@checked
class WatchEvents(Message, frozen=True):
    """Asks for all that happens from now on, or has happened behind a revision, to some projects or in scope."""

    request_id: RequestId
    since: Revision | None = None
    projects: (
        Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)] | None
    ) = None


class JoinAsWorker(Message, frozen=True):
    """Asks for tasks, one at a time, for somebody who has these strategies."""

    request_id: RequestId
    offers: Annotated[tuple[StrategyOffer, ...], Meta(min_length=1, max_length=limits.STRATEGIES_MAX)]


class ReportProgress(Message, frozen=True):
    """How far a worker is with its task."""

    task_id: Identifier
    attempt: Positive
    done: Annotated[int, Meta(ge=0)]
    total: Annotated[int, Meta(ge=0)]
    note: Sentence = ""


class FollowTasks(Message, frozen=True):
    """Asks to be told what becomes of this session's tasks. These it has submitted, and not heard of since."""

    request_id: RequestId
    task_ids: Annotated[tuple[Identifier, ...], Meta(max_length=limits.TASKS_PER_SESSION_MAX)]


class TasksReceived(Message, frozen=True):
    """Says that the outcomes of tasks have arrived."""

    task_ids: Annotated[tuple[Identifier, ...], Meta(max_length=limits.TASKS_PER_SESSION_MAX)]


class SegmentsReleased(Message, frozen=True):
    """Says that segments are not mapped any more."""

    segments: Annotated[tuple[int, ...], Meta(max_length=limits.RELEASED_PER_MESSAGE_MAX)]


class Goodbye(Message, frozen=True):
    """The session is over: its leases end now, without a grace."""


ClientMessage = (
    Hello
    | Request
    | TransactionRequest
    | OfferUpload
    | AskStatus
    | AskView
    | WatchEvents
    | JoinAsWorker
    | ReportProgress
    | FollowTasks
    | TasksReceived
    | SegmentsReleased
    | Goodbye
)


class Welcome(Message, frozen=True):
    """The connection is open."""

    version: int
    epoch: str
    revision: int
    manager_pid: int
    encoding: str  # in which tokens are counted
    segments: tuple[int, ...]  # that are in use; what else somebody has mapped is out of date
    generation: int  # of the session: another one than before, and the manager has forgotten what it sent
    database: str | None  # where cold bodies are read; None: the state is in memory alone, and ends with the manager


class SegmentInfo(Struct, frozen=True, array_like=True, gc=False):
    """A segment whose descriptor comes along."""

    number: int
    size: int


class SegmentsAdded(Message, frozen=True):
    """Segments that later messages refer to. Their descriptors come with this frame, in this order."""

    segments: tuple[SegmentInfo, ...]


class SegmentsRetired(Message, frozen=True):
    """Segments that nothing refers to any more: whoever has them mapped should let go of them."""

    segments: tuple[int, ...]


class UploadGranted(Message, frozen=True):
    """There is room for an offered body, and it can be sent; or not, and a request that refers to it will say why."""

    number: int
    accepted: bool


class ViewOpened(Message, frozen=True):
    """How far the catalogues of some projects go, at one revision."""

    request_id: int
    epoch: str
    revision: int
    catalogues: tuple[CatalogueEnd, ...]


class Events(Message, frozen=True):
    """What has happened since the last of these, up to a revision. Nobody is told half of a revision."""

    events: tuple[AnyEvent, ...]
    revision: int


class WatchLagged(Message, frozen=True):
    """Some of what happened is forgotten; what comes next is from behind this revision."""

    resume: int


class WorkerAccepted(Message, frozen=True):
    """The connection is a worker's from now on."""

    request_id: int


class TaskAssigned(Message, frozen=True):
    """A task for a worker."""

    task_id: str
    attempt: int
    strategy: str
    projects: tuple[str, ...]
    payload: bytes
    is_ahead: bool  # it is to be done next: whoever begins it says so
    revision: int  # of the catalogues
    catalogues: tuple[CatalogueEnd, ...]  # of its projects, as they are now; none if they have to be asked for


class TaskRecalled(Message, frozen=True):
    """A task that was given to a worker, who has not begun it, is not to be done by that one any more."""

    task_id: str
    attempt: int


class TasksFollowed(Message, frozen=True):
    """The connection is a follower's from now on. Some of its tasks are not known, or not any more."""

    request_id: int
    unknown: tuple[str, ...]


class TaskProgressed(Message, frozen=True):
    """How far a task is."""

    task_id: str
    done: int
    total: int
    note: str


class TaskEnded(Message, frozen=True):
    """The outcome of a task. A large result is where the handle says."""

    task_id: str
    state: TaskState
    attempt: int
    deaths: tuple[WorkerDeath, ...]
    fault: TaskFault | None
    result: bytes | None
    digest: bytes | None
    handle: Handle | None


class CommandResult(Message, frozen=True):
    """A command took effect. `handles` say where the bodies are that its reply refers to, by digest."""

    revision: int
    reply: AnyReply
    handles: dict[bytes, Handle] = field(default_factory=dict[bytes, Handle])


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


Result = CommandResult | Refusal


class Response(Message, frozen=True):
    """The results of a request, in order. An aborted transaction has one: its refusal."""

    request_id: int
    results: tuple[Result, ...]


class MemoryUsage(Struct, frozen=True, array_like=True):
    """Bytes of shared memory and disk."""

    arena_bytes: int  # in segments, dead space included
    arena_limit: int
    live_bytes: int
    segments: int
    file_bytes: int  # of cold bodies, on disk
    waiting: int  # bodies that do not have the form of their tier yet
    retired_segments: int  # gone, and still mapped by somebody
    retired_bytes: int
    catalogues: int


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
    memory: MemoryUsage
    encoding: str
    durability: str
    database: str | None


class Rejected(Message, frozen=True):
    """What the peer sent is not our protocol; the connection ends."""

    refusal: Refusal


ManagerMessage = (
    Welcome
    | SegmentsAdded
    | SegmentsRetired
    | Response
    | UploadGranted
    | Status
    | ViewOpened
    | Events
    | WatchLagged
    | WorkerAccepted
    | TaskAssigned
    | TaskRecalled
    | TasksFollowed
    | TaskProgressed
    | TaskEnded
    | Rejected
)
