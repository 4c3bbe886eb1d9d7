"""Graph: what is near to what matters."""

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.strategies.builtin.graph import GraphStrategy
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.index.proximity import (
    CLOSENESS,
    FAR_TOKENS,
    HALF_TOKENS,
    REFERENCE_WEIGHT,
    REFERRER_WEIGHT,
    REFERRERS_MAX,
    TARGETS_MAX,
    ProximityIndex,
)
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, Strategy
from tests.support.strategy_views import Store, ask, found, ids


@pytest.fixture
def graph() -> GraphStrategy:
    return GraphStrategy()


def focus(*names: str, breadth: int = 8, depth: int = 1, kinds: tuple[str, ...] = ()) -> ContextRequest:
    return replace(ask(kinds=kinds), focus=names, breadth=breadth, depth=depth)


def by_id(results: tuple[ScoredFragment, ...]) -> dict[str, ScoredFragment]:
    return {each.fragment_id: each for each in results}


def meeting(turns: int = 9, tokens: int = 100) -> Store:
    """Turns in another order than that in which they were stored; the one in the middle has the word."""
    store = Store()
    for order in sorted(range(turns), key=lambda order: order % 3):
        said = "the budget" if order == turns // 2 else "something"
        store.store(f"t{order}", said, source="talk", kind="turn", tokens=tokens, metadata={"order": str(order)})
    return store


def part(store: Store, fragment_id: str, *refs: str, name: str = "", order: int = 0, source: str = "") -> None:
    outline = {"name": name, "order": str(order), "refs": "\n".join(refs)}
    metadata = {key: text for key, text in outline.items() if text}
    store.store(fragment_id, fragment_id, source=source or fragment_id, kind="code", metadata=metadata, tokens=2_000)


def test_turns_around_a_hit(graph: GraphStrategy) -> None:
    """Each gets a part of the hit's score: half of it for each so many tokens from middle to middle."""
    results = found(graph, ask("budget"), meeting().view(), 10_000)
    assert ids(results)[0] == "t4"
    assert results[0].reason == "has budget"
    scores = {each.fragment_id: each.score / results[0].score for each in results}
    expected = {f"t{order}": 2 ** (-abs(order - 4) * 100 / HALF_TOKENS) for order in range(9)}
    assert scores == pytest.approx(expected)
    assert by_id(results)["t6"].reason == "2 turns after t4"
    assert by_id(results)["t3"].reason == "1 turn before t4"
    assert ids(results) == sorted(ids(results), key=lambda each: (-scores[each], each))


def test_what_stands_between_hits_gets_a_part_of_each(graph: GraphStrategy) -> None:
    store = meeting()
    store.store("t6", "the budget", source="talk", kind="turn", tokens=100, metadata={"order": "6"})
    results = by_id(found(graph, ask("budget"), store.view(), 10_000))
    assert results["t5"].score > results["t3"].score
    assert results["t5"].score == pytest.approx(2 * results["t4"].score / (1 + 0.5) * 2**-0.5)


def test_a_worse_hit_has_less_to_give(graph: GraphStrategy) -> None:
    """Its own score is its own; of that, its neighbours get the less, the further it is behind the best."""
    store = meeting(41)
    store.store("t35", "the budget and quite some other words", source="talk", kind="turn", metadata={"order": "35"})
    results = by_id(found(graph, ask("budget"), store.view(), 100_000))
    share = {each: results[f"t{each + 1}"].score / results[f"t{each}"].score for each in (20, 35)}
    assert share[35] < share[20]


def test_the_next_turn_is_near_however_long(graph: GraphStrategy) -> None:
    results = by_id(found(graph, focus("t4"), meeting(tokens=100_000).view(), 1_000_000))
    assert results["t5"].score == 0.5
    assert "t6" not in results


def test_what_is_no_turn_is_less_near(graph: GraphStrategy) -> None:
    store = Store()
    for order in range(2):
        part(store, f"a.py#{order}", order=order, source="a.py")
    assert found(graph, focus("a.py#0"), store.view(), 10_000)[1].score == CLOSENESS / 2


