"""The tables of tasks and workers, and the queue: the order in which tasks are leased to workers.

A higher priority comes first. Among tasks of equal priority the sessions take turns (round robin), so that a session
with many tasks cannot starve the others. The tasks of one session come in the order in which they were accepted. A task
that goes back to the queue, because its worker died, goes back to its place.

A session has one turn for each priority, whatever strategies its tasks need: being served for one strategy moves the
session behind the others for all strategies of that priority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict, SortedList

from stepwell.domain.tables import SortedTable
from stepwell.domain.tasks.model import StrategyOffer, Task, TaskState, Worker


class _SessionTurn:
    """A session with queued tasks of one priority: its turn among the sessions, and its tasks by strategy.

    The session with the smallest number is next. It gets a new, largest number each time one of its tasks is leased.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: Counter[str] = Counter()


class _SessionQueues:
    """The queued tasks of one strategy and priority: a queue for each session, in the order of the sessions' turns."""

    def __init__(self) -> None:
        self._sessions: SortedDict[int, SortedDict[int, Task]] = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def first(self) -> tuple[int, Task]:
        """The next task, and the turn of its session."""
        turn, waiting = self._sessions.peekitem(0)
        return turn, waiting.peekitem(0)[1]

    def put(self, turn: int, task: Task) -> None:
        """Add a task to the queue of the session with this turn, at the place of its serial number."""
        self._sessions.setdefault(turn, SortedDict())[task.serial] = task

    def remove(self, turn: int, task: Task) -> None:
        """Remove a task from the queue of the session with this turn."""
        waiting = self._sessions[turn]
        del waiting[task.serial]
        if not waiting:
            del self._sessions[turn]

    def move(self, turn: int, to: int) -> None:
        """Give a session's queue another turn."""
        self._sessions[to] = self._sessions.pop(turn)


