"""A world to try commands on tasks in.

After each command it checks that the indexes of the tables agree with their rows, and that the revision is unchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import TypeVar

from stepwell import limits
from stepwell.domain.commands import Command
from stepwell.domain.replies import Reply, TaskFound, TasksForgotten
from stepwell.domain.state import State
from stepwell.domain.tasks.commands import (
    BeginTask,
    CancelTask,
    ExpireTasks,
    FinishTask,
    ForgetTasks,
    JoinPool,
    LeaseTasks,
    LeavePool,
    ReleaseWorker,
    ReportDeath,
    ReserveTasks,
    SubmitTask,
)
from stepwell.domain.tasks.model import StrategyOffer, Task, TaskFault, TaskState, Worker
from stepwell.domain.tasks.queue import TaskTable
from stepwell.errors import Refused
from tests.support.domain.world import World

R = TypeVar("R", bound=Reply)

Queues = dict[str, dict[int, dict[str, list[str]]]]
"""The ids of queued tasks, by strategy, priority and session."""

MANAGER = "manager"


def offers(*names: str) -> tuple[StrategyOffer, ...]:
    return tuple(StrategyOffer(name) for name in names)


def queues(table: TaskTable) -> Queues:
    """The queues of a table. Empty ones show, too: there should be none."""
    found: Queues = {}
    for strategy, by_priority in table._queues.items():
        found[strategy] = {}
        for place, line in by_priority.items():
            waiting = [list(mine.values()) for mine in line._sessions.values()]
            found[strategy][-place] = {tasks[0].session_id: [task.task_id for task in tasks] for tasks in waiting}
    return found


def derived(table: TaskTable) -> dict[str, object]:
    """The indexes of a table of tasks, as plain values."""
    return {
        "by worker": {worker: task.task_id for worker, task in table.by_worker.items()},
        "prefetched": {worker: task.task_id for worker, task in table.prefetched.items()},
        "by session": {session: list(ids) for session, ids in table.by_session.items()},
        "by due": list(table.by_deadline),
        "over": sorted(table.ended),
        "queued": table.queued,
        "unfinished": table.unfinished,
        "bytes": table.bytes,
        "queues": queues(table),
    }


def recomputed(table: TaskTable) -> dict[str, object]:
    """The same values, computed from the rows alone."""
    tasks = sorted(table, key=lambda task: task.serial)
    leased = [task for task in tasks if task.state is TaskState.LEASED and task.due_at_ms is not None]
    ahead = [task for task in tasks if task.state is TaskState.LEASED and task.due_at_ms is None]
    waiting: Queues = {}
    by_session: dict[str, list[str]] = {}
    for task in tasks:
        by_session.setdefault(task.session_id, []).append(task.task_id)
        if task.state is TaskState.QUEUED:
            line = waiting.setdefault(task.strategy, {}).setdefault(task.priority, {})
            line.setdefault(task.session_id, []).append(task.task_id)
    return {
        "by worker": {task.worker_id: task.task_id for task in leased},
        "prefetched": {task.worker_id: task.task_id for task in ahead},
        "by session": by_session,
        "by due": sorted((task.due_at_ms, task.task_id) for task in leased),
        "over": sorted(task.task_id for task in tasks if task.is_over),
        "queued": sum(task.state is TaskState.QUEUED for task in tasks),
        "unfinished": sum(not task.is_over for task in tasks),
        "bytes": sum(task.carried_bytes for task in tasks),
        "queues": waiting,
    }


def check_tasks(state: State) -> None:
    """Check the invariants of tasks and workers."""
    assert derived(state.tasks) == recomputed(state.tasks)
    for task in state.tasks:
        check_task(state, task)
    nameless = {task.deaths[-1].pid: task for task in state.tasks if task.deaths and not task.deaths[-1].evidence}
    for pid, task_id in state.tasks.by_dead_pid.items():
        known = state.tasks.get(task_id)
        assert known is not None
        assert any(death.pid == pid and not death.evidence for death in known.deaths)
    assert nameless.keys() <= state.tasks.by_dead_pid.keys()


def check_task(state: State, task: Task) -> None:
    is_leased = task.state is TaskState.LEASED
    assert (task.worker_id is not None) == is_leased
    assert (task.due_at_ms is not None) == (is_leased and not task.is_prefetched)
    assert task.is_prefetched <= (task.worker_id in state.tasks.by_worker)  # its worker is busy
    assert task.is_begun <= (is_leased and not task.is_prefetched)
    assert task.is_over == (task.ended_at_ms is not None)
    worker = state.workers.get(task.worker_id) if is_leased else None
    assert not is_leased or (worker is not None and not worker.is_condemned)
    assert len(task.deaths) <= limits.TASK_DEATHS_MAX
    is_quarantined = task.state is TaskState.QUARANTINED
    assert is_quarantined == (len(task.deaths) == limits.TASK_DEATHS_MAX)
    assert task.attempt == 1 + len(task.deaths) - is_quarantined
    assert (task.fault is not None) == (task.state in {TaskState.FAILED, TaskState.QUARANTINED})
    has_result = task.result is not None or task.content is not None
    assert has_result == (task.state is TaskState.DONE)
    assert not (task.is_over and task.payload)


class TaskWorld:
    """A state with workers and tasks, and a clock that stands still until `wait` moves it."""

    def __init__(self) -> None:
        self.world = World()
        self.state = self.world.state
        self._pids = count(101)

    def wait(self, milliseconds: int) -> None:
        """Move the clock."""
        self.world.now_ms += milliseconds

    def do(self, command: Command[R], *, session: str = "alice", projects: Collection[str] | None = None) -> R:
        """Apply a command; the indexes agree with the rows afterwards, and the revision is unchanged."""
        revision = self.state.revision
        reply = self.world.do(command, session=session, projects=projects)
        check_tasks(self.state)
        assert self.state.revision == revision
        return reply

    def refuse(
        self,
        command: Command[Reply],
        kind: type[Refused],
        message: str,
        *,
        session: str = "alice",
        projects: Collection[str] | None = None,
    ) -> Refused:
        before = repr(derived(self.state.tasks))  # whose turn it is, too
        error = self.world.refuse(command, kind, message, session=session, projects=projects)
        assert repr(derived(self.state.tasks)) == before
        check_tasks(self.state)
        return error

    def join(self, worker_id: str = "w", *strategies: str, pid: int | None = None) -> Worker:
        """Add a worker with a new process id."""
        pid = next(self._pids) if pid is None else pid
        found = self.do(JoinPool(worker_id, pid, offers(*strategies or ("s",))), session=MANAGER).worker
        assert found is not None
        return found

    def leave(self, worker_id: str = "w") -> Worker | None:
        return self.do(LeavePool(worker_id), session=MANAGER).worker

    def submit(
        self,
        task_id: str = "t",
        *,
        session: str = "alice",
        strategy: str = "s",
        priority: int = 5,
        payload: bytes = b"do it",
        deadline_ms: int = 1_000,
    ) -> Task:
        self.do(SubmitTask(task_id, strategy, ("p",), payload, priority, deadline_ms), session=session)
        return self.task(task_id)

    def lease(self) -> list[Task]:
        """Lease tasks until there are none for an idle worker."""
        given: list[Task] = []
        while tasks := self.do(LeaseTasks(takes_back=True), session=MANAGER).tasks:
            given += tasks
        return given

    def release(self, worker_id: str = "w") -> Worker | None:
        """Announce, as its supervisor, that a worker will be stopped."""
        return self.do(ReleaseWorker(self.worker(worker_id).pid), session="supervisor").worker

    def reserve(self) -> list[Task]:
        """Prefetch tasks until there are none for a busy worker."""
        given: list[Task] = []
        while tasks := self.do(ReserveTasks(), session=MANAGER).tasks:
            given += tasks
        return given

    def begin(self, task_id: str, worker_id: str = "w", attempt: int = 1) -> Worker:
        """Begin a prefetched task as its worker."""
        worker = self.do(BeginTask(task_id, attempt), session=worker_id).worker
        assert worker is not None
        return worker

    def order(self, worker_id: str = "w") -> list[str]:
        """Have one worker do all tasks that it can; return their order."""
        taken: list[str] = []
        while self.lease():
            task = self.state.tasks.by_worker[worker_id]
            taken.append(task.task_id)
            self.finish(task.task_id)
        return taken

    def finish(self, task_id: str = "t", result: bytes | None = b"found", fault: TaskFault | None = None) -> TaskFound:
        """Finish a task as the worker that has it."""
        task = self.task(task_id)
        assert task.worker_id is not None
        given = None if fault else result
        return self.do(FinishTask(task_id, task.attempt, given, fault), session=task.worker_id)

    def cancel(self, task_id: str = "t", session: str = "alice") -> TaskFound:
        return self.do(CancelTask(task_id), session=session)

    def expire(self) -> list[str]:
        return [task.task_id for task in self.do(ExpireTasks(), session=MANAGER).tasks]

    def forget(self, *task_ids: str, session: str = "alice") -> TasksForgotten:
        return self.do(ForgetTasks(session, task_ids), session=MANAGER)

    def end_of(self, session: str = "alice") -> TasksForgotten:
        """Delete all tasks of a session that has ended."""
        return self.do(ForgetTasks(session), session=MANAGER)

    def report(self, pid: int, evidence: str) -> str | None:
        return self.do(ReportDeath(pid, evidence), session="supervisor").task_id

    def die(self, worker_id: str = "w", *strategies: str) -> Worker:
        """Have a worker join, get the next task, and die."""
        worker = self.join(worker_id, *strategies)
        self.lease()
        self.leave(worker_id)
        return worker

    def bring_to(self, state: TaskState, task_id: str = "t", session: str = "alice") -> Task:
        """Submit a task and bring it to an outcome. There is no worker before or afterwards."""
        self.join()
        self.submit(task_id, session=session)
        self.lease()
        match state:
            case TaskState.DONE:
                self.finish(task_id)
            case TaskState.FAILED:
                self.wait(1_000)
                self.expire()
            case TaskState.CANCELLED:
                self.cancel(task_id, session)
            case TaskState.QUARANTINED:
                self.leave()
                for _ in range(limits.TASK_DEATHS_MAX - 1):
                    self.die()
            case _:
                raise AssertionError(state)
        self.leave()
        return self.task(task_id)

    def task(self, task_id: str = "t") -> Task:
        task = self.state.tasks.get(task_id)
        assert task is not None
        return task

    def worker(self, worker_id: str = "w") -> Worker:
        worker = self.state.workers.get(worker_id)
        assert worker is not None
        return worker
