"""Select: which answers are used, and what is not believed."""

import math

import pytest

import stepwell as sw
from stepwell.assembly.stages.select import FALLBACK, by_confidence, everything, names_to_ask, validate_results
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ScoredFragment, StrategyInfo
from tests.support.assembly import answer, meeting, request, result
from tests.support.strategy_views import Store


def test_names_to_ask() -> None:
    """What is preferred, or else what is offered, or else the fallback."""
    offers = [StrategyInfo("recency", ("time",), is_partitioned=True), StrategyInfo("graph", (), is_partitioned=False)]
    assert names_to_ask(request(), offers) == ("graph", "recency")
    assert names_to_ask(request(strategies=["mine"]), offers) == ("mine",)
    assert names_to_ask(request(), []) == (FALLBACK,)


def test_a_preference_counts() -> None:
    """It makes a strategy surer, and one that is sure of nothing worth asking; nobody is surer than 1."""
    results = [result("graph", {"a": 1.0}, confidence=0.0), result("keyword", {"a": 1.0}, confidence=0.9)]
    assert [each.confidence for each in by_confidence(request(), results)] == [0.9]
    preferred = by_confidence(request(strategies=["graph", "keyword"]), results)
    assert [each.confidence for each in preferred] == [0.25, 1.0]


def test_the_fallback() -> None:
    """If nobody is sure, it is keyword that counts; without it, everybody."""
    unsure = [result(name, {"a": 1.0}, confidence=0.0) for name in ("graph", "keyword", "recency")]
    assert [each.result.strategy for each in by_confidence(request(), unsure)] == ["keyword"]
    assert [each.result.strategy for each in by_confidence(request(), unsure[::2])] == ["graph", "recency"]
    assert by_confidence(request(), [result("keyword", {})]) == ()
    assert [each.confidence for each in everything(request(), unsure)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "fragment, reason",
    [
        (ScoredFragment("p", "t1", math.nan, 1, 1), "with a score of nan"),
        (ScoredFragment("p", "t1", -math.inf, 1, 1), "with a score of -inf"),
        (ScoredFragment("p", "t1", 1.0, -1, 1), "with -1 tokens"),
        (ScoredFragment("p", "nobody", 1.0, 1, 1), "which does not exist"),
        (ScoredFragment("q", "t1", 1.0, 1, 1), "which was not asked for"),
    ],
)
def test_what_cannot_be_true(fragment: ScoredFragment, reason: str) -> None:
    """It costs its strategy only, which the answer names."""
    bad = StrategyResult("bad", (fragment,), 1, 1.0)
    found = answer(meeting().view("p", "q"), bad, result("keyword", {"t1": 1.0}))
    assert [each.fragment_id for each in found.fragments[:1]] == ["t0"]
    (failure,) = found.failures
    assert (failure.strategy, failure.kind) == ("bad", "InvalidResult")
    assert reason in failure.message
    assert "Missing: bad" in found.text


@pytest.mark.parametrize("confidence", [math.nan, -0.1, 1.1])
def test_confidence_is_a_share(confidence: float) -> None:
    checked = validate_results(request(), meeting().view(), [result("bad", {"t1": 1.0}, confidence=confidence)])
    assert checked.results == ()
    assert "is confident" in checked.failures[0].message


def test_one_result_of_each() -> None:
    with pytest.raises(sw.InvalidArgument, match="two results of one strategy"):
        validate_results(request(), meeting().view(), [result("a", {}), result("a", {})])


def test_kinds_are_honoured() -> None:
    """Of another kind nothing is shown, whoever names it; what stands for a file, only if that is asked for."""
    store = Store()
    for fragment_id, kind in (("a", "code"), ("b", "prose"), ("c", "file")):
        store.store(fragment_id, f"body of {fragment_id}", kind=kind, source=fragment_id)
    named = result("mine", {"a": 1.0, "b": 1.0, "c": 1.0})
    asked = {kinds: request(kinds=kinds) for kinds in ((), ("code",), ("file",))}
    shown = {
        kinds: {each.fragment_id for each in answer(store.view(), named, asked=asked[kinds]).fragments}
        for kinds in asked
    }
    assert shown == {(): {"a", "b"}, ("code",): {"a"}, ("file",): {"c"}}
