"""The messages between a peer and the manager: closed unions of frozen, bounded Structs.

A peer is a client or a worker. It opens a connection with `Hello`; connections with the same session id belong to one
session. What the peer sends next decides the role of the connection. A watcher, a worker and a follower each have a
connection of their own, because the manager pushes messages on it. Numbers in `()` refer to the notes.

    peer                         manager                   notes

    every connection
    Hello                 ──▶
                          ◀──    Welcome                   or Rejected, and the end (1)

    client: requests, in any number, before earlier ones are answered
    Request               ──▶
    TransactionRequest    ──▶
                          ◀──    Response                  in the order of the requests
    AskStatus             ──▶
                          ◀──    Status
    AskView               ──▶
                          ◀──    ViewOpened                or a Response with the refusal

    client or worker: a body that is too large for a frame
    OfferUpload           ──▶
                          ◀──    UploadGranted             may take a while
    the raw bytes         ──▶                              only if granted (2)

    watcher: the last message that it sends
    WatchEvents           ──▶
                          ◀──    Events                    from now on (3), or a Response with the refusal
                          ◀──    WatchLagged               instead of events that were dropped

    worker: its Requests begin and finish tasks
    JoinAsWorker          ──▶
                          ◀──    WorkerAccepted            or a Response with the refusal
                          ◀──    TaskAssigned              one to do now, and one to do next
                          ◀──    TaskRecalled              the one to do next is withdrawn
    ReportProgress        ──▶                              as often as the worker likes

    follower: a client that waits for its session's tasks
    FollowTasks           ──▶
                          ◀──    TasksFollowed             names the tasks that the manager does not know
                          ◀──    TaskProgressed            from now on
                          ◀──    TaskEnded                 again after a reconnect, until it is received
    TasksReceived         ──▶                              the manager may delete these tasks

    every connection, at any time
                          ◀──    SegmentsAdded             with descriptors (4)
                          ◀──    SegmentsRetired           no message refers to them any more
                          ◀──    ManagerEnded              the last message: why the manager ends (5)
                          ◀──    IndexOpened               with descriptors; where reads need no request
    SegmentsReleased      ──▶                              the peer has unmapped them
    ReadsReported         ──▶                              ahead of a request; it has no answer
    Goodbye               ──▶                              ends the session, not only the connection

(1) `Rejected` can also come later: the peer violated the protocol, or its message met a defect.
(2) The next request on the connection can refer to the upload by its number. If the upload was not granted, that
    request is refused with the reason.
(3) Whole revisions only. The first `Events` comes at once, even if it is empty.
(4) They arrive before the first message with a handle into one of the segments.
(5) The manager sends it without waiting, so that a peer that does not read gets none. It acknowledges nothing: the
    outcome of a request without an answer is unknown.

All Structs are `array_like`: fields travel by position, which is small and quick to decode. A change of their order or
meaning therefore needs a new `VERSION`, as does another tag of a message. Responses are stored as they were sent, so
the tags inside of one stay what they are.

Words: a *response* is the message to a request. It has a *result* for each command: a refusal, or the domain's *reply*
with its revision and handles. An *answer* is what `client.assemble` returns.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain.bounded_types import (
    Identifier,
    OptionalLabel,
    Positive,
    ProjectName,
    Revision,
    Sentence,
    UploadNumber,
)
from stepwell.domain.checks import checked
from stepwell.domain.commands import AnyCommand, AnyWrite
from stepwell.domain.events import AnyEvent
from stepwell.domain.replies import AnyReply, TierMetrics
from stepwell.domain.tasks.model import StrategyOffer, StrategyProblems, TaskFault, TaskState, WorkerDeath
from stepwell.errors import Detail, StepwellError, revive
from stepwell.protocol.handles import CatalogueEnd, Handle
from stepwell.protocol.usage import IndexUsage, MemoryUsage

VERSION: Final = 13
"""The version of the protocol. A manager refuses a peer that has another one: both come from one installation."""

Name = Annotated[str, Meta(max_length=limits.FRAGMENT_ID_CHARS_MAX)]
"""A name that is only looked up, so that it need not be valid."""

ReadCount = Annotated[int, Meta(ge=1, le=limits.INDEX_COUNT_PER_REPORT_MAX)]

RequestId = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Message(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the messages. The tag on the wire is the name of the class, except for `CommandResult`."""


@checked
class Hello(Message, frozen=True):
    """Open a connection. Connections with the same `session_id` are one session, with one scope.

    `mapped` are the segments that the peer has mapped already, from earlier connections. The manager counts the
    session among their holders again. It sends descriptors once for each connection all the same. `label` is the
    client's own name for itself: what it stores says so.
    """

    version: int
    session_id: Identifier
    projects: (
        Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)] | None
    ) = None
    mapped: Annotated[tuple[int, ...], Meta(max_length=limits.MAPPED_MAX)] = ()
    label: OptionalLabel = ""


