"""Tasks: each that is accepted has one outcome, and only the current attempt's result counts."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.replies import TaskFound, TasksForgotten
from stepwell.domain.state import State
from stepwell.domain.tasks.commands import (
    BeginTask,
    CancelTask,
    FinishTask,
    LeaseTasks,
    SubmitTask,
)
from stepwell.domain.tasks.model import ENDED, TaskFault, TaskState, WorkerDeath
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import AlreadyExists, Busy, InvalidArgument, LeaseLost, NotFound, OutOfScope, TierFull
from tests.support.domain.tasks import TaskWorld, check_tasks
from tests.support.domain.world import NOON_MS, image

FAULT = TaskFault("ValueError", "no such thing")


# Submission.


def test_accepted(task_world: TaskWorld) -> None:
    """It is queued, at its first attempt, and nobody has it."""
    task = task_world.submit("t", payload=b"12345")
    assert (task.state, task.attempt, task.worker_id, task.due_at_ms) == (TaskState.QUEUED, 1, None, None)
    assert (task.session_id, task.submitted_at_ms) == ("alice", NOON_MS)
    assert task_world.state.tasks.bytes == 5


def test_submitted_again(task_world: TaskWorld) -> None:
    """It is the same task, however far it is, even when there would be no room for another."""
    task_world.submit()
    again = SubmitTask("t", "s", ("p",), b"something else")
    assert task_world.do(again) == TaskFound("t", TaskState.QUEUED, 1)
    task_world.lease()
    assert task_world.do(again) == TaskFound("t", TaskState.LEASED, 1)
    task_world.finish()
    assert task_world.do(again) == TaskFound("t", TaskState.DONE, 1)
    assert len(task_world.state.tasks) == 1


def test_submitted_again_when_full(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    task_world.submit()
    monkeypatch.setattr(limits, "TASKS_MAX", 1)
    assert task_world.do(SubmitTask("t", "s", ("p",), b"")) == TaskFound("t", TaskState.QUEUED, 1)


def test_id_of_another_session(task_world: TaskWorld) -> None:
    """Nobody gets at somebody else's task by its id."""
    task_world.submit()
    task_world.refuse(SubmitTask("t", "s", ("p",), b""), AlreadyExists, "of another session", session="bob")
    task_world.refuse(CancelTask("t"), NotFound, "no task 't' of yours", session="bob")
    assert task_world.forget("t", session="bob").count == 0
    assert task_world.end_of("bob") == TasksForgotten(0)
    assert task_world.task().state is TaskState.QUEUED


def test_strategy_that_nobody_offers(task_world: TaskWorld) -> None:
    """It could wait for ever; the refusal says what there is."""
    task_world.refuse(SubmitTask("t", "other", ("p",), b""), NotFound, "offered: s$")
    TaskWorld().refuse(SubmitTask("t", "s", ("p",), b""), NotFound, "none: start workers first")


def test_strategy_that_was_offered(task_world: TaskWorld) -> None:
    """It waits for the next worker: the pool may just be starting another one."""
    task_world.leave()
    task_world.submit()
    assert task_world.lease() == []
    task_world.join("w2")
    assert [task.worker_id for task in task_world.lease()] == ["w2"]


def test_submitted_to_another_life_of_the_manager() -> None:
    """One that was accepted before is accepted again, although no worker has come yet; it waits for them."""
    task_world = TaskWorld()
    task_world.do(SubmitTask("t", "s", ("p",), b"", was_accepted=True))
    assert task_world.task().state is TaskState.QUEUED
    task_world.join()
    assert [task.task_id for task in task_world.lease()] == ["t"]


def test_out_of_scope(task_world: TaskWorld) -> None:
    task_world.refuse(SubmitTask("t", "s", ("p", "q"), b""), OutOfScope, "'q'", projects=("p",))


