"""The order in which tasks are given out: by priority, session by session, each session's own in its order."""

from __future__ import annotations

import pytest

from stepwell.domain.tasks.model import OVER, StrategyOffer, TaskState, Worker
from stepwell.domain.tasks.queue import TaskTable
from tests.support.domain.tasks import Office, derived
from tests.support.domain.world import NOON_MS


@pytest.fixture
def office() -> Office:
    """Strategies, and nobody there who has them."""
    office = Office()
    office.join("w", "s", "other")
    office.leave("w")
    return office


def taken(office: Office, *strategies: str) -> list[str]:
    """What one worker gets, one after another."""
    office.join("w", *strategies)
    ids = office.order("w")
    office.leave("w")
    return ids


def test_own_order(office: Office) -> None:
    """First come, first served, whatever their ids are."""
    for task_id in ("c", "a", "b"):
        office.submit(task_id)
    assert taken(office) == ["c", "a", "b"]


def test_priority(office: Office) -> None:
    """The highest first, whenever it came, and whosever it is."""
    for number, priority in enumerate((5, 0, 9, 5, 9)):
        office.submit(f"{priority}-{number}", priority=priority, session=f"session-{number % 2}")
    assert taken(office) == ["9-2", "9-4", "5-0", "5-3", "0-1"]


def test_priority_of_one_that_comes_later(office: Office) -> None:
    """It overtakes what waits, and interrupts nobody."""
    office.submit("a")
    office.submit("b")
    office.join()
    assert [task.task_id for task in office.lease()] == ["a"]
    office.submit("urgent", priority=9)
    assert office.lease() == []
    office.finish("a")
    assert office.order() == ["urgent", "b"]


def test_sessions_take_turns(office: Office) -> None:
    """One that has submitted a hundred keeps nobody waiting for more than one of them."""
    for number in range(4):
        office.submit(f"a{number}", session="alice")
    for number in range(2):
        office.submit(f"b{number}", session="bob")
    office.submit("c0", session="carol")
    assert taken(office) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_turns_within_a_priority(office: Office) -> None:
    """Whose turn it is does not outweigh a priority, and each priority has its own turns."""
    for session in ("alice", "bob"):
        for number in range(2):
            office.submit(f"{session}-low-{number}", session=session, priority=1)
            office.submit(f"{session}-high-{number}", session=session, priority=8)
    assert taken(office) == [
        *("alice-high-0", "bob-high-0", "alice-high-1", "bob-high-1"),
        *("alice-low-0", "bob-low-0", "alice-low-1", "bob-low-1"),
    ]


def test_newcomer_is_behind_those_who_wait(office: Office) -> None:
    """And before the second of anybody's."""
    office.submit("a0", session="alice")
    office.submit("a1", session="alice")
    office.submit("b0", session="bob")
    office.join()
    office.lease()
    office.submit("c0", session="carol")
    office.finish("a0")
    assert office.order() == ["b0", "a1", "c0"]


def test_one_that_comes_again_and_again(office: Office) -> None:
    """A session whose next task comes when its last is done does not overtake whoever has many."""
    for number in range(3):
        office.submit(f"a{number}", session="alice")
    office.submit("b0", session="bob")
    office.join()
    given: list[str] = []
    for number in range(1, 4):
        for task in office.lease():
            given.append(task.task_id)
            office.finish(task.task_id)
        for task in office.lease():
            given.append(task.task_id)
            office.finish(task.task_id)
        office.submit(f"b{number}", session="bob")
    assert given == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_back_to_its_place_after_a_death(office: Office) -> None:
    """Before everything that its session has submitted since."""
    for task_id in ("a", "b", "c"):
        office.submit(task_id)
    assert office.die().worker_id == "w"
    assert office.task("a").attempt == 2
    assert taken(office) == ["a", "b", "c"]


def test_back_to_its_priority_after_a_death(office: Office) -> None:
    office.submit("low", priority=1)
    office.submit("high", priority=8)
    office.die()
    assert taken(office) == ["high", "low"]


