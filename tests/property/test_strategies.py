"""An index that follows its project is the index of that project, and the number of workers does not show."""

import math
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import FILE_KIND, is_content, part_prefix
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.builtin.recency import RecencyStrategy
from stepwell.strategies.index.words.bm25 import Bm25Index
from stepwell.strategies.index.words.fields import WEIGHT_UNIT, Weights
from stepwell.strategies.index.words.file_ranking import FILE, K1, PASSAGE, POINTED, SIZE, B
from stepwell.strategies.index.words.files import IMPORT_TERM, STEM_TERM
from stepwell.strategies.index.words.passages import COUNTED_MAX, REACH_TOKENS, SATURATION
from stepwell.strategies.index.words.query import TITLE
from stepwell.strategies.index.words.terms import distinct_terms, is_stop_term, query_weight, term_counts
from stepwell.strategies.protocol import ContextRequest, ScoredFragment
from stepwell.strategies.ranking import by_score
from tests.support.strategy_views import MemoryView, Store, found

PROJECTS = ("p", "q")
VOCABULARY = ["red", "green", "blue", "get_user", "getUser", "user.name", "日本語", "é", "7", "the"]
WORDS = st.sampled_from(VOCABULARY)
TEXTS = st.lists(WORDS, max_size=8).map(" ".join)
BODIES = TEXTS.map(str.encode) | st.just(b"\xff red")
KEYS = st.tuples(st.sampled_from(PROJECTS), st.sampled_from("abcdef"))
NAMES = st.dictionaries(st.sampled_from(["name", "speaker", "lines", "refs"]), WORDS, max_size=2)
KINDS = ["code", "prose", "turn", FILE_KIND]
STORES = st.tuples(st.just("store"), KEYS, BODIES, TEXTS, NAMES, st.sampled_from(KINDS), st.integers(1, 9))
DEEDS = STORES | st.tuples(st.sampled_from(["delete", "demote"]), KEYS)
Deed = tuple[str, tuple[str, str], bytes, str, dict[str, str], str, int] | tuple[str, tuple[str, str]]

Bounds = dict[str, int]


def history(deeds: list[Deed]) -> Store:
    """A store to which all this happened."""
    store = Store()
    for deed in deeds:
        name, (project, fragment_id), *rest = deed
        exists = store.view(project).get(fragment_id) is not None
        match name, rest:
            case "store", [bytes(body), str(source), dict(names), str(kind), int(tokens)]:
                store.store(fragment_id, body, project=project, source=source, metadata=names, kind=kind, tokens=tokens)
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
        kinds=tuple(draw(st.lists(st.sampled_from(KINDS), unique=True))),
        as_of_ms=draw(st.none() | st.integers(0, 100)),
    )


@st.composite
def walks(draw: st.DrawFn) -> list[MemoryView]:
    """Views of one history, in any order, some of which cannot tell what changed."""
    store = history(draw(st.lists(DEEDS, max_size=40)))
    revisions = st.integers(0, store.revision)
    steps = draw(st.lists(st.tuples(revisions, revisions), min_size=1, max_size=8))
    return [store.view(*PROJECTS, revision=revision, base=base) for revision, base in steps]


@st.composite
def sizes(draw: st.DrawFn) -> Bounds:
    """So small that batches end, runs are merged, pieces are forgotten and slots are numbered anew."""
    return {
        "INDEX_BATCH_PIECES": draw(st.sampled_from([1, 9, 1_000])),
        "INDEX_DEAD_SLOTS_MAX": draw(st.sampled_from([0, 3, 1_000])),
        "INDEX_RUN_POSTINGS_MAX": draw(st.sampled_from([0, 9, 1_000])),
        "INDEX_PIECES_REMEMBERED_MAX": draw(st.sampled_from([0, 9, 1_000])),
    }


@contextmanager
def bounded(bounds: Bounds) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bounds.items():
            patch.setattr(limits, name, value)
        yield


@given(walks(), requests(), sizes())
def test_following_equals_building(walk: list[MemoryView], request: ContextRequest, bounds: Bounds) -> None:
    """Whatever path led to a view, results and scores are those of an index made for it, to the last bit."""
    follower = KeywordStrategy()
    for view in walk:
        with bounded(bounds):
            results, confidence = found(follower, request, view), follower.can_handle(request, view)
        fresh = KeywordStrategy()
        assert results == found(fresh, request, view)
        assert confidence == fresh.can_handle(request, view)


@given(walks(), sizes())
def test_following_keeps_the_same_terms(walk: list[MemoryView], bounds: Bounds) -> None:
    """Also where no query looks: what is known of each term, of the lengths and of the files is the same."""
    words = sorted({term for text in VOCABULARY for term in distinct_terms(text)})
    terms = [*words, *(prefix + word for prefix in (STEM_TERM, IMPORT_TERM) for word in words)]
    follower = Bm25Index("p", Weights())
    for view in walk:
        with bounded(bounds):
            follower.catch_up(view)
        fresh = Bm25Index("p", Weights())
        fresh.catch_up(view)
        assert follower.frequencies(terms) == fresh.frequencies(terms)
        assert described(follower) == described(fresh)


def described(index: Bm25Index) -> dict[str, tuple[float, int, str]]:
    """The length norm, the class and the file of each fragment."""
    columns = index.columns()
    return {
        index._rows[slot].fragment_id: (
            float(columns.norms[slot]),
            int(columns.classes[slot]),
            index.files.sources[columns.files[slot]],
        )
        for slot in range(len(columns.alive))
        if columns.alive[slot]
    }


