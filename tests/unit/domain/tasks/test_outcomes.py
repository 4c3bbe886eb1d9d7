"""What is left of tasks that are over, or that workers died of: for as long as somebody may ask, and no longer."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.replies import TasksForgotten
from stepwell.domain.tasks.commands import FinishTask, ForgetTasks
from stepwell.domain.tasks.model import ENDED, TaskState
from stepwell.domain.verdict import Origin
from stepwell.errors import LeaseLost
from tests.support.domain.tasks import MANAGER, TaskWorld
from tests.support.domain.world import NOON_MS, image


@pytest.fixture
def task_world() -> TaskWorld:
    """A strategy, and nobody there who has it."""
    task_world = TaskWorld()
    task_world.join()
    task_world.leave()
    return task_world


def evidence(task_world: TaskWorld, task_id: str = "t") -> list[str]:
    return [death.evidence for death in task_world.task(task_id).deaths]


# Evidence.


def test_evidence_goes_to_its_task(task_world: TaskWorld) -> None:
    """By the number of the process, whether its task waits, runs again or is over."""
    task_world.submit()
    first = task_world.die("w1").pid
    assert task_world.report(first, "segfault") == "t"
    second = task_world.die("w2").pid
    task_world.join("w3")
    task_world.lease()
    assert task_world.report(second, "abort") == "t"
    assert task_world.task().state is TaskState.LEASED
    third = task_world.worker("w3").pid
    task_world.leave("w3")
    assert task_world.report(third, "killed") == "t"
    assert evidence(task_world) == ["segfault", "abort", "killed"]
    assert task_world.state.tasks.by_dead_pid == {}


def test_evidence_of_nobody(task_world: TaskWorld) -> None:
    """Of a process that was no worker, or an idle one, or of which everything is known: it changes nothing."""
    task_world.submit()
    pid = task_world.die().pid
    task_world.report(pid, "segfault")
    idle = task_world.join("idle", "other").pid
    task_world.leave("idle")
    before = image(task_world.state)
    for each in (pid, idle, 1):
        assert task_world.report(each, "again") is None
    assert image(task_world.state) == before


def test_evidence_after_it_was_forgotten(task_world: TaskWorld) -> None:
    task_world.submit()
    pid = task_world.die().pid
    task_world.cancel()
    task_world.forget("t")
    assert task_world.report(pid, "segfault") is None


def test_evidence_of_two_tasks(task_world: TaskWorld) -> None:
    """Each death is its own task's."""
    task_world.submit("t1")
    task_world.submit("t2")
    first, second = task_world.join("w1").pid, task_world.join("w2").pid
    task_world.lease()
    task_world.leave("w2")
    task_world.leave("w1")
    assert (task_world.report(first, "one"), task_world.report(second, "two")) == ("t1", "t2")
    assert (evidence(task_world, "t1"), evidence(task_world, "t2")) == (["one"], ["two"])


def test_evidence_that_comes_after_the_next_death(task_world: TaskWorld) -> None:
    """Evidence finds its death, also when the next worker has died before it comes.

    A quarantined task would otherwise wait for it in vain.
    """
    task_world.submit()
    pids = [task_world.die(f"w{number}").pid for number in range(limits.TASK_DEATHS_MAX)]
    for pid in pids:
        assert task_world.report(pid, f"of {pid}") == "t"
    assert evidence(task_world) == [f"of {pid}" for pid in pids]


# Forgetting.


@pytest.mark.parametrize("state", sorted(ENDED))
def test_received(task_world: TaskWorld, state: TaskState) -> None:
    """Its session knows of it: nothing is left, and under its id there can be another one."""
    task_world.bring_to(state)
    assert task_world.forget("t") == TasksForgotten(1)
    assert len(task_world.state.tasks) == 0
    assert task_world.submit().state is TaskState.QUEUED


def test_received_before_it_is_over(task_world: TaskWorld) -> None:
    """That cannot be: it is not forgotten, whether it waits or runs."""
    task_world.submit("t1")
    task_world.submit("t2")
    task_world.join()
    task_world.lease()
    assert task_world.forget("t1", "t2", "nobody") == TasksForgotten(0)
    assert [task_world.task(each).state for each in ("t1", "t2")] == [TaskState.LEASED, TaskState.QUEUED]
    assert not task_world.worker().is_condemned


def test_received_twice(task_world: TaskWorld) -> None:
    """One message after another."""
    task_world.bring_to(TaskState.DONE)
    assert task_world.forget("t").count == 1
    assert task_world.forget("t").count == 0


