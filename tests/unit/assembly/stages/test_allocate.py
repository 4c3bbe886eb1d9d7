"""Allocate: what a strategy's word is worth."""

import pytest

from stepwell.assembly.candidate import SelectedResult
from stepwell.assembly.stages.allocate import (
    CANDIDATE_TOKENS_MIN,
    QUERY_BLIND_QUALITY,
    UNDECLARED_SHARE,
    candidate_tokens,
    equal,
    proportional,
)
from stepwell.strategies.protocol import ContextRequest, StrategyInfo
from tests.support.assembly import answer, ids, meeting, request, result


def weights(asked: ContextRequest, *names: str, offers: tuple[StrategyInfo, ...] = ()) -> dict[str, float]:
    chosen = [SelectedResult(result(name, {"a": 1.0}), 1.0) for name in names]
    return {each.result.strategy: each.weight for each in proportional(asked, chosen, offers)}


def test_shares() -> None:
    """In proportion to confidence; all together are one."""
    chosen = [SelectedResult(result("a", {}), 0.9), SelectedResult(result("b", {}), 0.3)]
    first, second = proportional(request(budget_tokens=100), chosen, ())
    assert (first.weight, second.weight) == (0.75, 0.25)
    assert [each.weight for each in equal(request(), chosen, ())] == [0.5, 0.5]
    assert proportional(request(), [], ()) == ()


def test_nobody_is_sure() -> None:
    """Then all count the same, however little that is."""
    chosen = [SelectedResult(result("a", {}), 5e-324), SelectedResult(result("b", {}), 0.0)]
    assert [each.weight for each in proportional(request(), chosen, ())] == [0.5, 0.5]


def test_the_blind_beside_the_seeing() -> None:
    """With a question, who does not look at it has next to no weight; without one, as much as anybody."""
    assert weights(request("what"), "keyword", "recency")["recency"] < 1.1 * QUERY_BLIND_QUALITY
    assert weights(request(""), "keyword", "recency")["recency"] == 0.5
    blind, seeing = StrategyInfo("mine", ("sizes",), False), StrategyInfo("mine", ("query",), False)  # noqa: FBT003 - positional
    assert weights(request(), "keyword", "mine", offers=(blind,))["mine"] < 1.1 * QUERY_BLIND_QUALITY
    assert weights(request(), "keyword", "mine", offers=(seeing,))["mine"] == 0.5
    assert weights(request(), "keyword", "mine")["mine"] == 0.2


def test_strategies_that_answer() -> None:
    """All but those that ignore the question; without a question, all."""
    chosen = [SelectedResult(result(name, {"a": 1.0}), 1.0) for name in ("keyword", "mine", "recency")]
    for allocate in (proportional, equal):
        assert [each.answers for each in allocate(request("what"), chosen, ())] == [True, True, False]
        assert [each.answers for each in allocate(request(""), chosen, ())] == [True, True, True]


def test_those_that_declare_nothing() -> None:
    """All together have a quarter of the weight of the strongest that answers; with none of these, they are it."""
    found = weights(request(), "keyword", "mine", "other", "third")
    assert found["mine"] == found["other"] == found["third"]
    assert sum(found.values()) - found["keyword"] == pytest.approx(UNDECLARED_SHARE * found["keyword"])
    unsure = [SelectedResult(result("keyword", {"a": 1.0}), 0.1), SelectedResult(result("mine", {"b": 1.0}), 1.0)]
    assert [each.weight for each in proportional(request(), unsure, ())] == pytest.approx([0.8, 0.2])
    modest = [SelectedResult(result("keyword", {"a": 1.0}), 1.0), SelectedResult(result("mine", {"b": 1.0}), 0.1)]
    assert [each.weight for each in proportional(request(), modest, ())] == pytest.approx([1 / 1.1, 0.1 / 1.1])
    assert weights(request(), "mine", "recency")["mine"] > 0.95
    assert weights(request(""), "mine", "recency")["mine"] == 0.2


def test_the_graph_needs_a_focus() -> None:
    """Without one it begins at the hits of keyword, and counts little beside it."""
    assert weights(request(), "graph", "keyword")["graph"] < 0.1
    assert weights(request(focus=["a.py"]), "graph", "keyword")["graph"] == 0.5


def test_blind_strategies_fill_what_is_left() -> None:
    """They displace no hit, and what they bring in comes behind all of them."""
    keyword = result("keyword", {"t3": 1.0, "t9": 0.9})
    recency = result("recency", {f"t{number}": 1.0 for number in range(12)}, confidence=0.2)
    few = answer(
        meeting().view(), keyword, recency, asked=request("number", budget_tokens=32), components={"expand": "alone"}
    )
    assert ids(few) == ["t3", "t9"]
    many = answer(meeting().view(), keyword, recency, asked=request("number", budget_tokens=320))
    assert len(many.fragments) == 12


def test_candidates() -> None:
    """More than fit are asked for: where hits lie close together shows only if there are some."""
    assert candidate_tokens(512) == CANDIDATE_TOKENS_MIN
    assert candidate_tokens(100_000) == 400_000