def test_cancelled_from_the_middle(office: Office) -> None:
    for task_id in ("a", "b", "c"):
        office.submit(task_id)
    office.cancel("b")
    assert taken(office) == ["a", "c"]


def test_cancelling_costs_no_turn(office: Office) -> None:
    """A session that takes back a task of its own has got nothing, and keeps its place."""
    for number in range(2):
        office.submit(f"a{number}", session="alice")
    office.submit("b0", session="bob")
    office.cancel("a1")
    assert taken(office) == ["a0", "b0"]


def test_evidence_costs_no_turn(office: Office) -> None:
    """What is found out about a death moves nobody in the queue."""
    office.submit("a0", session="alice")
    pid = office.die().pid
    office.submit("b0", session="bob")
    office.report(pid, "segfault")
    assert taken(office) == ["a0", "b0"]


def test_strategies_that_a_worker_has(office: Office) -> None:
    """It gets no others, however urgent; those wait for somebody who has them."""
    office.submit("urgent", strategy="other", priority=9)
    office.submit("a")
    assert taken(office, "s") == ["a"]
    assert taken(office, "other") == ["urgent"]


def test_an_idle_worker_without_the_strategy(office: Office) -> None:
    """Does not stand in the way of one that has it."""
    office.join("w1", "other")
    office.join("w2", "s")
    office.submit("a")
    assert [(task.task_id, task.worker_id) for task in office.lease()] == [("a", "w2")]


def test_order_across_strategies(office: Office) -> None:
    """Of all that a worker could do: by priority, and then as they came."""
    office.submit("s1", strategy="s")
    office.submit("o1", strategy="other")
    office.submit("s2", strategy="s")
    office.submit("o2", strategy="other", priority=9)
    assert taken(office, "other", "s") == ["o2", "s1", "o1", "s2"]


def test_turns_across_strategies(office: Office) -> None:
    """Sessions take turns across strategies: one that floods one of them does not hold up the others."""
    for number in range(3):
        office.submit(f"a{number}", session="alice", strategy="s")
    office.submit("b0", session="bob", strategy="other")
    assert taken(office, "s", "other") == ["a0", "b0", "a1", "a2"]


def test_nobody_waits() -> None:
    assert TaskTable().next_of(["s"]) is None
    assert list(TaskTable().of_session("alice")) == []


def test_of_session(office: Office) -> None:
    """All of its tasks, over or not, in the order in which they came."""
    office.bring_to(TaskState.DONE, "z")
    office.submit("a")
    office.submit("b", session="bob")
    assert [task.task_id for task in office.state.tasks.of_session("alice")] == ["z", "a"]


@pytest.mark.parametrize("state", sorted(OVER))
def test_nothing_is_left(office: Office, state: TaskState) -> None:
    """When all tasks are gone, so is everything that was derived from them; only the order of acceptance goes on."""
    for number in range(3):
        office.submit(f"waits-{number}", session=f"session-{number % 2}", priority=number, strategy="other")
    office.bring_to(state, session="session-0")
    for session in ("session-0", "session-1"):
        office.end_of(session)
    table = office.state.tasks
    assert not any(derived(table).values())
    assert (table.by_dead_pid, len(table), table.next_serial) == ({}, 0, 5)


def test_undone(office: Office) -> None:
    """A swap that is undone leaves no trace: the table is as any other."""
    task = office.submit()
    table = office.state.tasks
    before = derived(table)
    table.unswap(None, task)
    assert not any(derived(table).values())
    table.swap(None, task)
    assert derived(table) == before


def test_what_was_offered_last(office: Office) -> None:
    """A later worker may know better what a strategy can."""
    better = StrategyOffer("s", ("regex",), is_partitioned=True)
    office.state.workers.swap(None, Worker("w2", 7, (better,), NOON_MS))
    office.state.workers.swap(office.state.workers.rows["w2"], None)
    assert office.state.workers.offered == {"s": better, "other": StrategyOffer("other")}
