"""Tasks, whoever submits, works, dies, cancels or goes in whatever order: each is in one place, and ends once.

A ledger beside the state is kept from the changes alone: what was accepted, how it ended, what was forgotten.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TypeVar
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.commands import Command
from stepwell.domain.replies import AnyReply, Reply, TasksForgotten, TasksLeased
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
    ReportDeath,
    ReserveTasks,
    SubmitTask,
)
from stepwell.domain.tasks.model import Task, TaskFault, TaskState, Worker
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.verdict import AnyChange, Origin
from stepwell.errors import AlreadyExists, Busy, LeaseLost, NotFound, Refused
from tests.support.domain.tasks import MANAGER, check_tasks, derived, offers
from tests.support.domain.world import NOON_MS, arrives, image
from tests.support.model_check import UPLOADS

T = TypeVar("T")

SMALL = {"TASKS_MAX": 8, "TASKS_PER_SESSION_MAX": 6, "TASKS_ENDED_MAX": 4, "TASKS_PER_STEP_MAX": 3, "WORKERS_MAX": 4}
"""Bounds that a few steps come to."""

FAULT = TaskFault("ValueError", "no")
NOBODY = "nobody"

sessions = st.sampled_from(["alice", "bob", "carol"])
workers = st.sampled_from(["w1", "w2", "w3", "w4", "w5"])
results = st.sampled_from([b"", b"found", 1, 2, None])
skills = st.sampled_from([("s",), ("s", "other"), ("other",)])

Outcome = tuple[TaskState, bytes | None, TaskFault | None, bytes]


def outcome_of(task: Task) -> Outcome:
    """All that must not change once it is there."""
    return task.state, task.result, task.fault, task.content[0] if task.content else b""


class TaskWorld(RuleBasedStateMachine):
    """Three clients, five workers, and a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = ExitStack()
        for name, bound in SMALL.items():
            self.bounds.enter_context(patch.object(limits, name, bound))
        self.state = State()
        self.now_ms = NOON_MS
        self.accepted: dict[str, str] = {}  # by task, its session
        self.outcomes: dict[str, Outcome] = {}
        self.gone: set[str] = set()
        self.pids: list[int] = []

    def teardown(self) -> None:
        self.bounds.close()

    @initialize()
    def offer_everything(self) -> None:
        """Whatever is submitted later could be done by somebody."""
        self.join("w1", ("s", "other"))

    # What a rule does.

    def apply(self, command: Command[Reply], session: str = MANAGER) -> AnyReply | Refused:
        """Its reply, or its refusal; that changes nothing, and neither has a revision."""
        uploads = {number: (digest_of(body), len(body)) for number, body in UPLOADS.items()}
        before, kept = image(self.state), repr(derived(self.state.tasks))
        try:
            outcome = machine.apply(self.state, command, Origin(session, self.now_ms, None, uploads))
        except Refused as error:
            assert image(self.state) == before
            assert repr(derived(self.state.tasks)) == kept
            return error
        assert arrives(outcome.reply, outcome.revision)
        assert bool(outcome.changes) == (image(self.state) != before)
        for change in outcome.changes:
            self.enter(change)
        return outcome.reply

    def enter(self, change: AnyChange) -> None:
        """A change, in the ledger."""
        before, after = change.before, change.after
        if isinstance(after, Task):
            if before is None:
                assert after.task_id not in self.accepted
                self.accepted[after.task_id] = after.session_id
            if after.is_over:
                known = self.outcomes.setdefault(after.task_id, outcome_of(after))
                assert known == outcome_of(after)
            else:
                assert after.task_id not in self.outcomes
        elif isinstance(before, Task):
            assert before.task_id not in self.gone
            self.gone.add(before.task_id)

    def a_task(self, data: st.DataObject) -> str:
        """One that is there, more often than not."""
        return data.draw(st.sampled_from([*self.here, *sorted(self.gone)[-1:], NOBODY]))

    @property
    def here(self) -> list[str]:
        return [task.task_id for task in self.state.tasks]

    def task(self, task_id: str) -> Task | None:
        return self.state.tasks.get(task_id)

    # Clients.

    @precondition(lambda self: len(self.accepted) < 60)
    @rule(
        session=sessions,
        strategy=st.sampled_from(["s", "other"]),
        priority=st.sampled_from([0, 5, 5, 9]),
        deadline_ms=st.sampled_from([100, 1_000]),
        size=st.integers(0, 3),
    )
    def submit(self, session: str, strategy: str, priority: int, deadline_ms: int, size: int) -> None:
        """Accepted, unless there is no room."""
        mine = sum(task.session_id == session for task in self.state.tasks)
        unfinished = sum(not task.is_over for task in self.state.tasks)
        is_full = unfinished >= limits.TASKS_MAX or mine >= limits.TASKS_PER_SESSION_MAX
        task_id = f"t{len(self.accepted)}"
        reply = self.apply(SubmitTask(task_id, strategy, ("p",), b"x" * size, priority, deadline_ms), session)
        assert isinstance(reply, Busy) == is_full
        assert (task_id in self.accepted) == (not is_full)

    @rule(data=st.data(), session=sessions)
    def submit_again(self, data: st.DataObject, session: str) -> None:
        """The same task, or somebody else's."""
        task = self.task(self.a_task(data))
        if task is not None:
            before = image(self.state)
            reply = self.apply(SubmitTask(task.task_id, "s", ("p",), b"again"), session)
            assert isinstance(reply, AlreadyExists) == (session != task.session_id)
            assert image(self.state) == before

    @rule(data=st.data(), session=sessions)
    def cancel(self, data: st.DataObject, session: str) -> None:
        """Its own, at any time; whoever worked on it is condemned."""
        task_id = self.a_task(data)
        task = self.task(task_id)
        reply = self.apply(CancelTask(task_id), session)
        assert isinstance(reply, NotFound) == (task is None or task.session_id != session)
        if task is not None and not task.is_over and not isinstance(reply, Refused):
            assert self.outcomes[task_id][0] is TaskState.CANCELLED
            assert task.worker_id is None or self.worker(task.worker_id).is_condemned != task.is_prefetched

    @rule(data=st.data(), session=sessions)
    def receive(self, data: st.DataObject, session: str) -> None:
        """Only what is over, and only one's own, is forgotten."""
        ids = data.draw(st.lists(st.sampled_from([*self.here, NOBODY]), max_size=4))
        due = {
            task_id for task_id in ids if (task := self.task(task_id)) and task.is_over and task.session_id == session
        }
        before = set(self.gone)
        reply = self.apply(ForgetTasks(session, tuple(ids)))
        assert reply == TasksForgotten(len(due))
        assert self.gone - before == due

    @rule(session=sessions)
    def session_ends(self, session: str) -> None:
        """In steps; at their end nothing is left of it, and whoever worked for it is condemned."""
        mine = self.state.tasks.of_session(session)
        workers = [task.worker_id for task in mine if task.worker_id is not None and not task.is_prefetched]
        more = True
        while more:
            reply = self.apply(ForgetTasks(session))
            assert isinstance(reply, TasksForgotten)
            more = reply.more
        assert session not in self.state.tasks.by_session
        assert all(self.worker(each).is_condemned for each in workers)

    # Workers.

    def worker(self, worker_id: str) -> Worker:
        worker = self.state.workers.get(worker_id)
        assert worker is not None
        return worker

    @rule(worker_id=workers, strategies=skills)
    def join(self, worker_id: str, strategies: tuple[str, ...]) -> None:
        self.pids.append(101 + len(self.pids))
        is_known, is_full = worker_id in self.state.workers.rows, len(self.state.workers) >= limits.WORKERS_MAX
        reply = self.apply(JoinPool(worker_id, self.pids[-1], offers(*strategies)))
        assert isinstance(reply, Refused) == (is_known or is_full)

    @rule(worker_id=workers)
    def leave(self, worker_id: str) -> None:
        """What it had goes back, or to where nobody gets it."""
        had, ahead = self.state.tasks.by_worker.get(worker_id), self.state.tasks.prefetched.get(worker_id)
        self.apply(LeavePool(worker_id))
        for innocent in (ahead, had):
            if innocent is not None and not innocent.is_begun:
                assert self.task(innocent.task_id) == replace(
                    innocent, state=TaskState.QUEUED, worker_id=None, due_at_ms=None
                )
        if had is not None and had.is_begun:
            after = self.task(had.task_id)
            assert after is not None
            assert len(after.deaths) == len(had.deaths) + 1
            is_last = len(after.deaths) == limits.TASK_DEATHS_MAX
            assert after.state is (TaskState.QUARANTINED if is_last else TaskState.QUEUED)

    @rule(worker_id=workers)
    def die(self, worker_id: str) -> None:
        """Of what is next: three deaths of one task, which chance seldom finds."""
        self.join(worker_id, ("s", "other"))
        self.lease()
        self.leave(worker_id)

    @rule()
    def lease(self) -> None:
        """One at a time: nothing more urgent of its strategies waits, and nothing older of its session's own."""
        while True:
            waiting = [task for task in self.state.tasks if task.state is TaskState.QUEUED]
            prefetched = {task.task_id for task in self.state.tasks.prefetched.values()}
            reply = self.apply(LeaseTasks(takes_back=True))
            assert isinstance(reply, TasksLeased)
            if not reply.tasks:
                break
            (task,) = reply.tasks
            assert task.worker_id is not None
            names = {each.name for each in self.worker(task.worker_id).offers}
            could = [each for each in waiting if each.strategy in names]
            if not could:
                assert (task.is_begun, task.task_id in prefetched) == (True, True)
                continue
            assert task.priority == max(each.priority for each in could)
            alike = (task.session_id, task.strategy, task.priority)
            own = [each.serial for each in could if (each.session_id, each.strategy, each.priority) == alike]
            assert task.serial == min(own)
        for worker in self.state.workers:
            if not worker.is_condemned and worker.worker_id not in self.state.tasks.by_worker:
                names = {each.name for each in worker.offers}
                assert not any(task.strategy in names for task in waiting)

    @rule()
    def reserve(self) -> None:
        """Whoever is busy has something ahead, if anybody waits for what it can do."""
        while isinstance(reply := self.apply(ReserveTasks()), TasksLeased) and reply.tasks:
            assert reply.tasks[0].is_prefetched
        waiting = [task for task in self.state.tasks if task.state is TaskState.QUEUED]
        for worker_id in self.state.tasks.by_worker.keys() - self.state.tasks.prefetched.keys():
            names = {each.name for each in self.worker(worker_id).offers}
            assert not any(task.strategy in names for task in waiting)

    @rule(data=st.data(), stale=st.sampled_from([0, 0, 0, 1]))
    def begin(self, data: st.DataObject, stale: int) -> None:
        """What one has, when its time has come; whoever begins anything else is condemned."""
        task = self.task(self.a_task(data))
        if task is None:
            return
        others = [worker.worker_id for worker in self.state.workers]
        who = data.draw(st.sampled_from([task.worker_id or NOBODY] * 3 + others))
        reply = self.apply(BeginTask(task.task_id, task.attempt + stale), who)
        assert isinstance(reply, LeaseLost) == (who not in others)
        if who in others:
            is_right = (task.worker_id, stale, task.is_prefetched) == (who, 0, False)
            assert self.worker(who).is_condemned is not is_right

    @rule(data=st.data(), stale=st.sampled_from([0, 0, 0, 1, -1]), result=results)
    def finish(self, data: st.DataObject, stale: int, result: bytes | int | None) -> None:
        """By whoever has it, at its attempt; anybody else is late."""
        task = self.task(self.a_task(data))
        if task is None:
            return
        attempt = max(1, task.attempt + stale)
        others = [worker.worker_id for worker in self.state.workers]
        who = data.draw(st.sampled_from([task.worker_id or "w1"] * 3 + [*others, task.session_id]))
        reply = self.apply(FinishTask(task.task_id, attempt, result, FAULT if result is None else None), who)
        is_right = task.due_at_ms is not None and (who, attempt) == (task.worker_id, task.attempt)
        assert isinstance(reply, LeaseLost) == (not is_right)
        if is_right:
            assert self.outcomes[task.task_id][0] is (TaskState.FAILED if result is None else TaskState.DONE)

    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        """Straight from the queue to a result, which chance seldom finds, either."""
        self.submit("alice", "s", 5, 1_000, 1)
        self.submit("bob", "other", 5, 1_000, 1)
        self.lease()
        for worker_id, task in list(self.state.tasks.by_worker.items()):
            if data.draw(st.booleans()):
                result = data.draw(results)
                fault = FAULT if result is None else None
                reply = self.apply(FinishTask(task.task_id, task.attempt, result, fault), worker_id)
                assert not isinstance(reply, Refused)

    @rule(milliseconds=st.sampled_from([1, 99, 100, 1_000]))
    def time_passes(self, milliseconds: int) -> None:
        """What is past its deadline has failed, and nothing else."""
        self.now_ms += milliseconds
        due = {task.task_id for task in self.state.tasks if (task.due_at_ms or self.now_ms + 1) <= self.now_ms}
        ended: set[str] = set()
        more = True
        while more:
            reply = self.apply(ExpireTasks())
            assert isinstance(reply, TasksLeased)
            ended |= {task.task_id for task in reply.tasks}
            more = reply.more
        assert ended == due
        faults = [self.outcomes[task_id][2] for task_id in due]
        assert all(fault is not None and fault.kind == "DeadlineExceeded" for fault in faults)

    @rule(milliseconds=st.sampled_from([1, 100]))
    def time_passes_unseen(self, milliseconds: int) -> None:
        """A deadline can be over before anybody looks."""
        self.now_ms += milliseconds

    @rule(data=st.data())
    def report_death(self, data: st.DataObject) -> None:
        """It goes to a death that has none, and changes nothing else."""
        pid = data.draw(st.sampled_from([*self.state.tasks.by_dead_pid, *self.pids[-2:], 1]))
        known = self.state.tasks.by_dead_pid.get(pid)
        before = self.task(known) if known else None
        self.apply(ReportDeath(pid, f"of {pid}"))
        after = self.task(known) if known else None
        if before is not None and after is not None:
            assert [death.evidence for death in after.deaths if death.pid == pid] == [f"of {pid}"]
            assert (outcome_of(before), before.attempt) == (outcome_of(after), after.attempt)
        assert pid not in self.state.tasks.by_dead_pid

    # What is true of all of it.

    @invariant()
    def each_is_in_one_place(self) -> None:
        """Waiting, at work, over, or forgotten; and over for as long as it is there."""
        here = set(self.here)
        assert not here & self.gone
        assert here | self.gone == self.accepted.keys()
        for task in self.state.tasks:
            assert task.session_id == self.accepted[task.task_id]
            assert task.is_over == (task.task_id in self.outcomes)
        table = self.state.tasks
        assert table.queued + len(table.by_worker) + len(table.prefetched) + len(table.ended) == len(here)

    @invariant()
    def nothing_is_amiss(self) -> None:
        check_tasks(self.state)
        assert invariants.check(self.state) == []
        assert self.state.revision == 0

    @invariant()
    def nobody_works_twice(self) -> None:
        """A worker has one task, and one ahead; and one that is condemned has none."""
        for leased in (self.state.tasks.by_worker, self.state.tasks.prefetched):
            for worker_id, task in leased.items():
                assert task.worker_id == worker_id
                assert not self.worker(worker_id).is_condemned


TestTasks = TaskWorld.TestCase