@given(walks(), requests())
def test_scores_of_turns_are_what_the_formula_says(walk: list[MemoryView], request: ContextRequest) -> None:
    """BM25 with what the fields have, weighted, over the length of the body, and that of the passage, as shares of the
    best.
    """
    weights, view = Weights(), turns(walk[-1])
    expected: dict[tuple[str, str], float] = {}
    for project in request.projects:
        counts: dict[str, dict[str, float]] = {}
        lengths: dict[str, int] = {}
        bodies: dict[str, dict[str, int]] = {}
        scores: dict[str, float] = {}
        for row in filter(is_content, view.rows(project)):
            seen = view.get(row.fragment_id, project=project)
            assert seen is not None
            body = term_counts(seen.text) if not seen.body.tobytes().startswith(b"\xff") else {}
            total = dict.fromkeys(body, 0.0)
            fields = (
                (body, weights.prose),
                (term_counts(row.source), weights.path),
                (
                    {} if row.fragment_id.startswith(part_prefix(row.source)) else term_counts(row.fragment_id),
                    weights.fragment_id,
                ),
                (term_counts(row.metadata.get("name", "")), weights.name),
                (term_counts(row.metadata.get("speaker", "")), weights.speaker),
            )
            for found_terms, weight in fields:
                for term, count in found_terms.items():
                    total[term] = total.get(term, 0.0) + weight * count / WEIGHT_UNIT
            counts[row.fragment_id], lengths[row.fragment_id] = total, sum(body.values())
            bodies[row.fragment_id] = body
        mean = sum(lengths.values()) / len(lengths) if any(lengths.values()) else 1.0
        for term, repeated in term_counts(request.query).items():
            having = [fragment_id for fragment_id, total in counts.items() if term in total]
            idf = math.log(1 + (len(counts) - len(having) + 0.5) / (len(having) + 0.5))
            for fragment_id in having:
                norm = K1 * (1 - B + B * lengths[fragment_id] / mean)
                frequency = counts[fragment_id][term]
                zone = query_weight(term) * math.log1p(TITLE * repeated)
                scores[fragment_id] = scores.get(fragment_id, 0) + zone * idf * frequency / (frequency + norm)
        best = max(scores.values(), default=1.0)
        around = passages([row for row in view.rows(project) if row.source], counts, bodies, request.query)
        best_around = max((scores.get(each, 0.0) / best for each in around), default=0.0)
        for each, score in scores.items():
            part = PASSAGE * best_around * around[each] if each in around else FILE * score / best
            expected[project, each] = score / best + part
    asked = ContextRequest(projects=request.projects, query=request.query)
    results = found(KeywordStrategy(), asked, view, 10_000)
    assert {(each.project, each.fragment_id): each.score for each in results} == pytest.approx(expected, abs=1e-9)


def passages(
    rows: list[FragmentRow], found_in: dict[str, dict[str, float]], bodies: dict[str, dict[str, int]], query: str
) -> dict[str, float]:
    """The scores of the passages around turns, as shares of the best; none if every turn has a source of its own."""
    if len({row.source for row in rows}) == len(rows):
        return {}
    counts = term_counts(query)
    content = [term for term in counts if not is_stop_term(term)] or [*counts]
    middles: dict[str, float] = {}
    ends: dict[str, int] = {}
    for row in rows:
        begin = ends.get(row.source, 0)
        middles[row.fragment_id], ends[row.source] = begin + row.tokens / 2, begin + row.tokens
    total = dict.fromkeys(middles, 0.0)
    for term in content:
        having = sum(term in found for found in found_in.values())
        if not having:
            continue
        idf = math.log(1 + (len(bodies) - having + 0.5) / (having + 0.5))
        for row in rows:
            near = sum(
                min(COUNTED_MAX, bodies[other.fragment_id].get(term, 0))
                * max(0.0, 1 - abs(middles[row.fragment_id] - middles[other.fragment_id]) / REACH_TOKENS)
                for other in rows
                if other.source == row.source
            )
            zone = query_weight(term) * math.log1p(TITLE * counts[term])
            total[row.fragment_id] += zone * idf * near / (near + SATURATION)
    best = max(total.values(), default=0.0)
    return {each: score / best if best else 0.0 for each, score in total.items()}


def turns(view: MemoryView) -> MemoryView:
    """The same view, with all fragments as turns of conversations."""
    contents = view.history[view.revision]
    now = {
        project: {
            fragment_id: replace(seen, row=replace(seen.row, kind="turn")) for fragment_id, seen in fragments.items()
        }
        for project, fragments in contents.items()
    }
    return replace(view, epoch="turns", history=(*view.history[: view.revision], now))


@given(walks(), requests())
def test_scores_are_bounded(walk: list[MemoryView], request: ContextRequest) -> None:
    """A fragment that has nothing of a query is not shown, and scores are above 0 and at most those of all parts."""
    view = walk[-1]
    for each in found(KeywordStrategy(), request, view, 10_000):
        assert 0 < each.score <= 1 + FILE + POINTED + SIZE


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
    terms = list(distinct_terms(text))
    assert terms == list(term_counts(text))
    assert all(term == term.lower() and term.strip("_.") for term in terms)