def test_received_twice_at_once(task_world: TaskWorld) -> None:
    """Named twice in one message, it is forgotten once: deleting it twice would break the state.

    Otherwise any follower could end the manager with one message.
    """
    task_world.bring_to(TaskState.DONE)
    assert task_world.forget("t", "t") == TasksForgotten(1)


def test_session_that_is_over(task_world: TaskWorld) -> None:
    """All that it had goes, in whatever state; who works on it is condemned; others keep theirs."""
    task_world.bring_to(TaskState.DONE, "over")
    task_world.submit("runs", priority=9)
    task_world.submit("waits")
    task_world.submit("hers", session="bob")
    task_world.join()
    task_world.lease()
    task_world.end_of()
    assert [task.task_id for task in task_world.state.tasks] == ["hers"]
    assert task_world.worker().is_condemned


def test_session_that_is_over_is_counted(task_world: TaskWorld) -> None:
    """`count` is how many tasks are gone; workers that were condemned are not among them."""
    task_world.submit()
    task_world.join()
    task_world.lease()
    assert task_world.end_of() == TasksForgotten(1)


def test_session_that_is_over_in_steps(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number at once, the oldest first; `more` until none is left."""
    monkeypatch.setattr(limits, "TASKS_PER_STEP_MAX", 2)
    for number in range(5):
        task_world.submit(f"t{number}")
    assert [task_world.end_of() for _ in range(3)] == [
        TasksForgotten(2, more=True),
        TasksForgotten(2, more=True),
        TasksForgotten(1),
    ]
    assert len(task_world.state.tasks) == 0


def test_exactly_one_step(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TASKS_PER_STEP_MAX", 2)
    for number in range(2):
        task_world.submit(f"t{number}")
    assert task_world.end_of() == TasksForgotten(2)


def test_result_after_its_session_is_over(task_world: TaskWorld) -> None:
    """Its worker has not heard of that yet."""
    task_world.submit()
    task_world.join()
    task_world.lease()
    task_world.end_of()
    task_world.refuse(FinishTask("t", 1, b"found"), LeaseLost, "no longer", session="w")
    task_world.leave()
    assert len(task_world.state.tasks) == 0


# Outcomes that nobody fetches.


def test_oldest_outcome_makes_way(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they ended, whatever they are called and whoever they belong to."""
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 2)
    for task_id, session in (("z", "alice"), ("a", "bob"), ("m", "alice")):
        task_world.bring_to(TaskState.DONE, task_id, session)
    assert list(task_world.state.tasks.ended) == ["a", "m"]
    task_world.bring_to(TaskState.DONE, "b")
    assert list(task_world.state.tasks.ended) == ["m", "b"]


def test_what_is_not_over_makes_no_way(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 1)
    task_world.submit("waits", priority=0)
    task_world.bring_to(TaskState.DONE, "t1")
    task_world.bring_to(TaskState.DONE, "t2")
    assert [(task.task_id, task.state) for task in task_world.state.tasks] == [
        ("t2", TaskState.DONE),
        ("waits", TaskState.QUEUED),
    ]


@pytest.mark.parametrize("state", sorted(ENDED - {TaskState.DONE}))
def test_oldest_outcome_makes_way_for_any(
    task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch, state: TaskState
) -> None:
    """However a task ends, the outcomes that nobody has fetched stay within their bound."""
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 2)
    for number in range(4):
        task_world.bring_to(state, f"t{number}", session=f"session-{number}")
    assert list(task_world.state.tasks.ended) == ["t2", "t3"]


def test_expired_together(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several that end in one step make room for all of themselves."""
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 2)
    task_world.bring_to(TaskState.DONE, "old")
    for number in range(2):
        task_world.join(f"w{number}")
        task_world.submit(f"t{number}")
    task_world.lease()
    task_world.wait(1_000)
    assert task_world.expire() == ["t0", "t1"]
    assert list(task_world.state.tasks.ended) == ["t0", "t1"]


def test_no_revision(task_world: TaskWorld) -> None:
    """A whole life of a task is not worth a revision; what is kept has its own all along."""
    task_world.bring_to(TaskState.QUARANTINED)
    outcome = machine.apply(task_world.state, ForgetTasks("alice"), Origin(MANAGER, NOON_MS))
    assert outcome.changes
    assert (outcome.revision, task_world.state.revision) == (0, 0)
    task_world.world.store("a")
    assert task_world.state.revision == 1
    task_world.bring_to(TaskState.DONE)
    assert task_world.state.revision == 1
