"""Commands on tasks and workers. What they change ends with the manager: it has no revision, and is not kept."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Body, Identifier, Positive, ProjectName, StrategyName, UploadNumber
from stepwell.domain.command_roots import Ephemeral, EphemeralInternal, Read
from stepwell.domain.tasks.model import StrategyOffer, TaskFault

Payload = Annotated[
    bytes, Meta(max_length=limits.TASK_PAYLOAD_BYTES_MAX, description="a request has at most 512 KiB: ask for less")
]
Priority = Annotated[int, Meta(ge=0, le=limits.TASK_PRIORITY_MAX, description="a priority is 0 to 9, 9 first")]
DeadlineMs = Annotated[
    int, Meta(ge=1, le=limits.TASK_DEADLINE_MS_MAX, description="a deadline is more than 0 and at most a day")
]
Evidence = Annotated[str, Meta(max_length=limits.EVIDENCE_CHARS_MAX, description="give the last 8000 characters")]


class SubmitTask(Ephemeral[replies.TaskFound], frozen=True):
    """Have a strategy work on something. Submitted again by its session, it is the same task."""

    task_id: Identifier
    strategy: StrategyName
    projects: Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)]
    payload: Payload
    priority: Priority = 5
    deadline_ms: DeadlineMs = limits.TASK_DEADLINE_MS
    was_accepted: bool = False  # by an earlier manager, whose workers are on their way to this one


class CancelTask(Ephemeral[replies.TaskFound], frozen=True):
    """Nobody wants to know any more. Work on it is stopped."""

    task_id: Identifier


class FinishTask(Ephemeral[replies.TaskFound], frozen=True):
    """What a worker found, or why it found nothing."""

    task_id: Identifier
    attempt: Positive
    result: Body | UploadNumber | None = None
    fault: TaskFault | None = None
    is_last: bool = False  # the worker ends, and should not be given another


class BeginTask(Ephemeral[replies.WorkerFound], frozen=True):
    """A worker begins what it was given ahead of time. If that was taken back meanwhile, it has to be stopped."""

    task_id: Identifier
    attempt: Positive


class ReportDeath(Ephemeral[replies.DeathNoted], frozen=True):
    """What a worker that died has left, from whoever started it."""

    pid: Positive
    evidence: Evidence


class ReleaseWorker(Ephemeral[replies.WorkerFound], frozen=True):
    """A worker is about to be stopped by whoever started it: it gets no more, and its end is no death of a task's."""

    pid: Positive


class ListStrategies(Read[replies.StrategiesFound], frozen=True):
    """What the workers offer, and how they are."""


class JoinPool(EphemeralInternal[replies.WorkerFound], frozen=True):
    """A worker is ready."""

    worker_id: str
    pid: int
    offers: tuple[StrategyOffer, ...]


class LeavePool(EphemeralInternal[replies.WorkerFound], frozen=True):
    """A worker is gone: what it was doing goes to another one, unless it has been the end of too many."""

    worker_id: str


class LeaseTasks(EphemeralInternal[replies.TasksLeased], frozen=True):
    """Give whoever is idle something to do, also what lies with others who are busy, if `takes_back`."""

    takes_back: bool = False


class ReserveTasks(EphemeralInternal[replies.TasksLeased], frozen=True):
    """Give whoever is busy what it does next, so that it need not wait for it."""


class ExpireTasks(EphemeralInternal[replies.TasksLeased], frozen=True):
    """End every task whose deadline has passed."""


class ForgetTasks(EphemeralInternal[replies.TasksForgotten], frozen=True):
    """Their outcome has reached their session; or, of none in particular, the session is over, and so are they."""

    session_id: str
    task_ids: tuple[str, ...] | None = None


TaskRead = ListStrategies
TaskEphemeral = SubmitTask | CancelTask | FinishTask | BeginTask | ReportDeath | ReleaseWorker
