"""The recency strategy: the fragments that were written last.

It ignores the query. So its confidence is low, and it matters where the request has no query, or where the other
strategies leave room. Its work can be divided among workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from math import exp2
from typing import Final

import numpy as np

from stepwell.strategies.index.columns import smallest
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.index.timeline import TimelineIndex
from stepwell.strategies.partition import Portion, ViewShare, unwrap_shares
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, Rank, fill_budget, merge_shares, requested_projects

HALF_LIFE_MS: Final = 24 * 60 * 60 * 1000  # after a day, a fragment has half of its score
AGE_MS_MAX: Final = 1_000 * HALF_LIFE_MS  # older fragments count as equally old: a float cannot tell their scores apart
_MOMENT_MS_MAX: Final = 1 << 62  # a later `as_of_ms` counts as this one, so that ages fit in 64 bits
CONFIDENCE_WITHOUT_QUERY: Final = 0.5  # for a request without query and focus
CONFIDENCE_WITH_QUERY: Final = 0.2  # otherwise: the age of a fragment says little about its subject


class RecencyStrategy:
    """Scores by age: each `HALF_LIFE_MS` halves the score. Of equally old fragments, the later revision comes first."""

    name: str = "recency"
    capabilities: frozenset[str] = frozenset({"time"})

    def __init__(self, timelines: IndexCache[TimelineIndex] | None = None) -> None:
        self._timelines: Final = IndexCache(TimelineIndex) if timelines is None else timelines

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return a low confidence, because the strategy ignores the query; 0 if no fragment is of a requested kind."""
        if not any(
            timeline.has_requested(request) for timeline in self._requested_timelines(request, unwrap_shares(view)[0])
        ):
            return 0.0
        return CONFIDENCE_WITH_QUERY if request.query.strip() or request.focus else CONFIDENCE_WITHOUT_QUERY

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the newest fragments.

        Without `as_of_ms`, now is the latest write in all requested projects. So the result does not depend on a clock,
        and all shares of a view use the same moment.
        """
        whole, portions = unwrap_shares(view)
        timelines = self._requested_timelines(request, whole)
        now_ms = request.as_of_ms
        if now_ms is None:
            now_ms = max((each.last_written_ms for each in timelines), default=0)
        newest = (_newest(each, request, portions, now_ms) for each in timelines)
        return fill_budget(merge(*newest, key=_rank), budget_tokens)

    def explain(self) -> str:
        """Return the rule in a sentence."""
        return "Prefers what was written last: each day of age halves the score."

    def partition(self, view: StrategyView, part: int, parts: int) -> StrategyView:
        """Return one share of a view."""
        return ViewShare(view, part, parts)

    def merge(
        self,
        request: ContextRequest,  # noqa: ARG002 - the scores depend on it already
        shares: Sequence[Sequence[ScoredFragment]],
        budget_tokens: int,
    ) -> Sequence[ScoredFragment]:
        """Return the newest fragments of all shares."""
        return merge_shares(shares, budget_tokens, _rank)

    def _requested_timelines(self, request: ContextRequest, view: StrategyView) -> list[TimelineIndex]:
        return [self._timelines.get(view, project) for project in requested_projects(request, view)]


def _newest(
    timeline: TimelineIndex, request: ContextRequest, portions: Sequence[Portion], now_ms: int
) -> Iterator[ScoredFragment]:
    """Return the newest fragments of one project. A write after the moment that counts as now has the age 0."""
    wanted = timeline.requested_slots(request)
    for part, parts in portions:
        wanted &= timeline.serials % parts == part
    slots = np.flatnonzero(wanted)
    ages_ms = np.maximum(0, min(now_ms, _MOMENT_MS_MAX) - timeline.written_ms[slots])
    capped_ages_ms, revisions = np.minimum(ages_ms, AGE_MS_MAX), timeline.revisions[slots]
    places = smallest((capped_ages_ms, -revisions), RESULTS_MAX).tolist()
    rows = [timeline.at(slot) for slot in slots[places].tolist()]
    ranked = sorted(
        (int(capped_ages_ms[place]), -row.revision, row.fragment_id, int(ages_ms[place]), row)
        for place, row in zip(places, rows, strict=True)
    )
    for capped_ms, _, _, age_ms, row in ranked:
        score = exp2(-capped_ms / HALF_LIFE_MS)
        yield ScoredFragment(row.project, row.fragment_id, score, row.tokens, row.revision, f"{age_ms // 1000} s old")


def _rank(fragment: ScoredFragment) -> Rank:
    return -fragment.score, -fragment.revision, fragment.project, fragment.fragment_id