def test_breadth_and_depth(graph: GraphStrategy) -> None:
    """Breadth is how far a step goes along a source, depth how many steps there are; further away is worth less."""
    view = meeting(41, tokens=1).view()
    assert len(found(graph, focus("t20", breadth=0), view)) == 1
    assert len(found(graph, focus("t20", depth=0), view)) == 1
    assert len(found(graph, focus("t20", breadth=1), view)) == 9
    twice = found(graph, focus("t20", breadth=1, depth=2), view)
    assert len(twice) == 17
    assert by_id(twice)["t28"].reason == "4 turns after t24"
    once = by_id(found(graph, focus("t20", breadth=1), view))
    assert all(by_id(twice)[each].score == once[each].score for each in once)
    assert len(found(graph, focus("t20", breadth=1, depth=64), view)) == 41


def test_what_is_far_away_is_no_neighbour(graph: GraphStrategy) -> None:
    results = found(graph, focus("t4"), meeting(tokens=FAR_TOKENS).view(), 100_000)
    assert set(ids(results)) == {"t2", "t3", "t4", "t5", "t6"}


@pytest.mark.parametrize(
    "ref",
    [
        "Index.catch_up",
        "catch_up",
        "stepwell.index.Index.catch_up",
        "stepwell.index.catch_up",
        "index.catch_up",
        "elsewhere.Index.catch_up",
        "Index::catch_up",
    ],
)
def test_names(graph: GraphStrategy, ref: str) -> None:
    """What is called so, alone or in its module; from either side."""
    store = Store()
    part(store, "user", ref)
    part(store, "src/stepwell/index.py#1", name="Index.catch_up", source="src/stepwell/index.py")
    part(store, "other", name="Index.best")
    results = found(graph, focus("user"), store.view(), 10_000)
    assert ids(results) == ["user", "src/stepwell/index.py#1"]
    assert [each.score for each in results] == [1.0, REFERENCE_WEIGHT]
    assert results[1].reason == "referred to by user"
    back = found(graph, focus("src/stepwell/index.py#1"), store.view(), 10_000)
    assert ids(back) == ["src/stepwell/index.py#1", "user"]
    assert back[1].score == REFERRER_WEIGHT
    assert back[1].reason == "refers to src/stepwell/index.py#1"


@pytest.mark.parametrize(
    "ref, target",
    [
        ("stepwell.strategies", "src/stepwell/strategies/__init__.py#1"),
        ("stepwell.strategies.index", "src/stepwell/strategies/index.py#1"),
        ("docs/design.md", "docs/design.md#1"),
        ("design.md", "docs/design.md#1"),
        ("docs/design.md#the-layout", "docs/design.md#2"),
        ("docs/design.md#unknown", "docs/design.md#1"),
        ("docs/none.md", None),
        ("layout.none", None),
    ],
)
def test_modules_and_links(graph: GraphStrategy, ref: str, target: str | None) -> None:
    """A file is meant by its beginning, unless a heading is named."""
    store = Store()
    part(store, "user", ref)
    for source, titles in {
        "src/stepwell/strategies/__init__.py": ["", ""],
        "src/stepwell/strategies/index.py": ["", "Index"],
        "docs/design.md": ["Design", "Design > The layout"],
    }.items():
        for order, name in enumerate(titles):
            part(store, f"{source}#{order + 1}", name=name, order=order, source=source)
    results = found(graph, focus("user"), store.view(), 100_000)
    assert ids(results) == ["user", *([target] if target else [])]
    if target:
        back = by_id(found(graph, focus(target), store.view(), 100_000))
        assert "user" in back or "#the-layout" in ref


def test_a_name_that_many_have_means_none_of_them(graph: GraphStrategy) -> None:
    store = Store()
    part(store, "user", "get")
    for number in range(TARGETS_MAX):
        part(store, f"class{number}", name=f"Class{number}.get")
    results = found(graph, focus("user"), store.view(), 100_000)
    assert [each.score for each in results[1:]] == [REFERENCE_WEIGHT / TARGETS_MAX] * TARGETS_MAX
    part(store, "one more", name="get")
    assert ids(found(graph, focus("user"), store.view(), 100_000)) == ["user", "one more"], "its whole name"
    part(store, "another", name="Other.get")
    part(store, "user", "x.get")
    assert ids(found(graph, focus("user"), store.view(), 100_000)) == ["user"]


def test_a_word_that_many_say_leads_to_none_of_them(graph: GraphStrategy) -> None:
    store = Store()
    part(store, "target", name="target")
    for number in range(REFERRERS_MAX):
        part(store, f"user{number:02}", "target")
    results = found(graph, focus("target", breadth=3), store.view(), 100_000)
    assert ids(results) == ["target", "user00", "user01", "user02"], "as many as the breadth, by id"
    part(store, "user", "target")
    assert ids(found(graph, focus("target"), store.view(), 100_000)) == ["target"]


