"""The rules of tasks: each that is accepted ends in one outcome, and only the current attempt's result counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.replies import (
    DeathNoted,
    StrategiesFound,
    TaskFound,
    TasksForgotten,
    TasksLeased,
    WorkerFound,
)
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
    ListStrategies,
    ReleaseWorker,
    ReportDeath,
    ReserveTasks,
    SubmitTask,
)
from stepwell.domain.tasks.model import Task, TaskFault, TaskState, Worker, WorkerDeath
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
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
        names = sorted(each.name for each in state.workers.offered.values() if not each.is_chore)
        offered = ", ".join(names) or "none: start workers first"
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
    if task is None or task.is_ahead or not _is_held(task, command, origin):
        raise LeaseLost(f"task {command.task_id!r} is not, or no longer, yours at attempt {command.attempt}")
    if (command.result is None) == (command.fault is None):
        raise InvalidArgument("a task is finished with a result or with a fault")
    result = command.result
    ended = _ended(task, TaskState.FAILED if command.fault else TaskState.DONE, origin, command.fault)
    if isinstance(result, bytes):
        ended = replace(ended, result=result)
    elif result is not None:
        body = origin.resolve_body(result)
        state.bodies.require_room((body,), state.budget.bodies_bytes)
        ended = replace(ended, content=body)
    worker = state.workers.get(origin.session_id)
    then = _leaving(state, worker) if command.is_last else _next(state, origin)
    return Verdict(_found(ended), (RowChanged(task, ended), *then, *_surplus(state)))


@decides(BeginTask)
def begin(state: State, command: BeginTask, origin: Origin) -> Verdict:
    """Its time has begun, because what its worker did before is finished; unless it is not its worker's any more."""
    worker = state.workers.get(origin.session_id)
    if worker is None:
        raise LeaseLost("only a worker begins tasks")
    task = state.tasks.get(command.task_id)
    if task is not None and not task.is_ahead and _is_held(task, command, origin):
        begun = () if task.is_begun else (RowChanged(task, replace(task, is_begun=True)),)
        return Verdict(WorkerFound(worker), begun)
    if worker.is_condemned:
        return Verdict(WorkerFound(worker))
    head = state.tasks.by_worker.get(worker.worker_id)  # given to it meanwhile, because it seemed to be idle
    given_back = () if head is None else (RowChanged(head, _returned(head)),)
    return Verdict(WorkerFound(worker), (*given_back, *_dismissal(state, worker)))


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


@decides(ReleaseWorker)
def release(state: State, command: ReleaseWorker, _origin: Origin) -> Verdict:
    """What it is doing may still be finished; if not, it goes to another one as if nothing had happened."""
    worker = next((each for each in state.workers if each.pid == command.pid and not each.is_leaving), None)
    return Verdict(WorkerFound(worker), tuple(_leaving(state, worker)))


@decides(ListStrategies)
def list_strategies(state: State, _command: ListStrategies, _origin: Origin) -> Verdict:
    """Everybody may know what can be asked for."""
    offers = tuple(sorted(state.workers.offered.values(), key=lambda each: each.name))
    waiting = state.tasks.queued + len(state.tasks.ahead)
    return Verdict(StrategiesFound(offers, tuple(state.workers), waiting, len(state.tasks.by_worker)))


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
        deaths = (*task.deaths, WorkerDeath(worker.pid, origin.now_ms))
        if worker.is_leaving or not task.is_begun:
            after = _returned(task)
        elif len(deaths) < limits.TASK_DEATHS_MAX:
            after = replace(_returned(task), attempt=task.attempt + 1, deaths=deaths)
        else:
            fault = TaskFault("TaskQuarantined", f"{len(deaths)} workers died while they had it: no other one gets it")
            after = replace(_ended(task, TaskState.QUARANTINED, origin, fault), deaths=deaths)
            changes += _surplus(state)
        changes.append(RowChanged(task, after))
    changes += _given_back(state, worker)
    return Verdict(WorkerFound(worker), tuple(changes))


@decides(LeaseTasks)
def lease(state: State, command: LeaseTasks, origin: Origin) -> Verdict:
    """One to each who is idle: the next in the queue, or else one that lies with somebody who is busy for longer."""
    idle = [each for each in _staff(state) if each.key not in state.tasks.by_worker]
    for worker in idle:
        names = {each.name for each in worker.offers}
        task = state.tasks.next_of(names)
        if task is None and command.takes_back:
            task = _lying(state, names, origin)
        if task is not None:
            given = replace(task, state=TaskState.LEASED, worker_id=worker.worker_id, is_begun=True)
            leased = _timed(given, origin)
            return Verdict(TasksLeased((leased,), more=len(idle) > 1), (RowChanged(task, leased),))
    return Verdict(TasksLeased(()))


