"""Recency: newest first."""

import pytest

import stepwell as sw
from stepwell.strategies.builtin.recency import (
    CONFIDENCE_WITH_QUERY,
    CONFIDENCE_WITHOUT_QUERY,
    HALF_LIFE_MS,
    RecencyStrategy,
)
from stepwell.strategies.protocol import Partitioned, Strategy
from tests.support.strategy_views import Store, ask, found, ids

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

DAY_MS = HALF_LIFE_MS


@pytest.fixture
def recency() -> RecencyStrategy:
    return RecencyStrategy()


def week() -> Store:
    """A fragment for each day, the oldest first."""
    store = Store()
    for day in range(7):
        store.store(f"day{day}", at_ms=day * DAY_MS, kind="even" if day % 2 == 0 else "odd")
    return store


def test_newest_first(recency: RecencyStrategy) -> None:
    """Without another moment, the newest is of now, and each day halves the score."""
    results = found(recency, ask(), week().view())
    assert ids(results) == [f"day{day}" for day in range(6, -1, -1)]
    assert [each.score for each in results] == [0.5**age for age in range(7)]
    assert results[1].reason == "86400 s old"


def test_as_of(recency: RecencyStrategy) -> None:
    """The moment that the request names counts; what came after it is new, and the later revision is newer."""
    results = found(recency, ask(as_of_ms=5 * DAY_MS), week().view())
    assert ids(results) == [f"day{day}" for day in range(6, -1, -1)]
    assert [each.score for each in results[:3]] == [1.0, 1.0, 0.5]


def test_very_old(recency: RecencyStrategy) -> None:
    """What is too old for its age to count is equally old; the later revision is still the newer."""
    results = found(recency, ask(as_of_ms=10_000 * DAY_MS), week().view())
    assert ids(results) == [f"day{day}" for day in range(6, -1, -1)]
    assert {each.score for each in results} == {2.0**-1_000}
    assert results[-1].reason == "864000000 s old"
    assert ids(found(recency, ask(as_of_ms=2**64), week().view())) == ids(results)


def test_demotion_is_no_news(recency: RecencyStrategy) -> None:
    store = week()
    store.demote("day0", at_ms=7 * DAY_MS)
    assert ids(found(recency, ask(), store.view()))[-1] == "day0"


def test_a_body_is_not_older_than_those_before_it(recency: RecencyStrategy) -> None:
    """A row does not tell when its body was replaced, but it cannot have been before what has an earlier revision."""
    store = week()
    store.store("day0", "replaced", at_ms=7 * DAY_MS)
    store.demote("day0", at_ms=8 * DAY_MS)
    results = found(recency, ask(), store.view())
    assert ids(results)[:2] == ["day0", "day6"]
    assert results[0].score == results[1].score == 1.0


def test_kinds_and_projects(recency: RecencyStrategy) -> None:
    store = week()
    store.store("other", project="q", at_ms=9 * DAY_MS)
    assert ids(found(recency, ask(kinds=["odd"]), store.view())) == ["day5", "day3", "day1"]
    assert ids(found(recency, ask(), store.view("p", "q")))[0] == "day6", "the other project was not asked for"
    assert ids(found(recency, ask("", "q", "p"), store.view("p", "q")))[0] == "other"


def test_confidence(recency: RecencyStrategy) -> None:
    """It is what remains if nothing is asked; where there is nothing, it has nothing to say."""
    view = week().view()
    assert recency.can_handle(ask(), view) == CONFIDENCE_WITHOUT_QUERY
    assert recency.can_handle(ask("words"), view) == CONFIDENCE_WITH_QUERY
    assert recency.can_handle(ask(kinds=["none"]), view) == 0
    assert recency.can_handle(ask(), Store().view()) == 0
    assert found(recency, ask(), Store().view()) == ()


def test_its_interface(recency: RecencyStrategy) -> None:
    assert isinstance(recency, Strategy)
    assert isinstance(recency, Partitioned)
    assert "written last" in recency.explain()


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_do_not_show(recency: RecencyStrategy, parts: int) -> None:
    """What is new is decided by the whole, so that the shares of any number of workers come to the same."""
    view = week().view()
    shares = [found(recency, ask(), recency.partition(view, part, parts), 3) for part in range(parts)]
    assert recency.merge(ask(), shares, 3) == found(recency, ask(), view, 3)


def test_a_real_view(recency: RecencyStrategy) -> None:
    """What was stored in the same millisecond is told apart by its revision; shares come to the same."""
    with sw.Runtime.start() as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store_many([sw.Fragment(fragment_id=each, body=each) for each in "abc"])
        client.tiers.store(sw.Fragment(fragment_id="a", body="again"))
        view = client.view()
        results = found(recency, ask(), view)
        assert ids(results) == ["a", "c", "b"]
        shares = [found(recency, ask(), recency.partition(view, part, 2)) for part in range(2)]
        assert recency.merge(ask(), shares, 1_000) == results
