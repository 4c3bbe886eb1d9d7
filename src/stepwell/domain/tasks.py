"""The rules of tasks: each that is accepted ends in one outcome, and only the current attempt's result counts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changeset import Content
from stepwell.domain.commands.tasks import (
    CancelTask,
    ExpireTasks,
    FinishTask,
    ForgetTasks,
    JoinPool,
    LeaseTasks,
    LeavePool,
    ListStrategies,
    ReportDeath,
    SubmitTask,
)
from stepwell.domain.deciding import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.domain.replies import (
    DeathNoted,
    StrategiesFound,
    TaskFound,
    TasksForgotten,
    TasksLeased,
    WorkerFound,
)
from stepwell.domain.state import State
from stepwell.domain.task import Death, Task, TaskFault, TaskState, Worker
from stepwell.errors import AlreadyExists, Busy, InvalidArgument, LeaseLost, NotFound


@decides(SubmitTask)
def submit(state: State, command: SubmitTask, origin: Origin) -> Verdict:
    """Accept a task, unless there is no room, or nobody could ever do it."""
    origin.require(command.projects)
    if known := state.tasks.get(command.task_id):
        if known.session_id != origin.session_id:
            raise AlreadyExists(f"there is a task {command.task_id!r} of another session")
        return Verdict(_found(known))
    if command.strategy not in state.workers.offered and not command.was_accepted:
        offered = ", ".join(sorted(state.workers.offered)) or "none: start workers first"
        raise NotFound(f"no worker has offered a strategy {command.strategy!r}; offered: {offered}")
    mine = state.tasks.by_session.get(origin.session_id, ())
    is_full = state.tasks.unfinished >= limits.TASKS_MAX or state.tasks.bytes > limits.TASKS_BYTES_MAX
    if is_full or len(mine) >= limits.TASKS_PER_SESSION_MAX:
        raise Busy(
            f"{len(mine)} tasks of yours and {state.tasks.unfinished} in all are waiting: submit fewer at a time"
        )
    task = Task(
        command.task_id,
        origin.session_id,
        command.strategy,
        command.projects,
        command.payload,
        command.priority,
        command.deadline_ms,
        state.tasks.next_serial,
        origin.now_ms,
    )
    return Verdict(_found(task), (RowChanged(None, task),))


@decides(CancelTask)
def cancel(state: State, command: CancelTask, origin: Origin) -> Verdict:
    """End a task that nobody waits for. Whoever is working on it is stopped."""
    task = state.tasks.get(command.task_id)
    if task is None or task.session_id != origin.session_id:
        raise NotFound(f"there is no task {command.task_id!r} of yours: it may have ended, and been fetched")
    if task.is_over:
        return Verdict(_found(task))
    ended = _ended(task, TaskState.CANCELLED, origin)
    return Verdict(_found(ended), (RowChanged(task, ended), *_condemned(state, task), *_surplus(state)))


@decides(FinishTask)
def finish(state: State, command: FinishTask, origin: Origin) -> Verdict:
    """A worker's result, if the task is still its own."""
    task = state.tasks.get(command.task_id)
    if (
        task is None
        or task.state is not TaskState.LEASED
        or (task.worker_id, task.attempt) != (origin.session_id, command.attempt)
    ):
        raise LeaseLost(f"task {command.task_id!r} is not, or no longer, yours at attempt {command.attempt}")
    if (command.result is None) == (command.fault is None):
        raise InvalidArgument("a task is finished with a result or with a fault")
    result = command.result
    ended = _ended(task, TaskState.FAILED if command.fault else TaskState.DONE, origin, command.fault)
    if isinstance(result, bytes):
        ended = replace(ended, result=result)
    elif result is not None:
        held = origin.held(result)
        state.bodies.require_room((held,), state.budget.bodies_bytes)
        ended = replace(ended, content=Content(*held, held=True))
    return Verdict(_found(ended), (RowChanged(task, ended), *_leaving(state, command, origin), *_surplus(state)))


@decides(ReportDeath)
def report_death(state: State, command: ReportDeath, _origin: Origin) -> Verdict:
    """What is known of a death goes to the task that it happened to."""
    task = state.tasks.get(state.tasks.by_dead_pid.get(command.pid))
    if task is None:
        return Verdict(DeathNoted(None))
    deaths = tuple(
        replace(death, evidence=command.evidence) if death.pid == command.pid and not death.evidence else death
        for death in task.deaths
    )
    return Verdict(DeathNoted(task.task_id), (RowChanged(task, replace(task, deaths=deaths)),))


@decides(ListStrategies)
def list_strategies(state: State, _command: ListStrategies, _origin: Origin) -> Verdict:
    """Everybody may know what can be asked for."""
    offers = tuple(sorted(state.workers.offered.values(), key=lambda each: each.name))
    return Verdict(StrategiesFound(offers, tuple(state.workers), state.tasks.queued, len(state.tasks.by_worker)))


@decides(JoinPool)
def join(state: State, command: JoinPool, origin: Origin) -> Verdict:
    """From now on a worker gets tasks."""
    if len(state.workers) >= limits.WORKERS_MAX:
        raise Busy(f"there are {limits.WORKERS_MAX} workers already")
    names = {each.name for each in command.offers}
    if len(names | state.workers.offered.keys()) > limits.STRATEGIES_MAX:
        raise Busy(f"workers have offered {limits.STRATEGIES_MAX} strategies already")
    if state.workers.get(command.worker_id) is not None:
        raise AlreadyExists("this session works already")
    worker = Worker(command.worker_id, command.pid, command.offers, origin.now_ms)
    return Verdict(WorkerFound(worker), (RowChanged(None, worker),))


