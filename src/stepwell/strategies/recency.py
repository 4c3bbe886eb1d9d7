"""Newest first. It knows nothing of what is asked, and so it is what remains when nothing is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from math import exp2
from typing import Final

from stepwell.domain.fragment import FragmentRow
from stepwell.domain.tier import HOT
from stepwell.strategies.base import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, Rank, asked_for, fill, merged
from stepwell.strategies.shares import ViewShare, in_portions, unshared

HALF_LIFE_MS: Final = 24 * 60 * 60 * 1000  # what is a day old counts half as much as what is new
UNASKED: Final = 0.5  # its confidence if nothing particular is asked
ASKED: Final = 0.2  # otherwise: that something is new says little about what it is

Dated = tuple[FragmentRow, int]


class RecencyStrategy:
    """Scores by age, which halves the score with each `HALF_LIFE_MS`; of what is equally old, the later revision."""

    name: str = "recency"
    capabilities: frozenset[str] = frozenset({"time"})

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Low, because it does not look at the query; 0 if there is nothing of that kind."""
        whole, _ = unshared(view)
        if not any(_is_wanted(request, row) for project in asked_for(request, whole) for row in whole.rows(project)):
            return 0.0
        return ASKED if request.query.strip() or request.focus else UNASKED

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """The newest. Without `as_of_ms`, now is when the newest of all that was asked for was written."""
        whole, portions = unshared(view)
        dated = [pair for project in asked_for(request, whole) for pair in _dated(whole.rows(project))]
        now_ms = max((at_ms for _, at_ms in dated), default=0) if request.as_of_ms is None else request.as_of_ms
        ranked = (
            (-_score(now_ms - at_ms), -row.revision, *row.key, now_ms - at_ms, row)
            for row, at_ms in reversed(dated)  # so that most are not among the newest when they come
            if _is_wanted(request, row) and in_portions(row, portions)
        )
        newest = nsmallest(RESULTS_MAX, ranked)
        return fill((_scored(row, age_ms) for *_, age_ms, row in newest), budget_tokens)

    def explain(self) -> str:
        """What it goes by."""
        return "Prefers what was written last: each day of age halves the score."

    def partition(self, view: StrategyView, part: int, parts: int) -> StrategyView:
        """Every so-many-th fragment."""
        return ViewShare(view, part, parts)

    def merge(
        self,
        request: ContextRequest,  # noqa: ARG002 - the scores have all of it
        shares: Sequence[Sequence[ScoredFragment]],
        budget_tokens: int,
    ) -> Sequence[ScoredFragment]:
        """The newest of all shares."""
        return merged(shares, budget_tokens, _rank)


def _is_wanted(request: ContextRequest, row: FragmentRow) -> bool:
    return not request.kinds or row.kind in request.kinds


def _dated(rows: Sequence[FragmentRow]) -> Iterator[Dated]:
    """When each was last written, as well as a row can tell.

    What is hot is as new as its arrival there: it was written then, or is in use. Any other arrival may be a demotion,
    which is no news. But revisions are in order of time, so that a body is not older than any fragment whose body
    has an earlier revision.
    """
    latest_ms = 0
    for row in sorted(rows, key=lambda row: row.revision):
        latest_ms = max(latest_ms, row.created_at_ms)
        yield row, row.placed_at_ms if row.tier is HOT else latest_ms


def _score(age_ms: int) -> float:
    """What came after the moment that counts as now is new."""
    return exp2(-max(0, age_ms) / HALF_LIFE_MS)


def _scored(row: FragmentRow, age_ms: int) -> ScoredFragment:
    reason = f"{max(0, age_ms) // 1000} s old"
    return ScoredFragment(row.project, row.fragment_id, _score(age_ms), row.tokens, row.revision, reason)


def _rank(fragment: ScoredFragment) -> Rank:
    return -fragment.score, -fragment.revision, fragment.project, fragment.fragment_id
