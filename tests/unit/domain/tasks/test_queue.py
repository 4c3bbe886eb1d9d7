"""The order in which tasks are given out: by priority, session by session, each session's own in its order."""

from __future__ import annotations

import pytest

from stepwell.domain.tasks.model import ENDED, StrategyOffer, TaskState, Worker
from stepwell.domain.tasks.queue import TaskTable
from tests.support.domain.tasks import TaskWorld, derived
from tests.support.domain.world import NOON_MS


@pytest.fixture
def task_world() -> TaskWorld:
    """Strategies, and nobody there who has them."""
    task_world = TaskWorld()
    task_world.join("w", "s", "other")
    task_world.leave("w")
    return task_world


def taken(task_world: TaskWorld, *strategies: str) -> list[str]:
    """What one worker gets, one after another."""
    task_world.join("w", *strategies)
    ids = task_world.order("w")
    task_world.leave("w")
    return ids


def test_own_order(task_world: TaskWorld) -> None:
    """First come, first served, whatever their ids are."""
    for task_id in ("c", "a", "b"):
        task_world.submit(task_id)
    assert taken(task_world) == ["c", "a", "b"]


def test_priority(task_world: TaskWorld) -> None:
    """The highest first, whenever it came, and whosever it is."""
    for number, priority in enumerate((5, 0, 9, 5, 9)):
        task_world.submit(f"{priority}-{number}", priority=priority, session=f"session-{number % 2}")
    assert taken(task_world) == ["9-2", "9-4", "5-0", "5-3", "0-1"]


def test_priority_of_one_that_comes_later(task_world: TaskWorld) -> None:
    """It overtakes what waits, and interrupts nobody."""
    task_world.submit("a")
    task_world.submit("b")
    task_world.join()
    assert [task.task_id for task in task_world.lease()] == ["a"]
    task_world.submit("urgent", priority=9)
    assert task_world.lease() == []
    task_world.finish("a")
    assert task_world.order() == ["urgent", "b"]


def test_sessions_take_turns(task_world: TaskWorld) -> None:
    """One that has submitted a hundred keeps nobody waiting for more than one of them."""
    for number in range(4):
        task_world.submit(f"a{number}", session="alice")
    for number in range(2):
        task_world.submit(f"b{number}", session="bob")
    task_world.submit("c0", session="carol")
    assert taken(task_world) == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_turns_within_a_priority(task_world: TaskWorld) -> None:
    """Whose turn it is does not outweigh a priority, and each priority has its own turns."""
    for session in ("alice", "bob"):
        for number in range(2):
            task_world.submit(f"{session}-low-{number}", session=session, priority=1)
            task_world.submit(f"{session}-high-{number}", session=session, priority=8)
    assert taken(task_world) == [
        *("alice-high-0", "bob-high-0", "alice-high-1", "bob-high-1"),
        *("alice-low-0", "bob-low-0", "alice-low-1", "bob-low-1"),
    ]


def test_newcomer_is_behind_those_who_wait(task_world: TaskWorld) -> None:
    """And before the second of anybody's."""
    task_world.submit("a0", session="alice")
    task_world.submit("a1", session="alice")
    task_world.submit("b0", session="bob")
    task_world.join()
    task_world.lease()
    task_world.submit("c0", session="carol")
    task_world.finish("a0")
    assert task_world.order() == ["b0", "a1", "c0"]


def test_one_that_comes_again_and_again(task_world: TaskWorld) -> None:
    """A session whose next task comes when its last is done does not overtake whoever has many."""
    for number in range(3):
        task_world.submit(f"a{number}", session="alice")
    task_world.submit("b0", session="bob")
    task_world.join()
    given: list[str] = []
    for number in range(1, 4):
        for task in task_world.lease():
            given.append(task.task_id)
            task_world.finish(task.task_id)
        for task in task_world.lease():
            given.append(task.task_id)
            task_world.finish(task.task_id)
        task_world.submit(f"b{number}", session="bob")
    assert given == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_back_to_its_place_after_a_death(task_world: TaskWorld) -> None:
    """Before everything that its session has submitted since."""
    for task_id in ("a", "b", "c"):
        task_world.submit(task_id)
    assert task_world.die().worker_id == "w"
    assert task_world.task("a").attempt == 2
    assert taken(task_world) == ["a", "b", "c"]


def test_back_to_its_priority_after_a_death(task_world: TaskWorld) -> None:
    task_world.submit("low", priority=1)
    task_world.submit("high", priority=8)
    task_world.die()
    assert taken(task_world) == ["high", "low"]