@decides(LeavePool)
def leave(state: State, command: LeavePool, origin: Origin) -> Verdict:
    """Its task goes back to its place in the queue; the one that three died of goes nowhere any more."""
    worker = state.workers.get(command.worker_id)
    if worker is None:
        return Verdict(WorkerFound(None))
    changes: list[AnyChange] = [RowChanged(worker, None)]
    if task := state.tasks.by_worker.get(command.worker_id):
        deaths = (*task.deaths, Death(worker.pid, origin.now_ms))
        if len(deaths) < limits.TASK_DEATHS_MAX:
            after = replace(
                task, state=TaskState.QUEUED, attempt=task.attempt + 1, worker_id=None, due_at_ms=None, deaths=deaths
            )
        else:
            fault = TaskFault("TaskQuarantined", f"{len(deaths)} workers died while they had it: no other one gets it")
            after = replace(_ended(task, TaskState.QUARANTINED, origin, fault), deaths=deaths)
            changes += _surplus(state)
        changes.append(RowChanged(task, after))
    return Verdict(WorkerFound(worker), tuple(changes))


@decides(LeaseTasks)
def lease(state: State, _command: LeaseTasks, origin: Origin) -> Verdict:
    """One to each who is idle. Taking turns is up to the queue."""
    busy = state.tasks.by_worker
    idle = [each for each in state.workers if not (each.is_condemned or each.is_leaving or each.key in busy)]
    for worker in idle:
        task = state.tasks.next_of(each.name for each in worker.offers)
        if task is not None:
            due_at_ms = origin.now_ms + task.deadline_ms
            leased = replace(task, state=TaskState.LEASED, worker_id=worker.worker_id, due_at_ms=due_at_ms)
            return Verdict(TasksLeased((leased,), more=len(idle) > 1), (RowChanged(task, leased),))
    return Verdict(TasksLeased(()))


@decides(ExpireTasks)
def expire(state: State, _command: ExpireTasks, origin: Origin) -> Verdict:
    """Past its deadline a task has failed, whatever its worker is doing; that one is stopped."""
    changes: list[AnyChange] = []
    ended: list[Task] = []
    for due_at_ms, task_id in islice(state.tasks.by_due, limits.TASKS_PER_STEP_MAX):
        if due_at_ms > origin.now_ms:
            break
        task = state.tasks.rows[task_id]
        fault = TaskFault("DeadlineExceeded", f"strategy {task.strategy!r} took more than {task.deadline_ms} ms")
        ended.append(_ended(task, TaskState.FAILED, origin, fault))
        changes += (RowChanged(task, ended[-1]), *_condemned(state, task))
    changes += _surplus(state, len(ended))
    return Verdict(TasksLeased(tuple(ended), more=len(ended) == limits.TASKS_PER_STEP_MAX), tuple(changes))


@decides(ForgetTasks)
def forget(state: State, command: ForgetTasks, _origin: Origin) -> Verdict:
    """What has reached its session; or all that a session had, if it is over, running or not."""
    mine = state.tasks.by_session.get(command.session_id, {})
    wanted = dict.fromkeys(islice(mine, limits.TASKS_PER_STEP_MAX) if command.task_ids is None else command.task_ids)
    found = [state.tasks.rows[task_id] for task_id in wanted if task_id in mine]
    gone = [task for task in found if task.is_over or command.task_ids is None]
    changes = [change for task in gone for change in (RowChanged(task, None), *_condemned(state, task))]
    more = command.task_ids is None and len(mine) > len(wanted)
    return Verdict(TasksForgotten(len(gone), more), tuple(changes))


def _found(task: Task) -> TaskFound:
    return TaskFound(task.task_id, task.state, task.attempt)


def _ended(task: Task, state: TaskState, origin: Origin, fault: TaskFault | None = None) -> Task:
    """The payload is not needed any more."""
    return replace(
        task, state=state, worker_id=None, due_at_ms=None, fault=fault, payload=b"", ended_at_ms=origin.now_ms
    )


def _condemned(state: State, task: Task) -> Iterable[AnyChange]:
    """Whoever is working on a task that is over has to be stopped: there is no other way to stop a strategy."""
    worker = state.workers.get(task.worker_id) if task.worker_id is not None else None
    return () if worker is None else (RowChanged(worker, replace(worker, is_condemned=True)),)


def _leaving(state: State, command: FinishTask, origin: Origin) -> Iterable[AnyChange]:
    worker = state.workers.get(origin.session_id) if command.is_last else None
    return () if worker is None else (RowChanged(worker, replace(worker, is_leaving=True)),)


def _surplus(state: State, new: int = 1) -> Iterable[AnyChange]:
    """Outcomes that nobody has fetched make way for new ones, the oldest first."""
    over = state.tasks.over
    for task_id in islice(over, max(0, len(over) + new - limits.TASKS_ENDED_MAX)):
        yield RowChanged(state.tasks.rows[task_id], None)