class Request(Message, frozen=True):
    """Commands that take effect one by one, each with a result of its own.

    A request that the same session sends again under the same number does not take effect again: it gets the same
    response. `answered` acknowledges: all requests of this session with a smaller number have been answered, so that
    the manager can forget their responses.
    """

    request_id: RequestId
    commands: Annotated[tuple[AnyCommand, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]
    answered: RequestId = 0


class TransactionRequest(Message, frozen=True):
    """Writes that take effect together at one revision, or not at all. Repeating it is safe, as for a `Request`."""

    request_id: RequestId
    commands: Annotated[tuple[AnyWrite, ...], Meta(min_length=1, max_length=limits.BATCH_COMMANDS_MAX)]
    answered: RequestId = 0


class AskStatus(Message, frozen=True):
    """Ask for the figures that `stepwell status` shows."""

    request_id: RequestId


class OfferUpload(Message, frozen=True):
    """Ask for room for a body that is too large for a frame. The next request can refer to it by its number.

    `no_eviction`: no fragment is demoted to make room. Where there is none at present, the upload is refused.
    """

    number: UploadNumber
    size: Annotated[int, Meta(ge=1, le=limits.BODY_BYTES_MAX, description="a body has at most 64 MiB; split it")]
    no_eviction: bool = False


class AskView(Message, frozen=True):
    """Ask for all fragments of some projects at one revision, as places in shared memory."""

    request_id: RequestId
    projects: Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)]


@checked
class WatchEvents(Message, frozen=True):
    """Ask for all events from now on, or behind the revision `since`, of some projects or of the session's scope."""

    request_id: RequestId
    since: Revision | None = None
    projects: (
        Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)] | None
    ) = None


class JoinAsWorker(Message, frozen=True):
    """Ask for tasks, one at a time, for a worker that has these strategies, and could not load others."""

    request_id: RequestId
    offers: Annotated[tuple[StrategyOffer, ...], Meta(min_length=1, max_length=limits.STRATEGIES_MAX)]
    problems: StrategyProblems = ()


class ReportProgress(Message, frozen=True):
    """Report how far a worker is with its task. The manager passes it on to the session that waits."""

    task_id: Identifier
    attempt: Positive
    done: Annotated[int, Meta(ge=0)]
    total: Annotated[int, Meta(ge=0)]
    note: Sentence = ""


class FollowTasks(Message, frozen=True):
    """Ask for the progress and outcomes of the session's tasks.

    `task_ids` are the tasks that the session has submitted and has no outcome of. The manager answers which of them it
    does not know, because it was restarted: the client submits these again.
    """

    request_id: RequestId
    task_ids: Annotated[tuple[Identifier, ...], Meta(max_length=limits.TASKS_PER_SESSION_MAX)]


class TasksReceived(Message, frozen=True):
    """Acknowledge the outcomes of tasks, so that the manager can delete them."""

    task_ids: Annotated[tuple[Identifier, ...], Meta(max_length=limits.TASKS_PER_SESSION_MAX)]


class SegmentsReleased(Message, frozen=True):
    """Report that the peer has unmapped segments, so that their memory can be freed."""

    segments: Annotated[tuple[int, ...], Meta(max_length=limits.RELEASED_PER_MESSAGE_MAX)]


class ReadsReported(Message, frozen=True):
    """Report reads that needed no request: project and id of each fragment, and how often it was read.

    `misses` counts the reads of the session that became requests. A report has no number, and is never sent again.
    """

    reads: Annotated[tuple[tuple[Name, Name, ReadCount], ...], Meta(max_length=limits.INDEX_READS_PER_REPORT_MAX)]
    misses: Annotated[int, Meta(ge=0, le=limits.INDEX_COUNT_PER_REPORT_MAX)] = 0


class Goodbye(Message, frozen=True):
    """End the session: its leases end now, without the grace that follows a lost connection."""


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
    | ReadsReported
    | Goodbye
)


class Welcome(Message, frozen=True):
    """Confirm that the connection is open.

    `epoch` identifies a history of revisions: in another epoch, the same revision means another state. `generation`
    is that of the session: if it has changed, the manager has forgotten which requests the session sent.
    """

    version: int
    epoch: str
    revision: int
    manager_pid: int
    encoding: str  # in which tokens are counted
    segments: tuple[int, ...]  # in use; all others that the peer has mapped are out of date
    generation: int
    database: str | None  # where the peer reads cold bodies; None: the state ends with the manager


class SegmentInfo(Struct, frozen=True, array_like=True, gc=False):
    """The number and size of a segment of shared memory whose file descriptor comes along."""

    number: int
    size: int