def test_cancelled_from_the_middle(task_world: TaskWorld) -> None:
    for task_id in ("a", "b", "c"):
        task_world.submit(task_id)
    task_world.cancel("b")
    assert taken(task_world) == ["a", "c"]


def test_cancelling_costs_no_turn(task_world: TaskWorld) -> None:
    """A session that takes back a task of its own has got nothing, and keeps its place."""
    for number in range(2):
        task_world.submit(f"a{number}", session="alice")
    task_world.submit("b0", session="bob")
    task_world.cancel("a1")
    assert taken(task_world) == ["a0", "b0"]


def test_evidence_costs_no_turn(task_world: TaskWorld) -> None:
    """What is found out about a death moves nobody in the queue."""
    task_world.submit("a0", session="alice")
    pid = task_world.die().pid
    task_world.submit("b0", session="bob")
    task_world.report(pid, "segfault")
    assert taken(task_world) == ["a0", "b0"]


def test_strategies_that_a_worker_has(task_world: TaskWorld) -> None:
    """It gets no others, however urgent; those wait for somebody who has them."""
    task_world.submit("urgent", strategy="other", priority=9)
    task_world.submit("a")
    assert taken(task_world, "s") == ["a"]
    assert taken(task_world, "other") == ["urgent"]


def test_an_idle_worker_without_the_strategy(task_world: TaskWorld) -> None:
    """Does not stand in the way of one that has it."""
    task_world.join("w1", "other")
    task_world.join("w2", "s")
    task_world.submit("a")
    assert [(task.task_id, task.worker_id) for task in task_world.lease()] == [("a", "w2")]


def test_order_across_strategies(task_world: TaskWorld) -> None:
    """Of all that a worker could do: by priority, and then as they came."""
    task_world.submit("s1", strategy="s")
    task_world.submit("o1", strategy="other")
    task_world.submit("s2", strategy="s")
    task_world.submit("o2", strategy="other", priority=9)
    assert taken(task_world, "other", "s") == ["o2", "s1", "o1", "s2"]


def test_turns_across_strategies(task_world: TaskWorld) -> None:
    """Sessions take turns across strategies: one that floods one of them does not hold up the others."""
    for number in range(3):
        task_world.submit(f"a{number}", session="alice", strategy="s")
    task_world.submit("b0", session="bob", strategy="other")
    assert taken(task_world, "s", "other") == ["a0", "b0", "a1", "a2"]


def test_nobody_waits() -> None:
    assert TaskTable().next_for(["s"]) is None
    assert list(TaskTable().of_session("alice")) == []


def test_of_session(task_world: TaskWorld) -> None:
    """All of its tasks, over or not, in the order in which they came."""
    task_world.bring_to(TaskState.DONE, "z")
    task_world.submit("a")
    task_world.submit("b", session="bob")
    assert [task.task_id for task in task_world.state.tasks.of_session("alice")] == ["z", "a"]


@pytest.mark.parametrize("state", sorted(ENDED))
def test_nothing_is_left(task_world: TaskWorld, state: TaskState) -> None:
    """When all tasks are gone, so is everything that was derived from them; only the order of acceptance goes on."""
    for number in range(3):
        task_world.submit(f"waits-{number}", session=f"session-{number % 2}", priority=number, strategy="other")
    task_world.bring_to(state, session="session-0")
    for session in ("session-0", "session-1"):
        task_world.end_of(session)
    table = task_world.state.tasks
    assert not any(derived(table).values())
    assert (table.by_dead_pid, len(table), table.next_serial) == ({}, 0, 5)


def test_undone(task_world: TaskWorld) -> None:
    """A swap that is undone leaves no trace: the table is as any other."""
    task = task_world.submit()
    table = task_world.state.tasks
    before = derived(table)
    table.unswap(None, task)
    assert not any(derived(table).values())
    table.swap(None, task)
    assert derived(table) == before


def test_what_was_offered_last(task_world: TaskWorld) -> None:
    """A later worker may know better what a strategy can."""
    better = StrategyOffer("s", ("regex",), is_partitioned=True)
    task_world.state.workers.swap(None, Worker("w2", 7, (better,), NOON_MS))
    task_world.state.workers.swap(task_world.state.workers.rows["w2"], None)
    assert task_world.state.workers.offered == {"s": better, "other": StrategyOffer("other")}
