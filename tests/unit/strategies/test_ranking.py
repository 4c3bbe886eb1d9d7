"""How many fragments a strategy gives."""

import pytest

from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import ScoredFragment
from stepwell.strategies.ranking import (
    MARGIN,
    RESULTS_MAX,
    by_score,
    fill_budget,
    has_requested_kind,
    merge_shares,
    requested_projects,
)
from tests.support.strategy_views import Store, ask, ids


def scored(fragment_id: str, score: float = 1.0, tokens: int = 10, project: str = "p") -> ScoredFragment:
    return ScoredFragment(project, fragment_id, score, tokens, 1)


def test_as_many_as_a_packer_needs() -> None:
    """The margin is filled, and not more."""
    ranked = [scored(str(number)) for number in range(100)]
    assert fill_budget(ranked, 100) == tuple(ranked[: 10 * MARGIN])
    assert fill_budget(ranked, 95) == tuple(ranked[: 10 * MARGIN - 1])
    assert fill_budget(ranked[:3], 100) == tuple(ranked[:3])


def test_what_does_not_fit_fills_nothing() -> None:
    """One fragment that is larger than the budget leaves room for those that are not."""
    ranked = [scored("large", tokens=1_000), *[scored(str(number)) for number in range(5)]]
    assert fill_budget(ranked, 10) == tuple(ranked[: 1 + MARGIN])


def test_at_most() -> None:
    ranked = [scored(str(number), tokens=1) for number in range(RESULTS_MAX + 1)]
    assert len(fill_budget(ranked, 1_000_000)) == RESULTS_MAX


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_of_nothing_is_an_error(budget: int) -> None:
    with pytest.raises(InvalidArgument, match="at least one token"):
        fill_budget([], budget)


def test_ties() -> None:
    """The best first, then by project, then by id."""
    ranked = [scored("b", 2.0, project="z"), scored("b"), scored("c"), scored("a", project="q")]
    assert merge_shares([ranked[2:], ranked[1::-1]], 1_000, by_score) == tuple(ranked)


def test_only_what_was_asked_for() -> None:
    """Projects come in the view's order, and only those that both have."""
    view = Store().view("a", "b", "c")
    assert requested_projects(ask("", "c", "x", "a"), view) == ["a", "c"]
    assert ids(fill_budget([], 1)) == []


def test_kinds() -> None:
    """Without a kind, all but what stands for a whole file; that is shown to whoever names it."""
    store = Store()
    code, file = store.store("a", kind="code"), store.store("file:a", kind="file")
    assert [has_requested_kind(ask(), row) for row in (code, file)] == [True, False]
    assert [has_requested_kind(ask(kinds=["file"]), row) for row in (code, file)] == [False, True]
    assert [has_requested_kind(ask(kinds=["code", "file"]), row) for row in (code, file)] == [True, True]