@decides(ReserveTasks)
def reserve(state: State, _command: ReserveTasks, _origin: Origin) -> Verdict:
    """One to each who is busy and has none yet. More urgent ones that come later wait for it."""
    tasks = state.tasks
    busy = [each for each in _staff(state) if each.key in tasks.by_worker and each.key not in tasks.ahead]
    for worker in busy:
        task = tasks.next_of(each.name for each in worker.offers)
        if task is not None:
            reserved = replace(task, state=TaskState.LEASED, worker_id=worker.worker_id)
            return Verdict(TasksLeased((reserved,), more=len(busy) > 1), (RowChanged(task, reserved),))
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
    ids = {task.task_id for task in gone}
    changes = [change for task in gone for change in (RowChanged(task, None), *_condemned(state, task, ids))]
    more = command.task_ids is None and len(mine) > len(wanted)
    return Verdict(TasksForgotten(len(gone), more), tuple(changes))


def _found(task: Task) -> TaskFound:
    return TaskFound(task.task_id, task.state, task.attempt)


def _ended(task: Task, state: TaskState, origin: Origin, fault: TaskFault | None = None) -> Task:
    """The payload is not needed any more."""
    returned = _returned(task)
    return replace(returned, state=state, fault=fault, payload=b"", ended_at_ms=origin.now_ms)


def _is_held(task: Task, command: FinishTask | BeginTask, origin: Origin) -> bool:
    """Whether a task is, at this attempt, of the worker who says so."""
    held = task.state, task.worker_id, task.attempt
    return held == (TaskState.LEASED, origin.session_id, command.attempt)


def _staff(state: State) -> Iterator[Worker]:
    """Those that may get something."""
    return (each for each in state.workers if not (each.is_condemned or each.is_leaving))


def _lying(state: State, names: Collection[str], origin: Origin) -> Task | None:
    """What waits for somebody who will not be done soon. Sooner than that, it may be begun at this very moment."""
    before_ms = origin.now_ms - limits.TASK_AHEAD_MS
    lying = (
        task
        for worker_id, task in state.tasks.ahead.items()
        if task.strategy in names and state.tasks.by_worker[worker_id].due_since_ms <= before_ms
    )
    return min(lying, key=lambda task: (-task.priority, task.serial), default=None)


def _timed(task: Task, origin: Origin) -> Task:
    return replace(task, due_at_ms=origin.now_ms + task.deadline_ms)


def _returned(task: Task) -> Task:
    """To its place in the queue."""
    return replace(task, state=TaskState.QUEUED, worker_id=None, due_at_ms=None, is_begun=False)


def _condemned(state: State, task: Task, gone: Collection[str] = ()) -> Iterable[AnyChange]:
    """Whoever is working on a task that is over has to be stopped: there is no other way to stop a strategy."""
    worker = state.workers.get(task.worker_id) if task.worker_id is not None and not task.is_ahead else None
    return () if worker is None else _dismissal(state, worker, gone)


def _dismissal(state: State, worker: Worker, gone: Collection[str] = ()) -> Iterator[AnyChange]:
    yield RowChanged(worker, replace(worker, is_condemned=True))
    yield from _given_back(state, worker, gone)


def _given_back(state: State, worker: Worker, gone: Collection[str] = ()) -> Iterator[AnyChange]:
    """What a worker has not begun goes to another, unless it is among what goes anyway."""
    task = state.tasks.ahead.get(worker.worker_id)
    if task is not None and task.task_id not in gone:
        yield RowChanged(task, _returned(task))


def _next(state: State, origin: Origin) -> Iterator[AnyChange]:
    """The time of what a worker has already begins when it has finished what it did before."""
    task = state.tasks.ahead.get(origin.session_id)
    if task is not None:
        yield RowChanged(task, _timed(task, origin))


def _leaving(state: State, worker: Worker | None) -> Iterator[AnyChange]:
    if worker is not None:
        yield RowChanged(worker, replace(worker, is_leaving=True))
        yield from _given_back(state, worker)


def _surplus(state: State, new: int = 1) -> Iterable[AnyChange]:
    """Outcomes that nobody has fetched make way for new ones, the oldest first."""
    over = state.tasks.over
    for task_id in islice(over, max(0, len(over) + new - limits.TASKS_ENDED_MAX)):
        yield RowChanged(state.tasks.rows[task_id], None)
