"""By meaning: what says the same in other words. It needs a model, which is an extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Final

import numpy as np

from stepwell import limits
from stepwell.strategies.index import embeddings
from stepwell.strategies.index.columns import smallest
from stepwell.strategies.index.embeddings import EmbeddingIndex
from stepwell.strategies.index.index_cache import IndexCache
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, requested_projects

CONFIDENCE: Final = 0.4  # its confidence: what means the same may still not be what was asked
_HINT: Final = "It has no model here: install it with `pip install 'stepwell[semantic]'`."


class SemanticStrategy:
    """Scores by the angle between a fragment's vector and that of the query."""

    name: str = "semantic"
    capabilities: frozenset[str] = frozenset({"kinds", "meaning", "query"})

    def __init__(self) -> None:
        self._embeddings: Final = IndexCache(_embeddings)

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """0 without a model or a query, and of more than `FRAGMENTS_MAX` fragments."""
        return CONFIDENCE if _can_answer(request, view) else 0.0

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """What means most nearly the same; ties by project and id. As much as `fill` takes."""
        projects = requested_projects(request, view) if _can_answer(request, view) else ()
        found = [_similar(self._embeddings.get(view, project), request) for project in projects]
        return fill_budget(merge(*found, key=by_score), budget_tokens)

    def explain(self) -> str:
        """What it goes by."""
        goes_by = "Prefers what means the same as the query, also in other words."
        return goes_by if embeddings.is_installed() else f"{goes_by} {_HINT}"


def _embeddings(project: str) -> EmbeddingIndex:
    return EmbeddingIndex(project, embeddings.load())


def _can_answer(request: ContextRequest, view: StrategyView) -> bool:
    return bool(request.query.strip()) and 0 < len(view) <= limits.SEMANTIC_FRAGMENTS_MAX and embeddings.is_installed()


def _similar(kept: EmbeddingIndex, request: ContextRequest) -> Iterator[ScoredFragment]:
    similarities = kept.similarities(request.query)
    slots = np.flatnonzero(kept.requested_slots(request) & (similarities > 0))
    best = slots[smallest((-similarities[slots],), RESULTS_MAX)].tolist()
    for less, _, row in sorted((-float(similarities[slot]), kept.at(slot).fragment_id, kept.at(slot)) for slot in best):
        reason = f"similarity {-less:.2f}"
        yield ScoredFragment(row.project, row.fragment_id, -less, row.tokens, row.revision, reason)