class TaskTable(SortedTable[Task]):
    """Tasks by id, with the queue and the indexes by worker, session, deadline and end.

    A task that is not queued and has not ended is leased to a worker: in `by_worker` if it is the worker's current
    task, in `prefetched` if it is to be the next one. A worker has at most one of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next_serial = 1
        self.by_worker: dict[str, Task] = {}  # the current task of each worker
        self.prefetched: dict[str, Task] = {}  # the next task of each worker
        self.by_session: dict[str, dict[str, None]] = {}
        self.by_deadline: SortedList[tuple[int, str]] = SortedList()
        self.ended: dict[str, None] = {}  # task ids, in the order in which the tasks ended
        self.by_dead_pid: dict[int, str] = {}  # the task that the dead worker had, until there is evidence
        self.queued = 0
        self.bytes = 0  # of payloads and results, which are held in the manager's memory
        self._queues: dict[str, SortedDict[int, _SessionQueues]] = {}  # by strategy and negative priority
        self._turns: dict[
            tuple[int, str], _SessionTurn
        ] = {}  # by priority and session; only sessions with queued tasks
        self._last_turn = 1

    @property
    def unfinished(self) -> int:
        """The number of tasks that are queued or leased."""
        return len(self.rows) - len(self.ended)

    def next_for(self, strategies: Iterable[str]) -> Task | None:
        """Return the next queued task for a worker that has these strategies, or None."""
        queues = [found for name in strategies if (found := self._queues.get(name))]
        # Each strategy's first task, and the best of these: a worker has few strategies, so that this needs no index.
        heads: list[tuple[int, Task]] = [each.peekitem(0)[1].first for each in queues]
        best = min(heads, key=lambda head: (-head[1].priority, head[0], head[1].serial), default=None)
        return None if best is None else best[1]

    def of_session(self, session_id: str) -> Iterator[Task]:
        """Iterate over a session's tasks in the order in which they were accepted."""
        for task_id in self.by_session.get(session_id, ()):
            yield self.rows[task_id]

    def swap(self, before: Task | None, after: Task | None) -> None:
        """Replace a task by its successor, and update all indexes."""
        if before is not None and after is not None and _position(before) == _position(after):
            self._replace(before, after)
            return
        if before is not None:
            self._unindex(before, is_leased=after is not None and after.state is TaskState.LEASED)
            if after is None:
                self._drop_from_session(before)
        super().swap(before, after)
        if after is not None:
            self._index(after, is_new=before is None)

    def _replace(self, before: Task, after: Task) -> None:
        """Replace a task that stays where it is: it has begun, or there is evidence of a death."""
        super().swap(before, after)
        if after.state is TaskState.QUEUED:
            turn = self._turns[after.priority, after.session_id]
            self._queues[after.strategy][-after.priority].put(turn.number, after)
        elif after.worker_id is not None:
            self._slots_of(after)[after.worker_id] = after
        self._unindex_deaths(before)
        self._index_deaths(after)

    def _index(self, task: Task, *, is_new: bool) -> None:
        """Add a task to the indexes of its state."""
        self.bytes += task.carried_bytes
        if is_new:
            self.next_serial = max(self.next_serial, task.serial + 1)
            self.by_session.setdefault(task.session_id, {})[task.task_id] = None
        if task.is_over:
            self.ended[task.task_id] = None
        elif task.state is TaskState.QUEUED:
            self.queued += 1
            self._enqueue(task)
        else:
            assert task.worker_id is not None
            self._slots_of(task)[task.worker_id] = task
            if task.due_at_ms is not None:
                self.by_deadline.add((task.due_at_ms, task.task_id))
        self._index_deaths(task)

    def _slots_of(self, task: Task) -> dict[str, Task]:
        """Return the index of leased tasks that a task belongs to."""
        return self.prefetched if task.is_prefetched else self.by_worker

    def _index_deaths(self, task: Task) -> None:
        self.by_dead_pid.update({death.pid: task.task_id for death in task.deaths if not death.evidence})

    def _unindex_deaths(self, task: Task) -> None:
        for death in task.deaths:
            if self.by_dead_pid.get(death.pid) == task.task_id:
                del self.by_dead_pid[death.pid]

    def _unindex(self, task: Task, *, is_leased: bool) -> None:
        """Undo `_index`. `is_leased` says that a task leaves the queue for a worker."""
        self.bytes -= task.carried_bytes
        if task.is_over:
            del self.ended[task.task_id]
        elif task.state is TaskState.QUEUED:
            self.queued -= 1
            self._dequeue(task, is_leased=is_leased)
        else:
            assert task.worker_id is not None
            del self._slots_of(task)[task.worker_id]
            if task.due_at_ms is not None:
                self.by_deadline.remove((task.due_at_ms, task.task_id))
        self._unindex_deaths(task)

    def _enqueue(self, task: Task) -> None:
        """Add a task to the queue. A session that had no task of this priority gets the last turn."""
        key = task.priority, task.session_id
        if key not in self._turns:
            self._turns[key] = _SessionTurn(self._next_turn_number())
        turn = self._turns[key]
        turn.waiting[task.strategy] += 1
        queues = self._queues.setdefault(task.strategy, SortedDict())
        queues.setdefault(-task.priority, _SessionQueues()).put(turn.number, task)

    def _dequeue(self, task: Task, *, is_leased: bool) -> None:
        """Remove a task from the queue.

        If it was leased, its session's turn comes behind all others of the priority.
        """
        key = task.priority, task.session_id
        turn = self._turns[key]
        queues = self._queues[task.strategy]
        queue: _SessionQueues = queues[-task.priority]
        queue.remove(turn.number, task)
        if not queue:
            del queues[-task.priority]
            if not queues:
                del self._queues[task.strategy]
        turn.waiting -= Counter((task.strategy,))
        if not turn.waiting:
            del self._turns[key]
        elif is_leased:
            # The session has been served: it goes behind all others, in the queues of all its strategies.
            number = self._next_turn_number()
            for strategy in turn.waiting:
                self._queues[strategy][-task.priority].move(turn.number, number)
            turn.number = number

    def _next_turn_number(self) -> int:
        """Return a number that is larger than all turns."""
        self._last_turn += 1
        return self._last_turn

    def _drop_from_session(self, task: Task) -> None:
        """Remove a deleted task from the index of sessions."""
        mine = self.by_session[task.session_id]
        del mine[task.task_id]
        if not mine:
            del self.by_session[task.session_id]


def _position(task: Task) -> tuple[TaskState, str | None, int | None]:
    """Return the fields that decide in which indexes a task is."""
    return task.state, task.worker_id, task.due_at_ms


class WorkerTable(SortedTable[Worker]):
    """Workers by id, and every strategy that a worker has offered since the manager started.

    An offer outlives its worker, so that a task submitted while a worker is being replaced is accepted and waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offered: dict[str, StrategyOffer] = {}

    def swap(self, before: Worker | None, after: Worker | None) -> None:
        """Replace a worker by its successor, and remember its offers."""
        super().swap(before, after)
        if after is not None:
            self.offered.update({each.name: each for each in after.offers})
