"""The pipeline as a whole: what an answer says of itself."""

import pytest
from msgspec.structs import replace

from stepwell.assembly.components import DEFAULT
from stepwell.assembly.inputs import AssemblyInputs, Failure
from stepwell.assembly.pipeline import assemble
from tests.support.assembly import answer, count, ids, meeting, request, result
from tests.support.strategy_views import Store


def test_provenance() -> None:
    """Of each fragment: source, revision, tier, strategies and scores."""
    store = meeting()
    found = answer(
        store.view(),
        result("keyword", {"t3": 7.0, "t4": 6.0}),
        result("semantic", {"t3": 0.5}),
        asked=request("number"),
    )
    by_id = {each.fragment_id: each for each in found.fragments}
    best = by_id["t3"]
    assert (best.source, best.tier, best.revision, best.depth) == ("s", "hot", 4, "full")
    assert best.strategies == ("keyword", "semantic")
    assert [(vote.rank, vote.score) for vote in best.votes] == [(1, 7.0), (1, 0.5)]
    assert best.score == best.scores.total == max(each.score for each in found.fragments)
    assert by_id["t2"].near == "t3"
    assert (found.epoch, found.revision) == ("epoch", store.revision)


def test_strategies_are_reported() -> None:
    """Those that were used, those that had nothing to say, and those that failed; how long they took, but not why."""
    found = answer(
        meeting().view(),
        result("keyword", {"t3": 1.0}, seconds=0.5),
        result("graph", {}, confidence=0.0),
        failures=[Failure("semantic", "TaskFailed", "it raised")],
    )
    told = {each.strategy: (each.weight, each.candidates, each.kept, each.seconds) for each in found.strategies}
    assert told == {"graph": (0.0, 0, 0, 0.0), "keyword": (1.0, 1, 1, 0.5), "semantic": (0.0, 0, 0, 0.0)}
    assert found.failures == (Failure("semantic", "TaskFailed", "it raised"),)
    assert [use.failure for use in found.receipt.strategies] == ["", "", "TaskFailed"]


def test_nothing_found() -> None:
    """An empty index gives an empty answer."""
    found = answer(Store().view(), result("keyword", {}))
    assert (found.fragments, found.text, found.total_tokens) == ((), "", 0)


@pytest.mark.parametrize("budget", range(1, 40))
def test_tiny_budgets(budget: int) -> None:
    """An answer without a preamble, or an empty one."""
    found = answer(meeting().view(), result("keyword", {"t3": 1.0}), asked=request(budget_tokens=budget))
    assert bool(found.fragments) == bool(found.text)


def test_counting_is_cheap() -> None:
    """All that is counted is a few times the budget, however many candidates there are."""
    view = meeting(800).view()
    counted: list[str] = []

    def counting(text: str) -> int:
        counted.append(text)
        return count(text)

    scores = result("keyword", {f"t{number}": 1 + number for number in range(800)})
    found = assemble(AssemblyInputs(request("number", budget_tokens=1_000), view, (scores,), counting))
    assert found.total_tokens > 950
    assert sum(map(len, counted)) < 15 * len(found.text)


def test_plain_functions_as_stages() -> None:
    """A stage need not be in the table."""
    shouting = replace(DEFAULT, preamble=lambda summary: (f"> {summary.shown} !",))
    question = AssemblyInputs(
        request("number", budget_tokens=800), meeting().view(), (result("keyword", {"t1": 1.0}),), count
    )
    assert assemble(question, shouting).text.startswith("> 12 !\n")
    assert ids(assemble(question, shouting))
