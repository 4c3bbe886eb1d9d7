"""By the words of the query (BM25): what has most of them, and of the rarer ones, comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.strategies.index.bm25 import Bm25Index, Bm25Match
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.index.terms import query_terms
from stepwell.strategies.partition import ViewShare, unwrap_shares
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, merge_shares, requested_projects


class KeywordStrategy:
    """Scores by the words that a fragment and the query share.

    All statistics are of the fragment's own project: what another one holds changes no score.
    """

    name: str = "keyword"
    capabilities: frozenset[str] = frozenset({"query", "kinds"})

    def __init__(self, indexes: Bm25IndexCache | None = None) -> None:
        self._indexes: Final = Bm25IndexCache() if indexes is None else indexes

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Which share of the query's terms occurs, each counted by its weight, in the project that has most."""
        whole, _ = unwrap_shares(view)
        words = _query_terms(request)
        indexes = self._requested_indexes(request, whole) if words else ()
        return max((index.coverage([*words]) for index in indexes), default=0.0)

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """What matches, the best first; ties by project and id. As much as `fill` takes."""
        whole, portions = unwrap_shares(view)
        words = _query_terms(request)
        matches = [
            index.best([*words], RESULTS_MAX, kinds=request.kinds, portions=portions)
            for index in (self._requested_indexes(request, whole) if words else ())
        ]
        scored = (map(partial(_scored, words), each) for each in matches)
        return fill_budget(merge(*scored, key=by_score), budget_tokens)

    def _requested_indexes(self, request: ContextRequest, view: StrategyView) -> Iterator[Bm25Index]:
        """Files are listed for whoever asks for that."""
        for project in requested_projects(request, view):
            yield self._indexes.content(view, project)
            if FILE_KIND in request.kinds:
                yield self._indexes.listings(view, project)

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
        return merge_shares(shares, budget_tokens, by_score)


def _query_terms(request: ContextRequest) -> dict[str, str]:
    return dict(islice(query_terms(request.query).items(), limits.QUERY_TERMS_MAX))


def _scored(words: Mapping[str, str], match: Bm25Match) -> ScoredFragment:
    """The reason is the words that were asked for: a term may be half of one."""
    row, more = match.row, len(match.terms) - limits.REASON_WORDS_MAX
    found = ", ".join(words[term] for term in match.terms[: limits.REASON_WORDS_MAX])
    reason = found + (f" and {more} more" if more > 0 else "")
    return ScoredFragment(row.project, row.fragment_id, match.score, row.tokens, row.revision, reason)
