"""What strategies keep of a project is what the project has, by whatever way they came there."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepwell.errors import BodyGone
from stepwell.strategies.builtin.graph import GraphStrategy
from stepwell.strategies.builtin.plan_decision import PlanDecisionStrategy
from stepwell.strategies.builtin.recency import RecencyStrategy
from stepwell.strategies.builtin.semantic import SemanticStrategy
from stepwell.strategies.builtin.tiered import TieredStrategy
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.index.proximity import ProximityIndex
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, PlanSeen, ScoredFragment, Strategy
from stepwell.strategies.ranking import has_requested_kind
from stepwell.strategies.registry import built_in
from tests.support.strategy_views import MemoryView, Store, found

STRATEGIES: list[Callable[[], Strategy]] = [
    GraphStrategy,
    SemanticStrategy,
    TieredStrategy,
    RecencyStrategy,
    PlanDecisionStrategy,
]
PROJECTS = ("p", "q")
IDS = ["a.py#one", "a.py#two", "b/__init__.py#x", "note", "talk#1", "talk#2"]
SOURCES = ["", "a.py", "b/__init__.py", "docs/design.md", "talk"]
NAMES = ["", "one", "Two.one", "Design > Layout", "one, two.three"]
REFS = ["one", "Two.one", "a", "b", "b.one", "a.Two.one", "docs/design.md#layout", "two::three", "x.y.z"]
KINDS = ["code", "turn", "file"]
WORDS = st.sampled_from(["red", "green", "budget", "`one`", "a.py", "Two.one", "日本語"])
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join) | st.just("")

KEYS = st.tuples(st.sampled_from(["p", "p", "q"]), st.sampled_from(IDS))
OUTLINES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(NAMES),
        "order": st.sampled_from(["0", "1", "2", "x"]),
        "refs": st.lists(st.sampled_from(REFS), max_size=4).map("\n".join),
    },
)
STORES = st.tuples(
    st.just("store"),
    KEYS,
    TEXTS.map(str.encode) | st.just(b"\xff red"),
    st.sampled_from(SOURCES),
    st.sampled_from(KINDS),
    st.integers(1, 300),
    OUTLINES,
)
DEEDS = STORES | st.tuples(st.sampled_from(["delete", "demote", "lose"]), KEYS)


def history(deeds: list[tuple[object, ...]]) -> Store:
    """A store to which all this happened."""
    store = Store()
    for deed in deeds:
        match deed:
            case ("store", (str(project), str(fragment_id)), bytes(body), str(source), str(kind), int(tokens), dict(o)):
                store.store(fragment_id, body, project=project, source=source, kind=kind, tokens=tokens, metadata={**o})
            case (str(name), (str(project), str(fragment_id))) if store.view(project).get(fragment_id) is not None:
                deal = {"delete": store.delete, "demote": store.demote, "lose": store.lose_body}[name]
                deal(fragment_id, project=project)
            case _:
                pass
    return store


@st.composite
def walks(draw: st.DrawFn) -> list[MemoryView]:
    """Views of some revisions, in any order; each can tell what changed since some other, or not."""
    store = history([*draw(st.lists(STORES, min_size=6, max_size=12)), *draw(st.lists(DEEDS, max_size=12))])
    revisions = draw(st.lists(st.integers(3, store.revision), min_size=1, max_size=6))
    return [store.view(*PROJECTS, revision=each, base=draw(st.integers(0, each))) for each in revisions]


@st.composite
def requests(draw: st.DrawFn) -> ContextRequest:
    made = draw(st.lists(st.tuples(TEXTS, st.integers(0, 5)), max_size=3))
    decisions = [DecisionSeen(f"D{at}", "P", text, "", "", depth) for at, (text, depth) in enumerate(made)]
    return ContextRequest(
        projects=tuple(draw(st.lists(st.sampled_from(PROJECTS), min_size=1, unique=True))),
        query=draw(TEXTS),
        focus=draw(st.just(()) | st.tuples(st.sampled_from([*IDS, *SOURCES]))),
        kinds=draw(st.just(()) | st.sets(st.sampled_from(KINDS)).map(sorted)),
        breadth=draw(st.sampled_from([3, 1, 0])),
        depth=draw(st.sampled_from([1, 2, 3, 0])),
        as_of_ms=draw(st.none() | st.integers(0, 40)),
        plan=draw(st.none() | st.just(PlanSeen("P", "execute", decisions))),
    )


def answer(strategy: Strategy, request: ContextRequest, view: MemoryView) -> tuple[float, list[ScoredFragment]] | None:
    """None if a body is gone that it had to read."""
    try:
        return strategy.can_handle(request, view), [*found(strategy, request, view, 10_000)]
    except BodyGone:
        return None


@given(walks(), requests())
def test_following_equals_building(walk: list[MemoryView], request: ContextRequest) -> None:
    """Whatever path led to a view, and whatever failed on it, the answer is that of one made for the view."""
    for make in STRATEGIES:
        follower = make()
        for view in walk:
            answered, expected = answer(follower, request, view), answer(make(), request, view)
            assert answered == expected or expected is None


@given(walks())
def test_neighbours_are_the_same(walk: list[MemoryView]) -> None:
    """Also where no request looks: what is near to each fragment, and why."""
    follower = ProximityIndex("p")
    for view in walk:
        fresh = ProximityIndex("p")
        for each in (follower, fresh):
            each.catch_up(view)
        assert near(follower) == near(fresh)
        assert (follower.linked_share, len(follower)) == (fresh.linked_share, len(fresh))


def near(neighbours: ProximityIndex) -> dict[str, dict[str, tuple[float, str]]]:
    return {
        fragment_id: {
            neighbours.at(each.slot).fragment_id: (each.weight, neighbours.reason(each))
            for each in neighbours.neighbours_of(slot, 2)
        }
        for fragment_id in IDS
        if (slot := neighbours.slot(fragment_id)) is not None
    }


@given(walks(), requests())
def test_sharing_does_not_show(walk: list[MemoryView], request: ContextRequest) -> None:
    """Strategies that share what they keep answer as those that have it for themselves."""
    together = {each.name: each for each in built_in()}
    for view in walk:
        for make in STRATEGIES:
            alone = make()
            answered, expected = answer(together[alone.name], request, view), answer(alone, request, view)
            assert answered == expected or expected is None


@given(walks(), requests())
def test_a_restored_index_goes_on(walk: list[MemoryView], request: ContextRequest) -> None:
    """An index that was restored from a snapshot, at any view of a walk, answers and follows as one built anew."""
    caches = IndexCaches()
    for view in walk:
        strategies = {each.name: each for each in built_in(caches)}
        for make in STRATEGIES:
            alone = make()
            answered, expected = answer(strategies[alone.name], request, view), answer(alone, request, view)
            assert answered == expected or expected is None
        caches = restored(caches, view)


def restored(caches: IndexCaches, view: MemoryView) -> IndexCaches:
    """Return caches with the indexes that have followed a view, each by way of its snapshot as bytes."""
    found = IndexCaches()
    for project in PROJECTS:
        places = RowPlaces(view.rows(project), (view.epoch, view.revision))
        for name, cache in caches.stored().items():
            index = cache.known(project)
            if index is None or index.followed != places.at:
                continue
            snapshot = index.snapshot({row.fragment_id: place for place, row in enumerate(places.rows)})
            arrays = {key: array.copy() for key, array in snapshot.arrays.items()}
            found.stored()[name].restore(project, IndexSnapshot(arrays, bytes(snapshot.values)), places)
    return found


@given(walks(), requests())
def test_other_projects_do_not_show(walk: list[MemoryView], request: ContextRequest) -> None:
    """What is said of a project's fragments is the same whether or not others were asked for with it."""
    now = replace(request, as_of_ms=50)
    for make in STRATEGIES:
        together = answer(make(), now, walk[-1])
        if together is None:
            continue
        for project in request.projects:
            alone = answer(make(), replace(now, projects=(project,)), walk[-1])
            assert alone is not None
            assert alone[1] == [each for each in together[1] if each.project == project]


@given(walks(), requests())
def test_answers_are_fit(walk: list[MemoryView], request: ContextRequest) -> None:
    """Each fragment once, of a project and kind that was asked for, as its view has it; confidence is a share."""
    for make in STRATEGIES:
        answered = answer(make(), request, walk[-1])
        if answered is None:
            continue
        confidence, results = answered
        keys = [(each.project, each.fragment_id) for each in results]
        assert 0 <= confidence <= 1
        assert len({*keys}) == len(keys)
        for each in results:
            seen = walk[-1].get(each.fragment_id, project=each.project)
            assert seen is not None
            assert (each.tokens, each.revision) == (seen.row.tokens, seen.row.revision)
            assert each.project in request.projects
            assert each.reason
            assert has_requested_kind(request, seen.row)