def test_focus(graph: GraphStrategy) -> None:
    """Ids, sources, the end of a path, and what stands for a file; what nobody knows is nothing."""
    store = Store()
    for order in range(3):
        part(store, f"src/a.py#{order}", order=order, source="src/a.py")
    part(store, "b")
    store.store("file:src/a.py", "listing", source="src/a.py", kind="file")
    parts = [f"src/a.py#{order}" for order in range(3)]
    view = store.view()
    for name in ("src/a.py", "a.py", "file:src/a.py"):
        assert ids(found(graph, focus(name, depth=0), view, 100_000)) == parts
        assert graph.can_handle(focus(name), view) == 1
    results = found(graph, focus("b", "src/a.py#1", "unknown", depth=0), view, 100_000)
    assert ids(results) == ["b", "src/a.py#1"]
    assert results[0].reason == "in focus"
    assert found(graph, focus("unknown"), view) == ()
    assert graph.can_handle(focus("unknown"), view) == 0


def test_kinds(graph: GraphStrategy) -> None:
    """What is wanted may be next to something else; what stands for a file is nobody's neighbour."""
    store = meeting()
    store.store("t5", "something", source="talk", kind="note", tokens=100, metadata={"order": "5"})
    store.store("file:talk", "the budget", source="talk", kind="file", metadata={"order": "4"})
    assert ids(found(graph, ask("budget", kinds=["note"]), store.view())) == ["t5"]
    assert "file:talk" not in ids(found(graph, ask("budget"), store.view(), 10_000))
    assert found(graph, ask("budget", kinds=["file"]), store.view()) == ()


def test_without_an_order(graph: GraphStrategy) -> None:
    """Parts of a source without an order stand as they were created, behind those that have one."""
    store = Store()
    for fragment_id in "bca":
        store.store(fragment_id, source="s", tokens=1_000)
    store.store("first", source="s", tokens=1_000, metadata={"order": "7"})
    results = by_id(found(graph, focus("c"), store.view(), 100_000))
    assert results["b"].reason == "1 part before c"
    assert results["a"].reason == "1 part after c"
    assert results["first"].reason == "2 parts before c"
    store.store("alone", tokens=10)
    assert ids(found(graph, focus("alone"), store.view())) == ["alone"], "no source is no source in common"


def test_confidence(graph: GraphStrategy) -> None:
    """As sure as the words are, where things are near to each other."""
    view = meeting().view()
    assert graph.can_handle(ask("budget"), view) == 1
    assert 0 < graph.can_handle(ask("budget unknown"), view) < 1
    assert graph.can_handle(ask("unknown"), view) == 0
    assert graph.can_handle(ask(), view) == 0
    assert found(graph, ask(), view) == ()
    lonely = Store()
    lonely.store("a", "budget")
    assert graph.can_handle(ask("budget"), lonely.view()) == 0
    lonely.store("b", "word", metadata={"refs": "a"})
    assert graph.can_handle(ask("budget"), lonely.view()) == 0.5
    assert graph.can_handle(ask("budget"), Store().view()) == 0


def test_at_most_so_many_seeds(graph: GraphStrategy) -> None:
    store = Store()
    for number in range(limits.GRAPH_SEEDS_MAX + 5):
        store.store(f"id{number:02}", "word " * (number + 1))
    assert len(found(graph, ask("word"), store.view(), 10_000)) == limits.GRAPH_SEEDS_MAX


def test_nothing_is_left_of_what_is_gone() -> None:
    store, following = Store(), IndexCache(ProximityIndex)
    part(store, "a", "b", "x.y", name="one, two.three", source="src/a.py")
    part(store, "b", source="src/a.py", order=1)
    store.store("file:src/a.py", source="src/a.py", kind="file")
    neighbours = following.get(store.view(), "p")
    for fragment_id in ("a", "file:src/a.py", "b"):
        store.delete(fragment_id)
        neighbours.catch_up(store.view())
    assert not any((neighbours._by_source, neighbours._by_stem))
    assert not any(len(sets.arrays()["slots"]) or sets._sets for sets in neighbours._slot_sets().values())
    assert (neighbours._linked_count, neighbours._content_count, neighbours.linked_share) == (0, 0, 0.0)


def test_its_interface(graph: GraphStrategy) -> None:
    assert isinstance(graph, Strategy)
    assert "beside them" in graph.explain()