@pytest.mark.parametrize(
    "name, bound", [("TASKS_MAX", 2), ("TASKS_PER_SESSION_MAX", 2), ("TASKS_BYTES_MAX", 2 * len(b"do it") - 1)]
)
def test_overload(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch, name: str, bound: int) -> None:
    """Past a bound the answer is Busy, at once; when one has gone, there is room for one."""
    monkeypatch.setattr(limits, name, bound)
    task_world.submit("t1")
    task_world.submit("t2")
    task_world.refuse(SubmitTask("t3", "s", ("p",), b"do it"), Busy, "2 tasks of yours and 2 in all are waiting")
    task_world.cancel("t1")
    task_world.forget("t1")
    assert task_world.submit("t3").state is TaskState.QUEUED


def test_one_session_leaves_room_for_others(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TASKS_PER_SESSION_MAX", 1)
    task_world.submit("t1")
    task_world.refuse(SubmitTask("t2", "s", ("p",), b""), Busy, "submit fewer at a time")
    task_world.submit("t3", session="bob")


# Work.


def test_leased(task_world: TaskWorld) -> None:
    """To one worker, at one attempt, until a deadline that begins with the work and not with the wait."""
    task_world.submit(deadline_ms=70)
    task_world.wait(1_000)
    (task,) = task_world.lease()
    assert task == task_world.task()
    assert (task.state, task.worker_id, task.attempt, task.due_at_ms) == (
        TaskState.LEASED,
        "w",
        1,
        NOON_MS + 1_070,
    )


def test_one_at_a_time(busy: TaskWorld) -> None:
    """Whoever works gets no second task."""
    busy.submit("t2")
    assert busy.lease() == []
    busy.finish()
    assert [task.task_id for task in busy.lease()] == ["t2"]


def test_one_ahead(busy: TaskWorld) -> None:
    """Whoever works has what it does next. Its time begins when the other is finished, and it says when it begins."""
    for task_id in ("t2", "t3"):
        busy.submit(task_id, deadline_ms=70)
    assert [(task.task_id, task.due_at_ms) for task in busy.reserve()] == [("t2", None)]
    busy.wait(500)
    busy.finish()
    assert (busy.task("t2").due_at_ms, busy.task("t2").is_begun) == (NOON_MS + 570, False)
    assert not busy.begin("t2").is_condemned
    assert busy.task("t2").is_begun
    busy.finish("t2")
    assert busy.task("t2").state is TaskState.DONE


def test_one_ahead_of_who_can_do_it(busy: TaskWorld) -> None:
    """A busy worker that does not offer the strategy is passed over, and a later one gets the task."""
    busy.join("x", "other")
    busy.submit("t2", strategy="other")
    busy.lease()
    busy.submit("t3", strategy="other")
    assert [(task.task_id, task.worker_id) for task in busy.reserve()] == [("t3", "x")]


def test_one_ahead_of_who_dies(busy: TaskWorld) -> None:
    """Nobody has died of what was not begun, and it goes back to its place."""
    for task_id in ("t2", "t3"):
        busy.submit(task_id)
    busy.reserve()
    busy.leave()
    assert (busy.task("t2").state, busy.task("t2").attempt, busy.task("t2").deaths) == (TaskState.QUEUED, 1, ())
    busy.join()
    assert busy.order() == ["t", "t2", "t3"]


def test_one_ahead_of_who_dies_between_two(busy: TaskWorld) -> None:
    """Its time had begun, but nobody had said that they began."""
    busy.submit("t2")
    busy.reserve()
    busy.finish()
    busy.leave()
    assert (busy.task("t2").state, busy.task("t2").attempt, busy.task("t2").deaths) == (TaskState.QUEUED, 1, ())


def test_one_ahead_is_cancelled(busy: TaskWorld) -> None:
    """Its worker is left alone; but if it begins, it has to be stopped, and what it should do next goes to another."""
    for task_id in ("t2", "t3"):
        busy.submit(task_id)
    busy.reserve()
    busy.cancel("t2")
    assert not busy.worker().is_condemned
    busy.reserve()
    busy.finish()
    assert busy.task("t3").worker_id == "w"
    assert busy.begin("t2").worker_id == "w"
    assert (busy.worker().is_condemned, busy.task("t3").state) == (True, TaskState.QUEUED)


def test_one_ahead_of_the_condemned(busy: TaskWorld) -> None:
    """What lies with somebody who will be killed lies there no more."""
    busy.submit("t2")
    busy.reserve()
    busy.cancel()
    assert (busy.worker().is_condemned, busy.task("t2").state) == (True, TaskState.QUEUED)


def test_one_ahead_of_a_session_that_ends(busy: TaskWorld) -> None:
    """Both of them go, and the worker with them; in one step or in two."""
    busy.submit("t2")
    busy.reserve()
    busy.end_of()
    assert (len(busy.state.tasks), busy.worker().is_condemned) == (0, True)


def test_one_ahead_of_who_leaves(busy: TaskWorld) -> None:
    """A worker that ends with this task gives back the next."""
    busy.submit("t2")
    busy.reserve()
    busy.do(FinishTask("t", 1, b"found", None, is_last=True), session="w")
    assert (busy.worker().is_leaving, busy.task("t2").state) == (True, TaskState.QUEUED)


def test_one_ahead_of_who_is_slow(busy: TaskWorld) -> None:
    """Whoever is idle gets it, once it has lain there for a while."""
    busy.submit("t2")
    busy.reserve()
    busy.join("w2")
    assert busy.lease() == []
    busy.wait(limits.TASK_PREFETCHED_MS)
    assert busy.do(LeaseTasks()).tasks == ()  # somebody may have said that it begins
    assert [(task.task_id, task.worker_id, task.attempt) for task in busy.lease()] == [("t2", "w2", 1)]
    busy.finish("t2")


def test_begins_what_is_ahead_too_early(busy: TaskWorld) -> None:
    """One thing at a time: who does otherwise does not know what it does."""
    busy.submit("t2")
    busy.reserve()
    busy.begin("t2")
    assert (busy.worker().is_condemned, busy.task("t2").state) == (True, TaskState.QUEUED)


def test_only_workers_begin(busy: TaskWorld) -> None:
    busy.refuse(BeginTask("t", 1), LeaseLost, "only a worker")


def test_more_to_give_out(task_world: TaskWorld) -> None:
    """One at each step: `more` says whether another could get something."""
    task_world.join("w2")
    task_world.submit("t1")
    task_world.submit("t2")
    first = task_world.do(LeaseTasks())
    second = task_world.do(LeaseTasks())
    assert [(each.tasks[0].task_id, each.more) for each in (first, second)] == [("t1", True), ("t2", False)]
    assert task_world.do(LeaseTasks()).tasks == ()


def test_done(busy: TaskWorld) -> None:
    """Its result is kept, its payload is not needed any more, its worker is free."""
    busy.wait(10)
    assert busy.finish(result=b"found") == TaskFound("t", TaskState.DONE, 1)
    task = busy.task()
    assert (task.result, task.fault, task.payload, task.ended_at_ms) == (b"found", None, b"", NOON_MS + 10)
    assert busy.state.tasks.bytes == len(b"found")
    assert not busy.worker().is_condemned


def test_failed(busy: TaskWorld) -> None:
    """What a strategy raised is its outcome: it is not tried again."""
    busy.finish(fault=FAULT)
    task = busy.task()
    assert (task.state, task.fault, task.result, task.attempt) == (TaskState.FAILED, FAULT, None, 1)
    assert busy.lease() == []


@pytest.mark.parametrize("result, fault", [(None, None), (b"found", FAULT)])
def test_neither_or_both(busy: TaskWorld, result: bytes | None, fault: TaskFault | None) -> None:
    busy.refuse(FinishTask("t", 1, result, fault), InvalidArgument, "a result or with a fault", session="w")


def test_empty_result(busy: TaskWorld) -> None:
    """Nothing found is a result, too."""
    busy.finish(result=b"")
    assert (busy.task().state, busy.task().result) == (TaskState.DONE, b"")


@pytest.mark.parametrize(
    "task_id, attempt, session",
    [
        pytest.param("t", 2, "w", id="another attempt"),
        pytest.param("t", 1, "w2", id="another worker"),
        pytest.param("t", 1, "alice", id="its own client"),
        pytest.param("t2", 1, "w", id="a task that waits"),
        pytest.param("nobody", 1, "w", id="no task"),
    ],
)
def test_not_yours(busy: TaskWorld, task_id: str, attempt: int, session: str) -> None:
    busy.submit("t2")
    busy.refuse(FinishTask(task_id, attempt, b"x"), LeaseLost, f"'{task_id}' is not, or no longer", session=session)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_one_outcome(state: TaskState) -> None:
    """Once it is over, nothing changes that: no result, no cancellation, no deadline, no death."""
    task_world = TaskWorld()
    before = task_world.bring_to(state)
    task_world.join()
    task_world.wait(10_000)
    assert task_world.lease() == []
    task_world.refuse(FinishTask("t", before.attempt, b"x"), LeaseLost, "no longer", session="w")
    assert task_world.cancel() == TaskFound("t", state, before.attempt)
    assert task_world.expire() == []
    assert not task_world.worker().is_condemned
    task_world.leave()
    assert task_world.task() == before


def test_large_result(busy: TaskWorld) -> None:
    """It was uploaded: it is a body that the task holds until it is forgotten."""
    held = (digest_of(b"large"), 5)
    origin = Origin("w", NOON_MS, uploads={7: held})
    machine.apply(busy.state, FinishTask("t", 1, 7), origin)
    task = busy.task()
    assert (task.result, task.held, task.carried_bytes) == (None, (held,), 0)
    assert held[0] in busy.state.bodies
    check_tasks(busy.state)
    assert invariants.check(busy.state) == []
    busy.forget("t")
    assert held[0] not in busy.state.bodies
    assert busy.state.bodies.bytes == 0


def test_large_result_that_was_not_uploaded(busy: TaskWorld) -> None:
    """The worker can still say so: the task is its own."""
    busy.refuse(FinishTask("t", 1, 7), InvalidArgument, "there is no upload 7", session="w")
    busy.finish(fault=FAULT)


def test_large_result_without_room() -> None:
    """A result has to find room among all bodies; where there is none, the worker is told."""
    task_world = TaskWorld()
    task_world.state = task_world.world.state = State(TierBudget(bodies_bytes=4))
    task_world.join()
    task_world.submit()
    task_world.lease()
    before = image(task_world.state)
    with pytest.raises(TierFull):
        machine.apply(
            task_world.state, FinishTask("t", 1, 7), Origin("w", NOON_MS, uploads={7: (digest_of(b"large"), 5)})
        )
    assert image(task_world.state) == before


# Deaths.


def test_death_gives_it_back(busy: TaskWorld) -> None:
    """Queued, at the next attempt; who died, and when, is remembered."""
    pid = busy.worker().pid
    busy.wait(10)
    busy.leave()
    task = busy.task()
    assert (task.state, task.attempt, task.payload) == (TaskState.QUEUED, 2, b"do it")
    assert task.deaths == (WorkerDeath(pid, NOON_MS + 10),)


def test_late_result(busy: TaskWorld) -> None:
    """Of an attempt that is over, even of a worker that came back under its old name."""
    busy.leave()
    busy.refuse(FinishTask("t", 1, b"late"), LeaseLost, "no longer, yours at attempt 1", session="w")
    busy.join("w")
    busy.lease()
    busy.refuse(FinishTask("t", 1, b"late"), LeaseLost, "no longer, yours at attempt 1", session="w")
    busy.finish(result=b"in time")
    assert (busy.task().attempt, busy.task().result) == (2, b"in time")


def test_deadline_begins_anew_with_each_attempt(busy: TaskWorld) -> None:
    busy.wait(900)
    busy.leave()
    busy.join()
    busy.lease()
    assert busy.task().due_at_ms == NOON_MS + 1_900


def test_quarantine(task_world: TaskWorld) -> None:
    """The third death is the last: its task gets no other worker, and says who died of it."""
    task_world.leave()
    task_world.submit()
    pids = [task_world.die(f"w{number}").pid for number in range(limits.TASK_DEATHS_MAX)]
    task = task_world.task()
    assert task.state is TaskState.QUARANTINED
    assert task.fault is not None
    assert (task.fault.kind, [death.pid for death in task.deaths]) == ("TaskQuarantined", pids)
    assert task.attempt == limits.TASK_DEATHS_MAX
    task_world.join("w9")
    assert task_world.lease() == []


def test_idle_death(task_world: TaskWorld) -> None:
    """Nobody's task is the worse for it; and who was never there cannot leave."""
    task_world.submit()
    task_world.leave()
    assert (task_world.task().attempt, task_world.task().deaths) == (1, ())
    assert task_world.leave() is None


def test_released(busy: TaskWorld) -> None:
    """Who is stopped in good order has died of nothing, gets nothing more, and may finish what it does."""
    busy.submit("t2")
    busy.reserve()
    busy.release()
    assert (busy.worker().is_leaving, busy.task("t2").state, busy.reserve()) == (True, TaskState.QUEUED, [])
    assert busy.release() is None
    busy.leave()
    assert (busy.task().state, busy.task().attempt, busy.task().deaths) == (TaskState.QUEUED, 1, ())
    busy.join()
    busy.lease()
    busy.release()
    busy.finish()
    assert busy.task().state is TaskState.DONE


# Deadlines.


def test_deadline(busy: TaskWorld) -> None:
    """At it, and not before, the task has failed and its worker is condemned; nobody tries it again."""
    busy.wait(999)
    assert busy.expire() == []
    busy.wait(1)
    assert busy.expire() == ["t"]
    task = busy.task()
    assert task.fault is not None
    assert (task.state, task.fault.kind) == (TaskState.FAILED, "DeadlineExceeded")
    assert "'s' took more than 1000 ms" in task.fault.message
    assert busy.worker().is_condemned
    busy.join("w2")
    assert busy.lease() == []


def test_deadline_counts_no_wait(task_world: TaskWorld) -> None:
    """A task that waits has all the time in the world."""
    task_world.leave()
    task_world.submit()
    task_world.wait(100_000)
    assert task_world.expire() == []


def test_deadlines_in_steps(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earliest first, a bounded number at once."""
    monkeypatch.setattr(limits, "TASKS_PER_STEP_MAX", 2)
    for number in range(3):
        task_world.join(f"w{number}")
        task_world.submit(f"t{number}", deadline_ms=100 - number)
    task_world.lease()
    task_world.wait(1_000)
    assert task_world.expire() == ["t2", "t1"]
    assert task_world.expire() == ["t0"]


def test_condemned(busy: TaskWorld) -> None:
    """It gets no more; and its death is nobody's."""
    busy.wait(1_000)
    busy.expire()
    busy.submit("t2")
    assert busy.lease() == []
    assert busy.leave() is not None
    assert (busy.task("t2").attempt, busy.task("t2").deaths) == (1, ())
    assert busy.task("t").deaths == ()


# Cancellation.


def test_cancelled_while_it_waits(task_world: TaskWorld) -> None:
    """Nobody gets it, and nobody is condemned."""
    task_world.submit()
    assert task_world.cancel() == TaskFound("t", TaskState.CANCELLED, 1)
    assert task_world.lease() == []
    assert not task_world.worker().is_condemned


def test_cancelled_while_it_runs(busy: TaskWorld) -> None:
    """There is no other way to stop a strategy than to kill its worker; what that one finds is refused."""
    busy.cancel()
    assert (busy.task().state, busy.task().worker_id) == (TaskState.CANCELLED, None)
    assert busy.worker().is_condemned
    busy.refuse(FinishTask("t", 1, b"x"), LeaseLost, "no longer", session="w")


def test_nothing_to_cancel(task_world: TaskWorld) -> None:
    task_world.refuse(CancelTask("t"), NotFound, "it may have ended, and been fetched")
