"""How many of its fragments a strategy gives: enough for whoever packs them to have a choice, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import is_content
from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView

RESULTS_MAX: Final = limits.PAGE_ROWS_MAX
MARGIN: Final = 2  # times the budget: some are left out because another strategy has them, or something fits better

Rank = tuple[float | int | str, ...]


def by_score(fragment: ScoredFragment) -> Rank:
    """The best first; of those that are equally good, by project and id."""
    return -fragment.score, fragment.project, fragment.fragment_id


def fill_budget(ranked: Iterable[ScoredFragment], budget_tokens: int) -> tuple[ScoredFragment, ...]:
    """The beginning of a ranking that has `MARGIN` times the budget, or `RESULTS_MAX` fragments.

    What is larger than the budget is given, because there may be a shallower form of it, but fills nothing.
    """
    if budget_tokens < 1:
        raise InvalidArgument(f"a budget is at least one token, not {budget_tokens}")
    taken: list[ScoredFragment] = []
    missing = MARGIN * budget_tokens
    for fragment in ranked:
        if missing <= 0 or len(taken) == RESULTS_MAX:
            break
        taken.append(fragment)
        if fragment.tokens <= budget_tokens:
            missing -= fragment.tokens
    return tuple(taken)


def merge_shares(
    shares: Sequence[Sequence[ScoredFragment]], budget_tokens: int, rank: Callable[[ScoredFragment], Rank]
) -> tuple[ScoredFragment, ...]:
    """What `fill` gives for the whole: of each share, it took as many as it would have taken from the whole."""
    return fill_budget(sorted(chain.from_iterable(shares), key=rank), budget_tokens)


def requested_projects(request: ContextRequest, view: StrategyView) -> list[str]:
    """The projects of a request that the view has, in the view's order."""
    return [project for project in view.projects if project in request.projects]


def has_requested_kind(request: ContextRequest, row: FragmentRow) -> bool:
    """Whether a row is of a kind that was asked for. One that stands for a file is shown to whoever names its kind."""
    return row.kind in request.kinds if request.kinds else is_content(row)
