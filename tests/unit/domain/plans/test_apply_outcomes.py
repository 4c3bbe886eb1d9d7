"""What is left of tasks that are over, or that workers died of: for as long as somebody may ask, and no longer."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.replies import TasksForgotten
from stepwell.domain.tasks.commands import FinishTask, ForgetTasks
from stepwell.domain.tasks.model import OVER, TaskState
from stepwell.domain.verdict import Origin
from stepwell.errors import LeaseLost
from tests.support.domain.tasks import MANAGER, Office
from tests.support.domain.world import NOON_MS, image


@pytest.fixture
def office() -> Office:
    """A strategy, and nobody there who has it."""
    office = Office()
    office.join()
    office.leave()
    return office


def evidence(office: Office, task_id: str = "t") -> list[str]:
    return [death.evidence for death in office.task(task_id).deaths]


# Evidence.


def test_evidence_goes_to_its_task(office: Office) -> None:
    """By the number of the process, whether its task waits, runs again or is over."""
    office.submit()
    first = office.die("w1").pid
    assert office.report(first, "segfault") == "t"
    second = office.die("w2").pid
    office.join("w3")
    office.lease()
    assert office.report(second, "abort") == "t"
    assert office.task().state is TaskState.LEASED
    third = office.worker("w3").pid
    office.leave("w3")
    assert office.report(third, "killed") == "t"
    assert evidence(office) == ["segfault", "abort", "killed"]
    assert office.state.tasks.by_dead_pid == {}


def test_evidence_of_nobody(office: Office) -> None:
    """Of a process that was no worker, or an idle one, or of which everything is known: it changes nothing."""
    office.submit()
    pid = office.die().pid
    office.report(pid, "segfault")
    idle = office.join("idle", "other").pid
    office.leave("idle")
    before = image(office.state)
    for each in (pid, idle, 1):
        assert office.report(each, "again") is None
    assert image(office.state) == before


def test_evidence_after_it_was_forgotten(office: Office) -> None:
    office.submit()
    pid = office.die().pid
    office.cancel()
    office.forget("t")
    assert office.report(pid, "segfault") is None


def test_evidence_of_two_tasks(office: Office) -> None:
    """Each death is its own task's."""
    office.submit("t1")
    office.submit("t2")
    first, second = office.join("w1").pid, office.join("w2").pid
    office.lease()
    office.leave("w2")
    office.leave("w1")
    assert (office.report(first, "one"), office.report(second, "two")) == ("t1", "t2")
    assert (evidence(office, "t1"), evidence(office, "t2")) == (["one"], ["two"])


def test_evidence_that_comes_after_the_next_death(office: Office) -> None:
    """Evidence finds its death, also when the next worker has died before it comes.

    A quarantined task would otherwise wait for it in vain.
    """
    office.submit()
    pids = [office.die(f"w{number}").pid for number in range(limits.TASK_DEATHS_MAX)]
    for pid in pids:
        assert office.report(pid, f"of {pid}") == "t"
    assert evidence(office) == [f"of {pid}" for pid in pids]


# Forgetting.


@pytest.mark.parametrize("state", sorted(OVER))
def test_received(office: Office, state: TaskState) -> None:
    """Its session knows of it: nothing is left, and under its id there can be another one."""
    office.bring_to(state)
    assert office.forget("t") == TasksForgotten(1)
    assert len(office.state.tasks) == 0
    assert office.submit().state is TaskState.QUEUED


def test_received_before_it_is_over(office: Office) -> None:
    """That cannot be: it is not forgotten, whether it waits or runs."""
    office.submit("t1")
    office.submit("t2")
    office.join()
    office.lease()
    assert office.forget("t1", "t2", "nobody") == TasksForgotten(0)
    assert [office.task(each).state for each in ("t1", "t2")] == [TaskState.LEASED, TaskState.QUEUED]
    assert not office.worker().is_condemned


def test_received_twice(office: Office) -> None:
    """One message after another."""
    office.bring_to(TaskState.DONE)
    assert office.forget("t").count == 1
    assert office.forget("t").count == 0


