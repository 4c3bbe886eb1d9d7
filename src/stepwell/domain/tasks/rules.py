"""The rules of tasks: accept, lease, finish, cancel, expire, and what a worker's death means.

Every task that is accepted ends in exactly one outcome. A worker shows the number of the attempt to finish a task, so
that a worker that was presumed dead cannot overwrite the result of its successor. A strategy cannot be interrupted: to
stop the work on a task, its worker is marked as condemned, and the manager has it killed.

Leasing is one task for each command, so that the manager's loop stays responsive; `more` in the reply says that it
should ask again. A busy worker gets its next task in advance (it is prefetched), so that it need not wait for a round
trip between two tasks.
"""

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
from stepwell.text import plural


@decides(SubmitTask)
def submit(state: State, command: SubmitTask, origin: Origin) -> Verdict:
    """Accept a task. A task id that this session has submitted before is the same task.

    Raises `NotFound` if no worker has offered the strategy, and `Busy` if there is no room. After a restart of the
    manager, its workers are still on their way: a task that the earlier manager had accepted is accepted then anyway.
    """
    origin.require(command.projects)
    if known := state.tasks.get(command.task_id):
        if known.session_id != origin.session_id:
            raise AlreadyExists(f"there is a task {command.task_id!r} of another session")
        return Verdict(_found_reply(known))
    if command.strategy not in state.workers.offered and not command.was_accepted:
        raise NotFound(f"no worker has offered a strategy {command.strategy!r}{_why_not_offered(state, command)}")
    # Bounds for all sessions together and for each one, so that one session leaves room for others.
    mine = state.tasks.by_session.get(origin.session_id, ())
    is_full = state.tasks.unfinished >= limits.TASKS_MAX or state.tasks.bytes > limits.TASKS_BYTES_MAX
    if is_full or len(mine) >= limits.TASKS_PER_SESSION_MAX:
        raise Busy(
            f"{plural(len(mine), 'task')} of yours and {state.tasks.unfinished:,} in all are waiting: submit fewer at "
            "a time"
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
    return Verdict(_found_reply(task), (RowChanged(None, task),))


@decides(CancelTask)
def cancel(state: State, command: CancelTask, origin: Origin) -> Verdict:
    """End a task at its client's request, and stop the worker that works on it."""
    task = state.tasks.get(command.task_id)
    if task is None or task.session_id != origin.session_id:
        raise NotFound(f"there is no task {command.task_id!r} of yours: it may have ended, and been fetched")
    if task.is_over:
        return Verdict(_found_reply(task))
    ended = _ended(task, TaskState.CANCELLED, origin)
    return Verdict(
        _found_reply(ended), (RowChanged(task, ended), *_stop_worker_of(state, task), *_drop_oldest_ended(state))
    )


@decides(FinishTask)
def finish(state: State, command: FinishTask, origin: Origin) -> Verdict:
    """Record the result or fault of a task, if the worker still has it at this attempt.

    The time of the worker's prefetched task begins in the same step. Raises `LeaseLost` if the task was taken away.
    """
    task = state.tasks.get(command.task_id)
    if task is None or task.is_prefetched or not _is_held(task, command, origin):
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
    then = _mark_leaving(state, worker) if command.is_last else _start_prefetched(state, origin)
    return Verdict(_found_reply(ended), (RowChanged(task, ended), *then, *_drop_oldest_ended(state)))


@decides(BeginTask)
def begin(state: State, command: BeginTask, origin: Origin) -> Verdict:
    """Note that a worker begins a task that it was given in advance.

    If the task was taken back meanwhile, the worker works on what is no longer its own, and has to be stopped. A task
    that it was leased since, because it seemed idle, goes back to the queue.
    """
    worker = state.workers.get(origin.session_id)
    if worker is None:
        raise LeaseLost("only a worker begins tasks")
    task = state.tasks.get(command.task_id)
    if task is not None and not task.is_prefetched and _is_held(task, command, origin):
        begun = () if task.is_begun else (RowChanged(task, replace(task, is_begun=True)),)
        return Verdict(WorkerFound(worker), begun)
    if worker.is_condemned:
        return Verdict(WorkerFound(worker))
    head = state.tasks.by_worker.get(worker.worker_id)
    requeued = () if head is None else (RowChanged(head, _requeued(head)),)
    return Verdict(WorkerFound(worker), (*requeued, *_stop_worker(state, worker)))


@decides(ReportDeath)
def report_death(state: State, command: ReportDeath, _origin: Origin) -> Verdict:
    """Add the evidence of a worker's death to the task that the worker had, if there was one."""
    task = state.tasks.get(state.tasks.by_dead_pid.get(command.pid))
    if task is None:
        return Verdict(DeathNoted(None))
    # Process ids are reused: only a death without evidence is meant.
    deaths = tuple(
        replace(death, evidence=command.evidence) if death.pid == command.pid and not death.evidence else death
        for death in task.deaths
    )
    return Verdict(DeathNoted(task.task_id), (RowChanged(task, replace(task, deaths=deaths)),))


@decides(ReleaseWorker)
def release(state: State, command: ReleaseWorker, _origin: Origin) -> Verdict:
    """Mark a worker as leaving: it gets no more tasks, and its end does not count as a death of its task."""
    worker = next((each for each in state.workers if each.pid == command.pid and not each.is_leaving), None)
    return Verdict(WorkerFound(worker), tuple(_mark_leaving(state, worker)))


@decides(ListStrategies)
def list_strategies(state: State, _command: ListStrategies, _origin: Origin) -> Verdict:
    """Return the offers and workers. There is no check of scope: strategies belong to no project."""
    offers = tuple(sorted(state.workers.offered.values(), key=lambda each: each.name))
    waiting = state.tasks.queued + len(state.tasks.prefetched)
    return Verdict(StrategiesFound(offers, tuple(state.workers), waiting, len(state.tasks.by_worker)))


@decides(JoinPool)
def join(state: State, command: JoinPool, origin: Origin) -> Verdict:
    """Add a worker, which gets tasks from now on. Raises `Busy` if there are too many workers or strategies."""
    if len(state.workers) >= limits.WORKERS_MAX:
        raise Busy(f"there are {limits.WORKERS_MAX} workers already")
    names = {each.name for each in command.offers}
    if len(names | state.workers.offered.keys()) > limits.STRATEGIES_MAX:
        raise Busy(f"workers have offered {limits.STRATEGIES_MAX} strategies already")
    if state.workers.get(command.worker_id) is not None:
        raise AlreadyExists("this session works already")
    worker = Worker(command.worker_id, command.pid, command.offers, origin.now_ms, problems=command.problems)
    return Verdict(WorkerFound(worker), (RowChanged(None, worker),))


@decides(LeavePool)
def leave(state: State, command: LeavePool, origin: Origin) -> Verdict:
    """Remove a worker that is gone. Its task goes back to its place in the queue.

    If the worker had begun the task and was not asked to leave, the death counts: the next attempt has another number,
    and a task during which three workers died is quarantined.
    """
    worker = state.workers.get(command.worker_id)
    if worker is None:
        return Verdict(WorkerFound(None))
    changes: list[AnyChange] = [RowChanged(worker, None)]
    if task := state.tasks.by_worker.get(command.worker_id):
        # A worker that was asked to leave, or had not begun, did not die because of the task.
        deaths = (*task.deaths, WorkerDeath(worker.pid, origin.now_ms))
        if worker.is_leaving or not task.is_begun:
            after = _requeued(task)
        elif len(deaths) < limits.TASK_DEATHS_MAX:
            after = replace(_requeued(task), attempt=task.attempt + 1, deaths=deaths)
        else:
            fault = TaskFault(
                "TaskQuarantined", f"{plural(len(deaths), 'worker')} died while they had it: no other one gets it"
            )
            after = replace(_ended(task, TaskState.QUARANTINED, origin, fault), deaths=deaths)
            changes += _drop_oldest_ended(state)
        changes.append(RowChanged(task, after))
    changes += _requeue_prefetched(state, worker)
    return Verdict(WorkerFound(worker), tuple(changes))


@decides(LeaseTasks)
def lease(state: State, command: LeaseTasks, origin: Origin) -> Verdict:
    """Lease a task to the first idle worker for which there is one: the next in the queue.

    With `takes_back`, a task that is prefetched by a busy worker is leased if the queue has none.
    """
    idle = [each for each in _available_workers(state) if each.key not in state.tasks.by_worker]
    for worker in idle:
        names = {each.name for each in worker.offers}
        task = state.tasks.next_for(names)
        if task is None and command.takes_back:
            task = _retractable(state, names, origin)
        if task is not None:
            given = replace(task, state=TaskState.LEASED, worker_id=worker.worker_id, is_begun=True)
            leased = _with_deadline(given, origin)
            return Verdict(TasksLeased((leased,), more=len(idle) > 1), (RowChanged(task, leased),))
    return Verdict(TasksLeased(()))


@decides(ReserveTasks)
def reserve(state: State, _command: ReserveTasks, _origin: Origin) -> Verdict:
    """Prefetch a task for the first busy worker that has none yet.

    A more urgent task that is submitted later waits for it, unless an idle worker can take it.
    """
    tasks = state.tasks
    busy = [
        each for each in _available_workers(state) if each.key in tasks.by_worker and each.key not in tasks.prefetched
    ]
    for worker in busy:
        task = tasks.next_for(each.name for each in worker.offers)
        if task is not None:
            reserved = replace(task, state=TaskState.LEASED, worker_id=worker.worker_id)
            return Verdict(TasksLeased((reserved,), more=len(busy) > 1), (RowChanged(task, reserved),))
    return Verdict(TasksLeased(()))


@decides(ExpireTasks)
def expire(state: State, _command: ExpireTasks, origin: Origin) -> Verdict:
    """Fail every task whose deadline has passed, and stop the workers that work on them."""
    changes: list[AnyChange] = []
    ended: list[Task] = []
    for due_at_ms, task_id in islice(state.tasks.by_deadline, limits.TASKS_PER_STEP_MAX):
        if due_at_ms > origin.now_ms:
            break
        task = state.tasks.rows[task_id]
        fault = TaskFault("DeadlineExceeded", f"strategy {task.strategy!r} took more than {task.deadline_ms} ms")
        ended.append(_ended(task, TaskState.FAILED, origin, fault))
        changes += (RowChanged(task, ended[-1]), *_stop_worker_of(state, task))
    changes += _drop_oldest_ended(state, len(ended))
    return Verdict(TasksLeased(tuple(ended), more=len(ended) == limits.TASKS_PER_STEP_MAX), tuple(changes))


@decides(ForgetTasks)
def forget(state: State, command: ForgetTasks, _origin: Origin) -> Verdict:
    """Delete tasks whose outcome has reached their session; or, without ids, all tasks of a session that has ended."""
    mine = state.tasks.by_session.get(command.session_id, {})
    wanted = dict.fromkeys(islice(mine, limits.TASKS_PER_STEP_MAX) if command.task_ids is None else command.task_ids)
    found = [state.tasks.rows[task_id] for task_id in wanted if task_id in mine]
    gone = [task for task in found if task.is_over or command.task_ids is None]
    # A condemned worker's prefetched task goes back to the queue, unless it is deleted in this same step.
    ids = {task.task_id for task in gone}
    changes = [change for task in gone for change in (RowChanged(task, None), *_stop_worker_of(state, task, ids))]
    more = command.task_ids is None and len(mine) > len(wanted)
    return Verdict(TasksForgotten(len(gone), more), tuple(changes))


def _why_not_offered(state: State, command: SubmitTask) -> str:
    """Return why no worker offers a strategy: workers could not load it, or it is not among the offered ones."""
    problems = (problem for worker in state.workers for problem in worker.problems)
    if problem := next((each for each in problems if each.name == command.strategy), None):
        return f", because it could not be loaded: {problem}"
    names = sorted(each.name for each in state.workers.offered.values() if not each.is_job)
    alike = next((each for each in names if each.replace("_", "-") == command.strategy.replace("_", "-")), None)
    hint = "" if alike is None else f"did you mean {alike!r}? "
    return f"; {hint}offered: {', '.join(names) or 'none: start workers first'}"


def _found_reply(task: Task) -> TaskFound:
    return TaskFound(task.task_id, task.state, task.attempt)


def _ended(task: Task, state: TaskState, origin: Origin, fault: TaskFault | None = None) -> Task:
    """Return the task with its outcome. Its payload is dropped, because it is not needed any more."""
    returned = _requeued(task)
    return replace(returned, state=state, fault=fault, payload=b"", ended_at_ms=origin.now_ms)


def _is_held(task: Task, command: FinishTask | BeginTask, origin: Origin) -> bool:
    """Return True if the worker that sent the command has the task at this attempt."""
    held = task.state, task.worker_id, task.attempt
    return held == (TaskState.LEASED, origin.session_id, command.attempt)


def _available_workers(state: State) -> Iterator[Worker]:
    """Iterate over the workers that may get a task."""
    return (each for each in state.workers if not (each.is_condemned or each.is_leaving))


def _retractable(state: State, names: Collection[str], origin: Origin) -> Task | None:
    """Return the most urgent prefetched task of these strategies whose worker has been busy for a while, or None.

    A worker that began its current task just now may finish it and begin the prefetched one at this moment.
    """
    before_ms = origin.now_ms - limits.TASK_PREFETCHED_MS
    waiting = (
        task
        for worker_id, task in state.tasks.prefetched.items()
        if task.strategy in names and state.tasks.by_worker[worker_id].due_since_ms <= before_ms
    )
    return min(waiting, key=lambda task: (-task.priority, task.serial), default=None)


def _with_deadline(task: Task, origin: Origin) -> Task:
    """Return the task with its deadline: its time begins now."""
    return replace(task, due_at_ms=origin.now_ms + task.deadline_ms)


def _requeued(task: Task) -> Task:
    """Return the task as it goes back to the queue."""
    return replace(task, state=TaskState.QUEUED, worker_id=None, due_at_ms=None, is_begun=False)


def _stop_worker_of(state: State, task: Task, gone: Collection[str] = ()) -> Iterable[AnyChange]:
    """Return the changes that stop the worker of a task, if one works on it. A prefetched task stops no worker."""
    worker = state.workers.get(task.worker_id) if task.worker_id is not None and not task.is_prefetched else None
    return () if worker is None else _stop_worker(state, worker, gone)


def _stop_worker(state: State, worker: Worker, gone: Collection[str] = ()) -> Iterator[AnyChange]:
    """Yield the changes that condemn a worker. The manager kills a worker that is condemned."""
    yield RowChanged(worker, replace(worker, is_condemned=True))
    yield from _requeue_prefetched(state, worker, gone)


def _requeue_prefetched(state: State, worker: Worker, gone: Collection[str] = ()) -> Iterator[AnyChange]:
    """Yield the change that returns a worker's prefetched task to the queue, unless the task is among those `gone`."""
    task = state.tasks.prefetched.get(worker.worker_id)
    if task is not None and task.task_id not in gone:
        yield RowChanged(task, _requeued(task))


def _start_prefetched(state: State, origin: Origin) -> Iterator[AnyChange]:
    """Yield the change that begins the time of the prefetched task of the worker that has just finished another."""
    task = state.tasks.prefetched.get(origin.session_id)
    if task is not None:
        yield RowChanged(task, _with_deadline(task, origin))


def _mark_leaving(state: State, worker: Worker | None) -> Iterator[AnyChange]:
    """Yield the changes that let a worker leave: it gets no more tasks, and its prefetched one goes to another."""
    if worker is not None:
        yield RowChanged(worker, replace(worker, is_leaving=True))
        yield from _requeue_prefetched(state, worker)


def _drop_oldest_ended(state: State, new: int = 1) -> Iterable[AnyChange]:
    """Yield the deletions of the oldest outcomes that no session has fetched, to make room for `new` ones."""
    over = state.tasks.ended
    for task_id in islice(over, max(0, len(over) + new - limits.TASKS_ENDED_MAX)):
        yield RowChanged(state.tasks.rows[task_id], None)
