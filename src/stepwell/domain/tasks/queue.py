"""The tables of tasks and workers, and the order in which tasks are given out.

The highest priority first; of equal ones, the sessions take turns; a session's own in the order in which they came, so
that one that goes back to the queue goes back to its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict, SortedList

from stepwell.domain.tables import Table
from stepwell.domain.tasks.model import StrategyOffer, Task, TaskState, Worker


class _Turn:
    """A session that waits at one priority: its place among the others, and for how many of each strategy."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: Counter[str] = Counter()


class _Line:
    """Tasks of one strategy and priority, by session, the session whose turn it is first."""

    def __init__(self) -> None:
        self._sessions: SortedDict[int, SortedDict[int, Task]] = SortedDict()

    def __bool__(self) -> bool:
        return bool(self._sessions)

    @property
    def first(self) -> tuple[int, Task]:
        turn, waiting = self._sessions.peekitem(0)
        return turn, waiting.peekitem(0)[1]

    def put(self, turn: int, task: Task) -> None:
        self._sessions.setdefault(turn, SortedDict())[task.serial] = task

    def take_out(self, turn: int, task: Task) -> None:
        waiting = self._sessions[turn]
        del waiting[task.serial]
        if not waiting:
            del self._sessions[turn]

    def move(self, turn: int, to: int) -> None:
        self._sessions[to] = self._sessions.pop(turn)


class TaskTable(Table[Task]):
    """Tasks by id, in their lines, by worker, by session, by deadline, and by when they ended."""

    def __init__(self) -> None:
        super().__init__()
        self.next_serial = 1
        self.by_worker: dict[str, Task] = {}  # what each is doing
        self.ahead: dict[str, Task] = {}  # what each will do next
        self.by_session: dict[str, dict[str, None]] = {}
        self.by_due: SortedList[tuple[int, str]] = SortedList()
        self.over: dict[str, None] = {}  # in the order in which they ended
        self.by_dead_pid: dict[int, str] = {}  # whose worker died last under that number
        self.queued = 0
        self.bytes = 0  # of payloads and results
        self._lines: dict[str, SortedDict[int, _Line]] = {}  # by strategy and, negative, priority
        self._turns: dict[tuple[int, str], _Turn] = {}  # by priority and session, of those that wait
        self._next_turn = 1

    @property
    def unfinished(self) -> int:
        return len(self.rows) - len(self.over)

    def next_of(self, strategies: Iterable[str]) -> Task | None:
        """Which of the tasks that somebody with these strategies could do is next."""
        lines = [found for name in strategies if (found := self._lines.get(name))]
        heads: list[tuple[int, Task]] = [each.peekitem(0)[1].first for each in lines]
        best = min(heads, key=lambda head: (-head[1].priority, head[0], head[1].serial), default=None)
        return None if best is None else best[1]

    def of_session(self, session_id: str) -> Iterator[Task]:
        for task_id in self.by_session.get(session_id, ()):
            yield self.rows[task_id]

    def swap(self, before: Task | None, after: Task | None) -> None:
        if before is not None and after is not None and _place(before) == _place(after):  # there is evidence
            self._replace(before, after)
            return
        if before is not None:
            self._leave(before, is_given=after is not None and after.state is TaskState.LEASED)
            if after is None:
                self._forget(before)
        super().swap(before, after)
        if after is not None:
            self._enter(after, is_new=before is None)

    def _replace(self, before: Task, after: Task) -> None:
        """Where it stands, it stays."""
        super().swap(before, after)
        if after.state is TaskState.QUEUED:
            turn = self._turns[after.priority, after.session_id]
            self._lines[after.strategy][-after.priority].put(turn.number, after)
        elif after.worker_id is not None:
            self._desks(after)[after.worker_id] = after
        self._leave_deaths(before)
        self._enter_deaths(after)

    def _enter(self, task: Task, *, is_new: bool) -> None:
        self.bytes += task.carried_bytes
        if is_new:
            self.next_serial = max(self.next_serial, task.serial + 1)
            self.by_session.setdefault(task.session_id, {})[task.task_id] = None
        if task.is_over:
            self.over[task.task_id] = None
        elif task.state is TaskState.QUEUED:
            self.queued += 1
            self._enter_line(task)
        else:
            assert task.worker_id is not None
            self._desks(task)[task.worker_id] = task
            if task.due_at_ms is not None:
                self.by_due.add((task.due_at_ms, task.task_id))
        self._enter_deaths(task)

    def _desks(self, task: Task) -> dict[str, Task]:
        return self.ahead if task.is_ahead else self.by_worker

    def _enter_deaths(self, task: Task) -> None:
        self.by_dead_pid.update({death.pid: task.task_id for death in task.deaths if not death.evidence})

    def _leave_deaths(self, task: Task) -> None:
        for death in task.deaths:
            if self.by_dead_pid.get(death.pid) == task.task_id:
                del self.by_dead_pid[death.pid]

    def _leave(self, task: Task, *, is_given: bool) -> None:
        self.bytes -= task.carried_bytes
        if task.is_over:
            del self.over[task.task_id]
        elif task.state is TaskState.QUEUED:
            self.queued -= 1
            self._leave_line(task, is_given=is_given)
        else:
            assert task.worker_id is not None
            del self._desks(task)[task.worker_id]
            if task.due_at_ms is not None:
                self.by_due.remove((task.due_at_ms, task.task_id))
        self._leave_deaths(task)

    def _enter_line(self, task: Task) -> None:
        key = task.priority, task.session_id
        if key not in self._turns:
            self._turns[key] = _Turn(self._new_turn())
        turn = self._turns[key]
        turn.waiting[task.strategy] += 1
        lines = self._lines.setdefault(task.strategy, SortedDict())
        lines.setdefault(-task.priority, _Line()).put(turn.number, task)

    def _leave_line(self, task: Task, *, is_given: bool) -> None:
        """Whoever has got something is behind all others of its priority, whatever strategy they wait for."""
        key = task.priority, task.session_id
        turn = self._turns[key]
        lines = self._lines[task.strategy]
        line: _Line = lines[-task.priority]
        line.take_out(turn.number, task)
        if not line:
            del lines[-task.priority]
            if not lines:
                del self._lines[task.strategy]
        turn.waiting -= Counter((task.strategy,))
        if not turn.waiting:
            del self._turns[key]
        elif is_given:
            number = self._new_turn()
            for strategy in turn.waiting:
                self._lines[strategy][-task.priority].move(turn.number, number)
            turn.number = number

    def _new_turn(self) -> int:
        self._next_turn += 1
        return self._next_turn

    def _forget(self, task: Task) -> None:
        mine = self.by_session[task.session_id]
        del mine[task.task_id]
        if not mine:
            del self.by_session[task.session_id]


def _place(task: Task) -> tuple[TaskState, str | None, int | None]:
    return task.state, task.worker_id, task.due_at_ms


class WorkerTable(Table[Worker]):
    """Workers by id, and what they offer, or have ever offered."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: dict[str, StrategyOffer] = {}

    def swap(self, before: Worker | None, after: Worker | None) -> None:
        super().swap(before, after)
        if after is not None:
            self.offered.update({each.name: each for each in after.offers})
