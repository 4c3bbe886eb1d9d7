"""Dedupe: of the same body, the best is shown."""

from tests.support.assembly import answer, ids, request, result, stored, turn
from tests.support.strategy_views import Store


def copies(kind: str) -> Store:
    store = Store()
    for number, name in enumerate(("a", "b", "c")):
        stored(store, name, "the same" if name != "c" else "another", source=name, kind=kind, outline=turn(number))
    return store


def test_the_best_is_kept() -> None:
    """The others are in the receipt, with the one that stands for them."""
    found = answer(copies("code").view(), result("mine", {"a": 0.5, "b": 1.0, "c": 0.9}))
    assert ids(found) == ["b", "c"]
    (entry,) = found.receipt.find("a")
    assert (entry.decision, entry.reason) == ("deduplicated", "it has the body of b in p")


def test_a_turn_is_a_turn() -> None:
    """What is said twice was said twice."""
    assert len(answer(copies("turn").view(), result("mine", {"a": 0.5, "b": 1.0})).fragments) == 2


def test_by_id() -> None:
    found = answer(copies("code").view(), result("mine", {"a": 0.5, "b": 1.0}), components={"dedupe": "id"})
    assert ids(found) == ["b", "a"]


def test_across_projects() -> None:
    store = Store()
    for project in ("q", "p"):
        stored(store, "a", "the same", project=project, kind="code")
    both = answer(
        store.view("p", "q"),
        result("one", {"a": 1.0}),
        result("two", {"a": 1.0}, project="q"),
        asked=request(projects=["p", "q"]),
    )
    assert [(each.project, each.fragment_id) for each in both.fragments] == [("p", "a")]
