"""Workers: who joins, how many, and what they offer."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.replies import StrategiesFound
from stepwell.domain.tasks.commands import ForgetTasks, JoinPool, LeaseTasks, ListStrategies
from stepwell.errors import AlreadyExists, Busy
from tests.support.domain.tasks import MANAGER, TaskWorld, offers
from tests.support.domain.world import image


def test_joins_once(task_world: TaskWorld) -> None:
    task_world.refuse(JoinPool("w", 7, offers("s")), AlreadyExists, "works already", session=MANAGER)


def test_too_many_workers(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKERS_MAX", 1)
    task_world.refuse(JoinPool("w2", 7, offers("s")), Busy, "1 workers already", session=MANAGER)
    task_world.leave()
    task_world.join("w2")


def test_too_many_strategies(task_world: TaskWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was offered counts on; what is offered again does not count twice."""
    monkeypatch.setattr(limits, "STRATEGIES_MAX", 2)
    task_world.join("w2", "s", "other")
    task_world.refuse(JoinPool("w3", 7, offers("s", "third")), Busy, "2 strategies already", session=MANAGER)


def test_listed(busy: TaskWorld) -> None:
    """What there is to ask for, in order of name, and how the workers are; also when they are gone."""
    busy.join("w2", "a", "s")
    busy.submit("t2", strategy="a")
    found = busy.do(ListStrategies())
    assert found == StrategiesFound(offers("a", "s"), (busy.worker("w"), busy.worker("w2")), 1, 1)
    busy.leave("w")
    busy.leave("w2")
    assert busy.do(ListStrategies()) == StrategiesFound(offers("a", "s"), (), 2, 0)


@pytest.mark.parametrize("command", [ForgetTasks("alice"), LeaseTasks(), ListStrategies()])
def test_nothing_there(command: ForgetTasks | LeaseTasks | ListStrategies) -> None:
    """Where there is nothing, nothing happens."""
    task_world = TaskWorld()
    before = image(task_world.state)
    task_world.do(command)
    assert image(task_world.state) == before
