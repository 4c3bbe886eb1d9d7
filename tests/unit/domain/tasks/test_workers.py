"""Workers: who joins, how many, and what they offer."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.replies import StrategiesFound
from stepwell.domain.tasks.commands import ForgetTasks, JoinPool, LeaseTasks, ListStrategies, SubmitTask
from stepwell.domain.tasks.model import StrategyProblem
from stepwell.errors import AlreadyExists, Busy, NotFound
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


def test_problems_are_listed_once(task_world: TaskWorld) -> None:
    """All workers of a pool have the same, though a reason may differ by an address; they end with their workers."""
    here, there = (StrategyProblem("mine", "a:b", f"<object at {each}> is no strategy") for each in (1, 2))
    other = StrategyProblem("a", "a:c", "no model")
    for number, problems in enumerate(((here, other), (there,)), 2):
        task_world.do(JoinPool(f"w{number}", number, offers("s"), problems), session=MANAGER)
    assert [each.key for each in task_world.do(ListStrategies()).problems] == [other.key, here.key]
    task_world.leave("w2")
    assert task_world.do(ListStrategies()).problems == (there,)
    task_world.leave("w3")
    assert task_world.do(ListStrategies()).problems == ()


def test_refusal_says_why_a_strategy_is_missing(task_world: TaskWorld) -> None:
    """It could not be loaded, or its name is spelled in another way."""
    problem = StrategyProblem("mine", "a:b, of c 1.0", "ModuleNotFoundError: a")
    task_world.do(JoinPool("w2", 7, offers("by-size", "to_do"), (problem,)), session=MANAGER)
    for strategy, told in {
        "mine": r"'mine', because it could not be loaded: mine \(a:b, of c 1.0\): ModuleNotFoundError: a",
        "by_size": "'by_size'; did you mean 'by-size'[?] offered: by-size, s, to_do",
        "to-do": "'to-do'; did you mean 'to_do'[?] offered",
        "else": "'else'; offered: by-size, s, to_do",
    }.items():
        task_world.refuse(SubmitTask("t", strategy, ("p",), b""), NotFound, told)


@pytest.mark.parametrize("command", [ForgetTasks("alice"), LeaseTasks(), ListStrategies()])
def test_nothing_there(command: ForgetTasks | LeaseTasks | ListStrategies) -> None:
    """Where there is nothing, nothing happens."""
    task_world = TaskWorld()
    before = image(task_world.state)
    task_world.do(command)
    assert image(task_world.state) == before