def test_received_twice_at_once(office: Office) -> None:
    """Named twice in one message, it is forgotten once: deleting it twice would break the state.

    Otherwise any follower could end the manager with one message.
    """
    office.bring_to(TaskState.DONE)
    assert office.forget("t", "t") == TasksForgotten(1)


def test_session_that_is_over(office: Office) -> None:
    """All that it had goes, in whatever state; who works on it is condemned; others keep theirs."""
    office.bring_to(TaskState.DONE, "over")
    office.submit("runs", priority=9)
    office.submit("waits")
    office.submit("hers", session="bob")
    office.join()
    office.lease()
    office.end_of()
    assert [task.task_id for task in office.state.tasks] == ["hers"]
    assert office.worker().is_condemned


def test_session_that_is_over_is_counted(office: Office) -> None:
    """`count` is how many tasks are gone; workers that were condemned are not among them."""
    office.submit()
    office.join()
    office.lease()
    assert office.end_of() == TasksForgotten(1)


def test_session_that_is_over_in_steps(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number at once, the oldest first; `more` until none is left."""
    monkeypatch.setattr(limits, "TASKS_PER_STEP_MAX", 2)
    for number in range(5):
        office.submit(f"t{number}")
    assert [office.end_of() for _ in range(3)] == [
        TasksForgotten(2, more=True),
        TasksForgotten(2, more=True),
        TasksForgotten(1),
    ]
    assert len(office.state.tasks) == 0


def test_exactly_one_step(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TASKS_PER_STEP_MAX", 2)
    for number in range(2):
        office.submit(f"t{number}")
    assert office.end_of() == TasksForgotten(2)


def test_result_after_its_session_is_over(office: Office) -> None:
    """Its worker has not heard of that yet."""
    office.submit()
    office.join()
    office.lease()
    office.end_of()
    office.refuse(FinishTask("t", 1, b"found"), LeaseLost, "no longer", session="w")
    office.leave()
    assert len(office.state.tasks) == 0


# Outcomes that nobody fetches.


def test_oldest_outcome_makes_way(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they ended, whatever they are called and whoever they belong to."""
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 2)
    for task_id, session in (("z", "alice"), ("a", "bob"), ("m", "alice")):
        office.bring_to(TaskState.DONE, task_id, session)
    assert list(office.state.tasks.over) == ["a", "m"]
    office.bring_to(TaskState.DONE, "b")
    assert list(office.state.tasks.over) == ["m", "b"]


def test_what_is_not_over_makes_no_way(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 1)
    office.submit("waits", priority=0)
    office.bring_to(TaskState.DONE, "t1")
    office.bring_to(TaskState.DONE, "t2")
    assert [(task.task_id, task.state) for task in office.state.tasks] == [
        ("t2", TaskState.DONE),
        ("waits", TaskState.QUEUED),
    ]


@pytest.mark.parametrize("state", sorted(OVER - {TaskState.DONE}))
def test_oldest_outcome_makes_way_for_any(office: Office, monkeypatch: pytest.MonkeyPatch, state: TaskState) -> None:
    """However a task ends, the outcomes that nobody has fetched stay within their bound."""
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 2)
    for number in range(4):
        office.bring_to(state, f"t{number}", session=f"session-{number}")
    assert list(office.state.tasks.over) == ["t2", "t3"]


def test_expired_together(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several that end in one step make room for all of themselves."""
    monkeypatch.setattr(limits, "TASKS_ENDED_MAX", 2)
    office.bring_to(TaskState.DONE, "old")
    for number in range(2):
        office.join(f"w{number}")
        office.submit(f"t{number}")
    office.lease()
    office.wait(1_000)
    assert office.expire() == ["t0", "t1"]
    assert list(office.state.tasks.over) == ["t0", "t1"]


def test_no_revision(office: Office) -> None:
    """A whole life of a task is not worth a revision; what is kept has its own all along."""
    office.bring_to(TaskState.QUARANTINED)
    outcome = machine.apply(office.state, ForgetTasks("alice"), Origin(MANAGER, NOON_MS))
    assert outcome.changes
    assert (outcome.revision, office.state.revision) == (0, 0)
    office.world.store("a")
    assert office.state.revision == 1
    office.bring_to(TaskState.DONE)
    assert office.state.revision == 1
