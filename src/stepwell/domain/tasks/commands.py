"""The commands on tasks and workers. Clients and workers send the first group, the manager the second.

All of them change only tasks and workers, which end with the manager: they have no revision, and nothing is stored.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Body, Identifier, Positive, ProjectName, StrategyName, UploadNumber
from stepwell.domain.command_roots import Ephemeral, EphemeralInternal, Read
from stepwell.domain.tasks.model import StrategyOffer, StrategyProblem, TaskFault

Payload = Annotated[
    bytes, Meta(max_length=limits.TASK_PAYLOAD_BYTES_MAX, description="a request has at most 512 KiB: ask for less")
]
Priority = Annotated[int, Meta(ge=0, le=limits.TASK_PRIORITY_MAX, description="a priority is 0 to 9, 9 first")]
DeadlineMs = Annotated[
    int, Meta(ge=1, le=limits.TASK_DEADLINE_MS_MAX, description="a deadline is more than 0 and at most a day")
]
Evidence = Annotated[str, Meta(max_length=limits.EVIDENCE_CHARS_MAX, description="give the last 8000 characters")]


class SubmitTask(Ephemeral[replies.TaskFound], frozen=True):
    """Submit a task for a strategy. Submitting the same id again from the same session is the same task.

    `deadline_ms` bounds the work of one attempt. `was_accepted`: an earlier manager had accepted it, whose workers are
    on their way to this one.
    """

    task_id: Identifier
    strategy: StrategyName
    projects: Annotated[tuple[ProjectName, ...], Meta(min_length=1, max_length=limits.PROJECTS_PER_SESSION_MAX)]
    payload: Payload
    priority: Priority = 5
    deadline_ms: DeadlineMs = limits.TASK_DEADLINE_MS
    was_accepted: bool = False


class CancelTask(Ephemeral[replies.TaskFound], frozen=True):
    """Cancel a task whose outcome its client does not need any more. Its worker is stopped."""

    task_id: Identifier


class FinishTask(Ephemeral[replies.TaskFound], frozen=True):
    """Finish a task, with a result or with a fault. Sent by the worker that has it.

    `is_last`: the worker ends after this task and should get no other.
    """

    task_id: Identifier
    attempt: Positive
    result: Body | UploadNumber | None = None
    fault: TaskFault | None = None
    is_last: bool = False


class BeginTask(Ephemeral[replies.WorkerFound], frozen=True):
    """Begin a prefetched task. Sent by its worker, which is stopped if the task was taken back meanwhile."""

    task_id: Identifier
    attempt: Positive


class ReportDeath(Ephemeral[replies.DeathNoted], frozen=True):
    """Report the last output and exit status of a worker that died. Sent by its supervisor."""

    pid: Positive
    evidence: Evidence


class ReleaseWorker(Ephemeral[replies.WorkerFound], frozen=True):
    """Announce that a supervisor stops a worker: it gets no more tasks, and its end does not count as a death."""

    pid: Positive


class ListStrategies(Read[replies.StrategiesFound], frozen=True):
    """List the strategies that workers offer, the workers, and how many tasks wait."""


class JoinPool(EphemeralInternal[replies.WorkerFound], frozen=True):
    """Add a worker that has connected and is ready for tasks."""

    worker_id: str
    pid: int
    offers: tuple[StrategyOffer, ...]
    problems: tuple[StrategyProblem, ...] = ()


class LeavePool(EphemeralInternal[replies.WorkerFound], frozen=True):
    """Remove a worker whose connection is gone. Its task goes to another worker, or is quarantined."""

    worker_id: str


class LeaseTasks(EphemeralInternal[replies.TasksLeased], frozen=True):
    """Lease a task to an idle worker; with `takes_back`, also one that a busy worker has prefetched."""

    takes_back: bool = False


class ReserveTasks(EphemeralInternal[replies.TasksLeased], frozen=True):
    """Prefetch a task for a busy worker, so that it need not wait between two tasks."""


class ExpireTasks(EphemeralInternal[replies.TasksLeased], frozen=True):
    """Fail the tasks whose deadline has passed, and stop their workers."""


class ForgetTasks(EphemeralInternal[replies.TasksForgotten], frozen=True):
    """Delete tasks whose outcome has reached their session; without ids, all tasks of a session that has ended."""

    session_id: str
    task_ids: tuple[str, ...] | None = None


TaskRead = ListStrategies
TaskEphemeral = SubmitTask | CancelTask | FinishTask | BeginTask | ReportDeath | ReleaseWorker
