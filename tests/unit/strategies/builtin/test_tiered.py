"""Tiered: hot before warm before cold."""

import pytest

from stepwell.strategies.builtin.tiered import CONFIDENCE_WITH_QUERY, CONFIDENCE_WITHOUT_QUERY, TieredStrategy
from stepwell.strategies.protocol import Strategy
from tests.support.strategy_views import Store, ask, found, ids


@pytest.fixture
def tiered() -> TieredStrategy:
    return TieredStrategy()


def shelves() -> Store:
    """Two fragments in each tier; the first of each has more of the words."""
    store = Store()
    for tier in ("cold", "warm", "hot"):
        store.store(f"{tier}1", "red red green", kind="even")
        store.store(f"{tier}2", "red and other words", kind="odd")
    for fragment_id in ("cold1", "cold2", "warm1", "warm2", "cold2", "cold1"):
        store.demote(fragment_id)
    return store


def test_without_a_query(tiered: TieredStrategy) -> None:
    """Within a tier, what came there last."""
    results = found(tiered, ask(), shelves().view())
    assert ids(results) == ["hot2", "hot1", "warm2", "warm1", "cold1", "cold2"]
    assert [each.score for each in results] == sorted((each.score for each in results), reverse=True)
    assert results[2].reason == "is warm"


def test_with_a_query(tiered: TieredStrategy) -> None:
    """Within a tier, what has most of the words; what has none is not shown."""
    store = shelves()
    store.store("hot3", "nothing of it")
    assert ids(found(tiered, ask("red green"), store.view())) == ["hot1", "hot2", "warm1", "warm2", "cold1", "cold2"]
    assert ids(found(tiered, ask("green"), store.view())) == ["hot1", "warm1", "cold1"]
    assert found(tiered, ask("?"), store.view()) == ()


def test_ties(tiered: TieredStrategy) -> None:
    """What came at the same moment: the later revision, then by project and id."""
    store = Store()
    for fragment_id in "ba":
        store.store(fragment_id, at_ms=5)
    store.store("a", project="q", at_ms=5)
    results = found(tiered, ask("", "p", "q"), store.view("q", "p"))
    assert [(each.project, each.fragment_id) for each in results] == [("q", "a"), ("p", "a"), ("p", "b")]


def test_kinds_and_files(tiered: TieredStrategy) -> None:
    store = shelves()
    store.store("file:a", "red", kind="file")
    assert ids(found(tiered, ask(kinds=["odd"]), store.view())) == ["hot2", "warm2", "cold2"]
    assert "file:a" not in ids(found(tiered, ask(), store.view()))
    assert ids(found(tiered, ask(kinds=["file"]), store.view())) == ["file:a"]


def test_confidence(tiered: TieredStrategy) -> None:
    view = shelves().view()
    assert tiered.can_handle(ask(), view) == CONFIDENCE_WITHOUT_QUERY
    assert tiered.can_handle(ask("words"), view) == CONFIDENCE_WITH_QUERY
    assert tiered.can_handle(ask(kinds=["none"]), view) == 0
    assert tiered.can_handle(ask(), Store().view()) == 0


def test_its_interface(tiered: TieredStrategy) -> None:
    assert isinstance(tiered, Strategy)
    assert "hot before" in tiered.explain()
