"""The semantic strategy: fragments that mean the same as the query, also in other words.

It needs an optional model, which `pip install 'stepwell[semantic]'` installs. Without the model the strategy has the
confidence 0 and `explain` says how to install it. The first request of a project computes a vector of each fragment;
later ones only of changed fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Final

import numpy as np

from stepwell import limits
from stepwell.strategies.index import embeddings
from stepwell.strategies.index.columns import smallest
from stepwell.strategies.index.embeddings import EmbeddingIndex
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, requested_projects

CONFIDENCE: Final = 0.4  # a similar meaning is weaker evidence than the same words
CONFIDENCE_IN_CODE: Final = 0.15  # of a project of code only: its names seldom have a meaning that the model knows
CODE: Final = "code"
_HINT: Final = "It has no model here: install it with `pip install 'stepwell[semantic]'`."


class SemanticStrategy:
    """Scores by the cosine of the angle between a fragment's vector and that of the query."""

    name: str = "semantic"
    capabilities: frozenset[str] = frozenset({"kinds", "meaning", "query"})

    def __init__(self, caches: IndexCaches | None = None) -> None:
        self._embeddings: Final = (IndexCaches() if caches is None else caches).embeddings

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return the less, the more of the fragments are code; 0 without a model or a query, and for a view of more
        than `limits.SEMANTIC_FRAGMENTS_MAX` fragments.
        """
        if not _can_answer(request, view):
            return 0.0
        shares = [self._embeddings.get(view, project).share_of(CODE) for project in requested_projects(request, view)]
        code = max(shares, default=0.0)
        return CONFIDENCE - (CONFIDENCE - CONFIDENCE_IN_CODE) * code

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the fragments with the most similar meaning; ties by project and id."""
        projects = requested_projects(request, view) if _can_answer(request, view) else ()
        found = [_similar(self._embeddings.get(view, project), request) for project in projects]
        return fill_budget(merge(*found, key=by_score), budget_tokens)

    def explain(self) -> str:
        """Return the rule in a sentence, and how to install the model if it is missing."""
        goes_by = "Prefers what means the same as the query, also in other words."
        return goes_by if embeddings.is_installed() else f"{goes_by} {_HINT}"


def _can_answer(request: ContextRequest, view: StrategyView) -> bool:
    """Return True if there is a model, a query, and a view that can be read within a task's deadline."""
    return bool(request.query.strip()) and 0 < len(view) <= limits.SEMANTIC_FRAGMENTS_MAX and embeddings.is_installed()


def _similar(index: EmbeddingIndex, request: ContextRequest) -> Iterator[ScoredFragment]:
    """Return the most similar fragments of one project, the best first."""
    similarities = index.similarities(request.query)
    slots = np.flatnonzero(index.requested_slots(request) & (similarities > 0))
    best = slots[smallest((-similarities[slots],), RESULTS_MAX)].tolist()
    ranked = sorted((-float(similarities[slot]), index.at(slot).fragment_id, index.at(slot)) for slot in best)
    for negated, _, row in ranked:
        reason = f"similarity {-negated:.2f}"
        yield ScoredFragment(row.project, row.fragment_id, -negated, row.tokens, row.revision, reason)
