"""By the words of the query (BM25): what has most of them, and of the rarer ones, comes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.strategies.base import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.index import Index, Match, Weights
from stepwell.strategies.ranking import RESULTS_MAX, asked_for, by_score, fill, merged
from stepwell.strategies.shares import ViewShare, unshared
from stepwell.strategies.terms import distinct

INDEXES_MAX: Final = limits.PROJECTS_PER_SESSION_MAX
"""Projects of which a worker keeps the index, those that were asked for last: no request has more.

An index takes about 1.6 kB for a fragment of 100 words.
"""

QUERY_TERMS_MAX: Final = 128  # the first ones: the commonest take 60 ms together among 100,000 fragments
_REASON_TERMS_MAX: Final = 8


class KeywordStrategy:
    """Scores by the words that a fragment and the query share.

    All statistics are of the fragment's own project: what another one holds changes no score.
    """

    name: str = "keyword"
    capabilities: frozenset[str] = frozenset({"query", "kinds"})

    def __init__(self, weights: Weights | None = None, indexes_max: int = INDEXES_MAX) -> None:
        self._weights: Final = Weights() if weights is None else weights
        self._indexes_max: Final = indexes_max
        self._indexes: OrderedDict[str, Index] = OrderedDict()

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Which share of the query's terms occurs, each counted by its weight, in the project that has most."""
        terms = _terms(request)
        if not terms:
            return 0.0
        whole, _ = unshared(view)
        return max((self._confidence(terms, whole, project) for project in asked_for(request, whole)), default=0.0)

    def _confidence(self, terms: Sequence[str], view: StrategyView, project: str) -> float:
        index = self._index(view, project)
        frequencies = index.frequencies(terms)
        return sum(index.weight(each) for each in frequencies if each) / sum(map(index.weight, frequencies))

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """What matches, the best first; ties by project and id. As much as `fill` takes."""
        whole, portions = unshared(view)
        terms = _terms(request)
        matches = [
            self._index(whole, project).best(terms, RESULTS_MAX, kinds=request.kinds, portions=portions)
            for project in (asked_for(request, whole) if terms else ())
        ]
        return fill(merge(*(map(_scored, each) for each in matches), key=by_score), budget_tokens)

    def explain(self) -> str:
        """What it goes by."""
        return (
            "Looks for the words of the query, and prefers fragments that have more of them, "
            "or rarer ones, or have them in their source or id."
        )

    def partition(self, view: StrategyView, part: int, parts: int) -> StrategyView:
        """Every so-many-th fragment is scored; the statistics stay those of the whole."""
        return ViewShare(view, part, parts)

    def merge(
        self,
        request: ContextRequest,  # noqa: ARG002 - the scores have all of it
        shares: Sequence[Sequence[ScoredFragment]],
        budget_tokens: int,
    ) -> Sequence[ScoredFragment]:
        """The best of all shares."""
        return merged(shares, budget_tokens, by_score)

    def _index(self, view: StrategyView, project: str) -> Index:
        """The index of a project in a view; the one that was not asked for the longest makes room."""
        index = self._indexes.setdefault(project, Index(project, self._weights))
        self._indexes.move_to_end(project)
        if len(self._indexes) > self._indexes_max:
            self._indexes.popitem(last=False)
        index.catch_up(view)
        return index


def _terms(request: ContextRequest) -> list[str]:
    return list(islice(distinct(request.query), QUERY_TERMS_MAX))


def _scored(match: Match) -> ScoredFragment:
    row, more = match.row, len(match.terms) - _REASON_TERMS_MAX
    reason = ", ".join(match.terms[:_REASON_TERMS_MAX]) + (f" and {more} more" if more > 0 else "")
    return ScoredFragment(row.project, row.fragment_id, match.score, row.tokens, row.revision, reason)
