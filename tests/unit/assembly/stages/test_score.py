"""Score: 0.4 relevance, 0.3 hierarchy, 0.2 quality, 0.1 recency."""

import pytest
from msgspec.structs import replace

from stepwell.assembly.candidate import Candidate, Vote
from stepwell.assembly.stages.score import HALF_LIFE_MS, TURN_LAYOUT_TOKENS, balanced, relevance
from stepwell.domain.tiers.model import FragmentRow
from tests.support.assembly import request, stored
from tests.support.strategy_views import Store


def candidate(row: FragmentRow, relevance: float = 0.0, hierarchy: float = 0.0) -> Candidate:
    return Candidate(row.key, row, relevance, hierarchy, 0)


def test_the_breakdown() -> None:
    """It is kept, and comes to the total."""
    store = Store()
    row = stored(store, "a", "body", at_ms=5)
    (scored,) = balanced(request(), [candidate(row, 0.5, 0.25)])
    scores = scored.scores
    assert (scores.relevance, scores.hierarchy, scores.recency) == (0.5, 0.25, 1.0)
    assert scores.total == pytest.approx(0.4 * 0.5 + 0.3 * 0.25 + 0.2 * scores.quality + 0.1)


def test_quality_and_recency() -> None:
    """The shorter and the newer, the better; what counts as now may be given."""
    store = Store()
    old = stored(store, "old", "body", kind="text", at_ms=0)
    new = stored(store, "new", "body", kind="text", at_ms=HALF_LIFE_MS)
    long = stored(store, "long", "body " * 600, kind="text", at_ms=HALF_LIFE_MS)
    found = {
        each.candidate.key[1]: each.scores for each in balanced(request(), [candidate(row) for row in (old, new, long)])
    }
    assert (found["old"].recency, found["new"].recency) == (0.5, 1.0)
    assert found["new"].quality > 0.9
    assert found["long"].quality < 0.5
    (later,) = balanced(request(as_of_ms=2 * HALF_LIFE_MS), [candidate(new)])
    assert later.scores.recency == 0.5
    (earlier,) = balanced(request(as_of_ms=0), [candidate(new)])
    assert earlier.scores.recency == 1.0


def test_the_quality_of_turns() -> None:
    """The larger the part of a turn that is its own text, and not its speaker and line, the better."""
    store = Store()
    short, long = stored(store, "short", "Yeah."), stored(store, "long", "body " * 60)
    found = {
        each.candidate.key[1]: each.scores.quality for each in balanced(request(), [*map(candidate, (short, long))])
    }
    assert found["short"] == short.tokens / (short.tokens + TURN_LAYOUT_TOKENS)
    assert found["short"] < 0.5
    assert found["long"] > 0.9


def test_a_demotion_is_no_news() -> None:
    store = Store()
    stored(store, "a", "body", at_ms=5)
    store.demote("a", at_ms=HALF_LIFE_MS)
    row = store.view().rows("p")[0]
    (scored,) = balanced(request(as_of_ms=5), [candidate(row)])
    assert scored.scores.recency == 1.0
    (scored,) = balanced(request(as_of_ms=5 + HALF_LIFE_MS), [candidate(row)])
    assert scored.scores.recency == 0.5


def test_ties() -> None:
    """By relevance, then by project and id."""
    store = Store()
    rows = [stored(store, name, "body", at_ms=1) for name in ("c", "a", "b")]
    assert [each.candidate.key[1] for each in balanced(request(), [candidate(row) for row in rows])] == ["a", "b", "c"]
    best = [candidate(rows[0], 0.5), candidate(rows[1], 0.4, 9.0)]
    assert [each.candidate.key[1] for each in relevance(request(), best)] == ["c", "a"]
    assert balanced(request(), []) == ()


@pytest.mark.parametrize("source", ["tests/a.py", "pkg/test/b.go", "src/test_a.py", "ui/button.spec.ts", "x/y_test.go"])
def test_tests_count_less_unless_they_are_asked_for(source: str) -> None:
    store = Store()
    test, code = (
        stored(store, "t", "body", at_ms=1, source=source),
        stored(store, "c", "body", at_ms=1, source="src/a.py"),
    )
    for query, is_less in (("where is the budget kept?", True), ("which tests keep the budget?", False)):
        found = balanced(request(query), [candidate(test), candidate(code)])
        quality = {each.candidate.key[1]: each.scores.quality for each in found}
        assert (quality["t"] < quality["c"]) == is_less


@pytest.mark.parametrize("source", ["src/latest/a.py", "contest.md", "meeting-00", "src/testing_ground.py"])
def test_what_only_sounds_like_a_test(source: str) -> None:
    store = Store()
    one, other = stored(store, "a", "body", at_ms=1, source=source), stored(store, "b", "body", at_ms=1, source="b.py")
    first, second = balanced(request("budget"), [candidate(one), candidate(other)])
    assert first.scores.quality == second.scores.quality


@pytest.mark.parametrize("kind", ["code", "text"])
@pytest.mark.parametrize("other", ["code", "text"])
def test_what_is_read_alone_is_ranked_by_relevance(kind: str, other: str) -> None:
    """Neither a short length nor a young age makes up for it, and they decide between equals, of code and of prose."""
    store = Store()
    long = stored(store, "long", "body " * 900, at_ms=0, kind=kind)
    short = stored(store, "short", "body", at_ms=HALF_LIFE_MS, kind=other)
    better = balanced(request(), [candidate(long, 1.0), candidate(short, 0.9, 1.0)])
    assert [each.candidate.key[1] for each in better] == ["long", "short"]
    equal = balanced(request(), [candidate(long, 0.9), candidate(short, 0.9)])
    assert [each.candidate.key[1] for each in equal] == ["short", "long"]


def test_unanimous_first_is_first() -> None:
    """A fragment that every strategy ranks first comes first, whatever stands around the others."""
    store = Store()
    one, other = stored(store, "one", "body " * 500, at_ms=1), stored(store, "other", "body", at_ms=1)
    votes = tuple(Vote(name, 1, 5.0) for name in ("graph", "keyword"))
    second = tuple(Vote(name, 2, 4.0) for name in ("graph", "keyword"))
    named = [
        Candidate(one.key, one, 1.0, 0.0, 0, votes),
        Candidate(other.key, other, 0.9, 1.5, 1, second),
    ]
    assert balanced(request(), named)[0].candidate.key == one.key
    split = [replace(named[0], votes=votes[:1]), replace(named[1], votes=(*votes[1:], *second[:1]))]
    assert balanced(request(), split)[0].candidate.key == other.key
