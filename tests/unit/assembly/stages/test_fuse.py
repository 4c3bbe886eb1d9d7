"""Fuse: scores of several scales become one, and a rank alone does not decide."""

from stepwell.assembly.candidate import Allotment, Vote
from stepwell.assembly.inputs import Rows
from stepwell.assembly.stages.fuse import reciprocal, weighted
from stepwell.strategies.payload import StrategyResult
from tests.support.assembly import meeting, result

ROWS: Rows = {row.key: row for row in meeting().view().rows("p")}


def fused(*results: StrategyResult, weights: tuple[float, ...] = (0.5, 0.5)) -> dict[str, float]:
    allotments = [Allotment(each, 1.0, weight) for each, weight in zip(results, weights, strict=False)]
    return {each.key[1]: round(each.relevance, 3) for each in weighted(ROWS, allotments)}


def test_the_best_is_one() -> None:
    """Whatever the scale of its strategy; the worst of few may still be nearly as good."""
    assert fused(result("a", {"t1": 40.0, "t2": 39.0})) == {"t1": 1.0, "t2": 0.97}
    assert fused(result("a", {"t1": -1.0, "t2": -3.0})) == {"t1": 1.0, "t2": 0.0}
    assert fused(result("a", {"t1": 0.0, "t2": 0.0})) == {"t1": 1.0, "t2": 1.0}
    assert fused() == {}


def test_of_many_the_worst_is_worth_little() -> None:
    """Angles are all alike: only what is above the worst says anything."""
    scores = {f"t{number}": 0.5 + number / 100 for number in range(12)}
    found = fused(result("a", scores))
    assert found["t11"] == 1.0
    assert 0.5 < found["t0"] < 0.75


def test_huge_scores() -> None:
    assert fused(result("a", {"t1": 1.7e308, "t2": -1.7e308, "t3": 0.0})) == {"t1": 1.0, "t2": 0.0, "t3": 0.5}


def test_both_are_better_than_one() -> None:
    """By their weights, and by how much better the first is than the second."""
    one, other = result("a", {"t1": 1.0, "t2": 0.9}), result("b", {"t2": 1.0, "t3": 0.2})
    found = fused(one, other)
    assert max(found, key=found.__getitem__) == "t2"
    assert found["t1"] > found["t3"]
    assert fused(one, other, weights=(0.01, 0.99))["t1"] < 0.05


def test_votes() -> None:
    """By strategy: its rank and its own score. Named twice, the better place counts."""
    twice = StrategyResult(
        "a", (*result("", {"t1": 1.0, "t2": 3.0}).fragments, *result("", {"t1": 2.0}).fragments), 1, 1.0
    )
    found = {each.key[1]: each.votes for each in weighted(ROWS, [Allotment(twice, 1.0, 1.0)])}
    assert found == {"t1": (Vote("a", 2, 2.0),), "t2": (Vote("a", 1, 3.0),)}


def test_ranks_do_not_tell_by_how_much() -> None:
    allotments = [Allotment(result("a", {"t1": 100.0, "t2": 1.0}), 1.0, 1.0)]
    (first, second) = reciprocal(ROWS, allotments)
    assert 0.95 < second.relevance < first.relevance == 1.0