class SegmentsAdded(Message, frozen=True):
    """Announce segments that later messages refer to. Their descriptors come with this frame, in this order."""

    segments: tuple[SegmentInfo, ...]


class SegmentsRetired(Message, frozen=True):
    """Announce segments that no body is in any more: a peer should unmap them and say so."""

    segments: tuple[int, ...]


class IndexOpened(Message, frozen=True):
    """Announce the index of hot fragments: the segments of its slots and of its hash table, and the key of the hash.

    The descriptors of the two segments come with this frame, in this order.
    """

    slots: SegmentInfo
    cells: SegmentInfo
    key: bytes
    clock: str  # the time namespace of the manager: in another one, the validity of the index means nothing


class UploadGranted(Message, frozen=True):
    """Answer an offer. If it was not accepted, a request that refers to the upload is refused with the reason."""

    number: int
    accepted: bool


class ViewOpened(Message, frozen=True):
    """Answer `AskView`: the ends of the projects' catalogues at one revision. The client reads the rest itself."""

    request_id: int
    epoch: str
    revision: int
    catalogues: tuple[CatalogueEnd, ...]


class Events(Message, frozen=True):
    """The events since the last message of this kind, up to a revision, which is complete."""

    events: tuple[AnyEvent, ...]
    revision: int


class WatchLagged(Message, frozen=True):
    """Report that events were dropped before the watcher got them. The next ones come from behind `resume`."""

    resume: int


class WorkerAccepted(Message, frozen=True):
    """Confirm that the connection is a worker's from now on."""

    request_id: int


class TaskAssigned(Message, frozen=True):
    """Give a task to a worker.

    `is_prefetched`: the worker sends `BeginTask` before it begins the task. `catalogues` are those of the task's
    projects at `revision`; if there are none, the worker asks for a view.
    """

    task_id: str
    attempt: int
    strategy: str
    projects: tuple[str, ...]
    payload: bytes
    is_prefetched: bool
    revision: int
    catalogues: tuple[CatalogueEnd, ...]


class TaskRecalled(Message, frozen=True):
    """Withdraw a prefetched task from a worker that has not begun it."""

    task_id: str
    attempt: int


class TasksFollowed(Message, frozen=True):
    """Confirm that the connection is a follower's from now on.

    `unknown` are the tasks that the manager does not have.
    """

    request_id: int
    unknown: tuple[str, ...]


class TaskProgressed(Message, frozen=True):
    """Pass on how far a task is, as its worker reported it."""

    task_id: str
    done: int
    total: int
    note: str


class TaskEnded(Message, frozen=True):
    """Report the outcome of a task. A large result is a body: `digest` names it and `handle` says where it is."""

    task_id: str
    state: TaskState
    attempt: int
    deaths: tuple[WorkerDeath, ...]
    fault: TaskFault | None
    result: bytes | None
    digest: bytes | None
    handle: Handle | None


class CommandResult(Message, frozen=True, tag="Answer"):  # stores of earlier versions hold it by this tag
    """The result of a command that took effect: its reply, and the places of the bodies that the reply refers to."""

    revision: int
    reply: AnyReply
    handles: dict[bytes, Handle] = field(default_factory=dict[bytes, Handle])


class Refusal(Message, frozen=True):
    """The result of a command that was refused and changed nothing: the error, which the client raises again."""

    revision: int
    kind: str
    message: str
    details: dict[str, Detail] = field(default_factory=dict[str, Detail])

    @classmethod
    def of(cls, error: StepwellError, revision: int) -> Refusal:
        """Return the refusal that carries an error."""
        return cls(revision, error.kind, error.message[: limits.ERROR_CHARS_MAX], error.details)

    def error(self) -> StepwellError:
        """Return the error, as an instance of its own class."""
        return revive(self.kind, self.message, self.details)


Result = CommandResult | Refusal


class Response(Message, frozen=True):
    """The results of a request, in the order of its commands. An aborted transaction has one, its refusal."""

    request_id: int
    results: tuple[Result, ...]


class Status(Message, frozen=True):
    """Answer `AskStatus`: the figures that `stepwell status` shows."""

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
    index: IndexUsage
    encoding: str
    durability: str
    database: str | None


class Rejected(Message, frozen=True):
    """Report why the manager closes the connection.

    The reason is a violation of the protocol, too many peers or sessions, or a defect.
    """

    refusal: Refusal


class ManagerEnded(Message, frozen=True):
    """Report why the manager ends, to every connection, as the last message."""

    refusal: Refusal


OutOfBand = SegmentsAdded | SegmentsRetired | IndexOpened | ManagerEnded
"""The messages that the manager sends between its answers, on every connection."""

ManagerMessage = (
    Welcome
    | SegmentsAdded
    | SegmentsRetired
    | IndexOpened
    | ManagerEnded
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
