"""An index that follows its project is the index of that project, and the number of workers does not show."""

from hypothesis import given
from hypothesis import strategies as st

from stepwell.strategies.base import ContextRequest, ScoredFragment
from stepwell.strategies.index import Index, Weights
from stepwell.strategies.keyword import KeywordStrategy
from stepwell.strategies.ranking import by_score
from stepwell.strategies.recency import RecencyStrategy
from stepwell.strategies.terms import counted, distinct
from tests.unit.strategies.support import MemoryView, Store, found

PROJECTS = ("p", "q")
WORDS = st.sampled_from(["red", "green", "blue", "get_user", "getUser", "user.name", "日本語", "é", "7"])
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)
BODIES = TEXTS.map(str.encode) | st.just(b"\xff red")
KEYS = st.tuples(st.sampled_from(PROJECTS), st.sampled_from("abcdef"))
STORES = st.tuples(st.just("store"), KEYS, BODIES, TEXTS, st.sampled_from(["code", "prose"]), st.integers(1, 9))
DEEDS = STORES | st.tuples(st.sampled_from(["delete", "demote"]), KEYS)
Deed = tuple[str, tuple[str, str], bytes, str, str, int] | tuple[str, tuple[str, str]]


def history(deeds: list[Deed]) -> Store:
    """A store to which all this happened."""
    store = Store()
    for deed in deeds:
        name, (project, fragment_id), *rest = deed
        exists = store.view(project).get(fragment_id) is not None
        match name, rest:
            case "store", [bytes(body), str(source), str(kind), int(tokens)]:
                store.store(fragment_id, body, project=project, source=source, kind=kind, tokens=tokens)
            case "delete", _ if exists:
                store.delete(fragment_id, project=project)
            case "demote", _ if exists:
                store.demote(fragment_id, project=project)
            case _:
                pass
    return store


@st.composite
def requests(draw: st.DrawFn) -> ContextRequest:
    return ContextRequest(
        projects=tuple(draw(st.lists(st.sampled_from(PROJECTS), min_size=1, unique=True))),
        query=draw(TEXTS),
        kinds=tuple(draw(st.lists(st.sampled_from(["code", "prose"]), unique=True))),
        as_of_ms=draw(st.none() | st.integers(0, 100)),
    )


@st.composite
def walks(draw: st.DrawFn) -> list[MemoryView]:
    """Views of one history, in any order, some of which cannot tell what changed."""
    store = history(draw(st.lists(DEEDS, max_size=40)))
    revisions = st.integers(0, store.revision)
    steps = draw(st.lists(st.tuples(revisions, revisions), min_size=1, max_size=8))
    return [store.view(*PROJECTS, revision=revision, base=base) for revision, base in steps]


@given(walks(), requests())
def test_following_equals_building(walk: list[MemoryView], request: ContextRequest) -> None:
    """Whatever path led to a view, results and scores are those of an index made for it, to the last bit."""
    follower = KeywordStrategy()
    for view in walk:
        fresh = KeywordStrategy()
        assert found(follower, request, view) == found(fresh, request, view)
        assert follower.can_handle(request, view) == fresh.can_handle(request, view)


@given(walks())
def test_following_keeps_the_same_terms(walk: list[MemoryView]) -> None:
    """Also where no query looks: what is known of each term, and of the lengths, is the same."""
    follower = Index("p", Weights())
    for view in walk:
        follower.catch_up(view)
        fresh = Index("p", Weights())
        fresh.catch_up(view)
        terms = sorted(follower._postings.keys() | fresh._postings.keys())
        assert follower.frequencies(terms) == fresh.frequencies(terms)
        assert (len(follower), follower._total_length) == (len(fresh), fresh._total_length)


@given(walks(), requests(), st.integers(1, 5), st.integers(1, 30))
def test_the_number_of_parts_does_not_show(
    walk: list[MemoryView], request: ContextRequest, parts: int, budget_tokens: int
) -> None:
    view = walk[-1]
    for strategy in (KeywordStrategy(), RecencyStrategy()):
        whole = found(strategy, request, view, budget_tokens)
        shares = [
            found(strategy, request, strategy.partition(view, part, parts), budget_tokens) for part in range(parts)
        ]
        assert strategy.merge(request, shares, budget_tokens) == whole
        assert strategy.merge(request, shares[::-1], budget_tokens) == whole


@given(walks(), requests())
def test_other_projects_do_not_show(walk: list[MemoryView], request: ContextRequest) -> None:
    """What is said of a project's fragments is the same whether or not others were asked for with it."""
    view = walk[-1]
    together = found(KeywordStrategy(), request, view, 10_000)
    apart: list[ScoredFragment] = []
    for project in request.projects:
        alone = ContextRequest(projects=(project,), query=request.query, kinds=request.kinds)
        apart += found(KeywordStrategy(), alone, view, 10_000)
    assert together == tuple(sorted(apart, key=by_score))


@given(walks(), requests())
def test_confidence_is_a_share(walk: list[MemoryView], request: ContextRequest) -> None:
    """It is from 0 to 1, and 0 only if there is nothing to show of any kind."""
    everything = ContextRequest(projects=request.projects, query=request.query)
    for view in walk:
        for strategy in (KeywordStrategy(), RecencyStrategy()):
            confidence = strategy.can_handle(everything, view)
            assert 0 <= confidence <= 1
            assert (confidence > 0) == bool(found(strategy, everything, view))


@given(st.text() | TEXTS)
def test_what_is_stored_is_what_is_asked(text: str) -> None:
    """A text has the same terms as a query and as a body, none of them empty, all of them in lower case."""
    terms = list(distinct(text))
    assert terms == list(counted(text))
    assert all(term == term.lower() and term.strip("_.") for term in terms)
