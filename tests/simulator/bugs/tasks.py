"""Bugs of tasks: lost, without a deadline, or with more than one outcome."""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest import mock

from msgspec.structs import replace

from stepwell.domain.replies import WorkerFound
from stepwell.domain.state import State
from stepwell.domain.tasks import rules
from stepwell.domain.tasks.commands import BeginTask, FinishTask, LeavePool
from stepwell.domain.tasks.model import Task, TaskState
from stepwell.domain.verdict import DECIDERS, Origin, RowChanged, Verdict
from stepwell.manager.connection import ClientConnection
from stepwell.manager.housekeeping import Housekeeping
from stepwell.manager.task_dispatch import TaskDispatcher
from stepwell.protocol.messages import FollowTasks
from tests.simulator.bugs.registry import bug, do_nothing, patched


@bug("The result of a worker from which the task was taken is accepted.")
def result_of_old_attempt_accepted() -> AbstractContextManager[None]:
    def is_leased(task: Task, _command: FinishTask | BeginTask, _origin: Origin) -> bool:
        return task.state is TaskState.LEASED

    return patched((rules, "_is_held", is_leased))


@bug("A task is lost when its worker dies.")
def task_lost_with_worker() -> AbstractContextManager[object]:
    def leave(state: State, command: LeavePool, _origin: Origin) -> Verdict:
        worker = state.workers.get(command.worker_id)
        if worker is None:
            return Verdict(WorkerFound(None))
        held = (state.tasks.by_worker.get(worker.worker_id), state.tasks.prefetched.get(worker.worker_id))
        lost = (RowChanged(task, None) for task in held if task is not None)
        return Verdict(WorkerFound(worker), (RowChanged(worker, None), *lost))

    return mock.patch.dict(DECIDERS, {LeavePool: leave})


@bug("The prefetched task of a worker that dies is lost.")
def prefetched_task_lost_with_worker() -> AbstractContextManager[None]:
    return patched((rules, "_requeue_prefetched", lambda _state, _worker, _gone=(): ()))


@bug("The deadlines of tasks are not enforced.")
def deadline_ignored() -> AbstractContextManager[None]:
    return patched((Housekeeping, "expire_tasks", do_nothing))


@bug("A worker whose task has exceeded its deadline is not stopped.")
def overdue_worker_not_stopped() -> AbstractContextManager[None]:
    return patched((rules, "_stop_worker_of", lambda _state, _task, _gone=(): ()))


@bug("The outcome of a task that ends while its client begins to follow is reported twice.")
def outcome_reported_twice() -> AbstractContextManager[None]:
    add_follower = TaskDispatcher.add_follower

    def add_without_draining(self: TaskDispatcher, connection: ClientConnection, message: FollowTasks) -> None:
        with mock.patch.object(self, "_drain_changes", do_nothing):
            add_follower(self, connection, message)

    return patched((TaskDispatcher, "add_follower", add_without_draining))


@bug("A task during which a worker died is given out again under the same attempt, without end.")
def deaths_of_workers_not_counted() -> AbstractContextManager[object]:
    leave = DECIDERS[LeavePool]

    def leave_and_forget(state: State, command: LeavePool, origin: Origin) -> Verdict:
        verdict = leave(state, command, origin)
        changes = [
            RowChanged(change.before, replace(rules._requeued(change.before), deaths=()))
            if isinstance(change.before, Task) and isinstance(change.after, Task)
            else change
            for change in verdict.changes
        ]
        return replace(verdict, changes=tuple(changes))

    return mock.patch.dict(DECIDERS, {LeavePool: leave_and_forget})
