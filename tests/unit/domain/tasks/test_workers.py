"""Workers: who joins, how many, and what they offer."""

from __future__ import annotations

import pytest

from stepwell import limits
from stepwell.domain.replies import StrategiesFound
from stepwell.domain.tasks.commands import ForgetTasks, JoinPool, LeaseTasks, ListStrategies
from stepwell.errors import AlreadyExists, Busy
from tests.support.domain.tasks import MANAGER, Office, offers
from tests.support.domain.world import image


def test_joins_once(office: Office) -> None:
    office.refuse(JoinPool("w", 7, offers("s")), AlreadyExists, "works already", session=MANAGER)


def test_too_many_workers(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKERS_MAX", 1)
    office.refuse(JoinPool("w2", 7, offers("s")), Busy, "1 workers already", session=MANAGER)
    office.leave()
    office.join("w2")


def test_too_many_strategies(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was offered counts on; what is offered again does not count twice."""
    monkeypatch.setattr(limits, "STRATEGIES_MAX", 2)
    office.join("w2", "s", "other")
    office.refuse(JoinPool("w3", 7, offers("s", "third")), Busy, "2 strategies already", session=MANAGER)


def test_listed(busy: Office) -> None:
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
    office = Office()
    before = image(office.state)
    office.do(command)
    assert image(office.state) == before
