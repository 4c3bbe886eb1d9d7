"""The tiered strategy: hot fragments before warm ones before cold ones.

A fragment is hot because a client has stored or used it lately, so the hot tier is what is being worked on. Within a
tier, the words of the query decide or, without a query, the time of arrival in the tier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Final

import numpy as np

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index.columns import smallest
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.index.timeline import TIER_RANKS, TimelineIndex
from stepwell.strategies.index.words.keyword_hits import KeywordSearch
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, fill_budget, requested_projects

CONFIDENCE_WITHOUT_QUERY: Final = 0.4  # for a request without query and focus
CONFIDENCE_WITH_QUERY: Final = 0.15  # otherwise: the tier of a fragment says little about its subject

_MOMENT_BITS: Final = 60  # of a sort key whose highest bits are the tier: more milliseconds than any clock will show
_Ranked = tuple[int, float | int, int, str, str, FragmentRow]
"""A sort key and its row: tier, precedence within the tier, negated revision, project and id."""


class TieredStrategy:
    """Scores by tier; within a tier by the query's words or, without a query, by the time of arrival.

    With a query, only fragments that have some of its words are shown, of each project the `RESULTS_MAX` best.
    """

    name: str = "tiered"
    capabilities: frozenset[str] = frozenset({"kinds", "tiers"})

    def __init__(self, hits: KeywordSearch | None = None, timelines: IndexCache[TimelineIndex] | None = None) -> None:
        self._hits: Final = KeywordSearch() if hits is None else hits
        self._timelines: Final = IndexCache(TimelineIndex) if timelines is None else timelines

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return a low confidence, because the strategy does not rank by the query; 0 if no fragment is of a requested
        kind.
        """
        if not any(
            self._timelines.get(view, project).has_requested(request) for project in requested_projects(request, view)
        ):
            return 0.0
        return CONFIDENCE_WITH_QUERY if request.query.strip() or request.focus else CONFIDENCE_WITHOUT_QUERY

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the fragments of the hot tier first."""
        ranked = self._ranked_by_words if request.query.strip() else self._ranked_by_arrival
        found = merge(*(ranked(request, view, project) for project in requested_projects(request, view)))
        return fill_budget(map(_scored, found), budget_tokens)

    def explain(self) -> str:
        """Return the rule in a sentence."""
        return (
            "Shows what is hot before what is warm before what is cold; within a tier what has most of the query's "
            "words or, without a query, what came there last."
        )

    def _ranked_by_words(self, request: ContextRequest, view: StrategyView, project: str) -> list[_Ranked]:
        """Return the best keyword hits of one project, in order of tier and score."""
        hits = self._hits.best(request.query, view, project, RESULTS_MAX, kinds=request.kinds)
        return sorted(_ranked(hit.row, -hit.score) for hit in hits)

    def _ranked_by_arrival(self, request: ContextRequest, view: StrategyView, project: str) -> Iterator[_Ranked]:
        """Return the fragments of one project, in order of tier and arrival."""
        timeline = self._timelines.get(view, project)
        slots = np.flatnonzero(timeline.requested_slots(request))
        tiers, placed_ms = timeline.tiers[slots], timeline.placed_ms[slots]
        places = smallest(((tiers << _MOMENT_BITS) - placed_ms, -timeline.revisions[slots]), RESULTS_MAX)
        rows = [timeline.at(slot) for slot in slots[places].tolist()]
        return iter(sorted(_ranked(row, -row.placed_at_ms) for row in rows))


def _ranked(row: FragmentRow, precedence: float) -> _Ranked:
    return TIER_RANKS[row.tier], precedence, -row.revision, row.project, row.fragment_id, row


def _scored(ranked: _Ranked) -> ScoredFragment:
    """Return the scored fragment. A tier adds 1, and the precedence within it less than 0.5, so tiers never overlap."""
    tier, precedence, *_, row = ranked
    within = -precedence / (1 - precedence)
    score = len(TIER_RANKS) - tier + within / 2
    return ScoredFragment(row.project, row.fragment_id, score, row.tokens, row.revision, f"is {row.tier}")
