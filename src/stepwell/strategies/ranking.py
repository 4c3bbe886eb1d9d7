"""The rules of ranking that all strategies share: how many fragments a result has, and which rows qualify.

A result has about twice the tokens of the budget. With less, the assembly has no choice when two strategies name the
same fragment; more would cost time in each later stage and show nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import is_content
from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView

RESULTS_MAX: Final = limits.PAGE_ROWS_MAX  # fragments of one result
MARGIN: Final = 2  # times the budget: some fragments are also named by another strategy, or do not fit in the end

Rank = tuple[float | int | str, ...]
"""A sort key of fragments: the smallest comes first."""


def by_score(fragment: ScoredFragment) -> Rank:
    """Return the sort key of the usual order: the highest score first, ties by project and id."""
    return -fragment.score, fragment.project, fragment.fragment_id


def fill_budget(ranked: Iterable[ScoredFragment], budget_tokens: int) -> tuple[ScoredFragment, ...]:
    """Return the beginning of a ranking that has `MARGIN` times the budget, or `RESULTS_MAX` fragments.

    A fragment that is larger than the whole budget is included, because the assembly may show a shorter form of it. It
    does not count, because it may also be left out.
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
    """Return what `fill_budget` returns for the whole view, from the results for its shares.

    The result is exact: each share has at least as many of its best fragments as the result for the whole view takes of
    it.
    """
    return fill_budget(sorted(chain.from_iterable(shares), key=rank), budget_tokens)


def requested_projects(request: ContextRequest, view: StrategyView) -> list[str]:
    """Return the projects of a request that the view has, in the view's order."""
    return [project for project in view.projects if project in request.projects]


def has_requested_kind(request: ContextRequest, row: FragmentRow) -> bool:
    """Return True if a row is of a kind that the request asks for.

    A listing of a file is found only by a request that names its kind: its text repeats names that its parts have, too.
    """
    return row.kind in request.kinds if request.kinds else is_content(row)
