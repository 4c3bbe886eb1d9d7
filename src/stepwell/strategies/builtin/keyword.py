"""By the words of the query (BM25): what has most of them, and of the rarer ones, comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.strategies.index.bm25 import Bm25Index, Match
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.index.terms import asked
from stepwell.strategies.partition import ViewShare, unshared
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, asked_for, by_score, fill, merged


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
        whole, _ = unshared(view)
        words = _asked(request)
        indexes = self._asked_for(request, whole) if words else ()
        return max((index.share([*words]) for index in indexes), default=0.0)

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """What matches, the best first; ties by project and id. As much as `fill` takes."""
        whole, portions = unshared(view)
        words = _asked(request)
        matches = [
            index.best([*words], RESULTS_MAX, kinds=request.kinds, portions=portions)
            for index in (self._asked_for(request, whole) if words else ())
        ]
        scored = (map(partial(_scored, words), each) for each in matches)
        return fill(merge(*scored, key=by_score), budget_tokens)

    def _asked_for(self, request: ContextRequest, view: StrategyView) -> Iterator[Bm25Index]:
        """Files are listed for whoever asks for that."""
        for project in asked_for(request, view):
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
        return merged(shares, budget_tokens, by_score)


def _asked(request: ContextRequest) -> dict[str, str]:
    return dict(islice(asked(request.query).items(), limits.QUERY_TERMS_MAX))


def _scored(words: Mapping[str, str], match: Match) -> ScoredFragment:
    """The reason is the words that were asked for: a term may be half of one."""
    row, more = match.row, len(match.terms) - limits.REASON_WORDS_MAX
    found = ", ".join(words[term] for term in match.terms[: limits.REASON_WORDS_MAX])
    reason = found + (f" and {more} more" if more > 0 else "")
    return ScoredFragment(row.project, row.fragment_id, match.score, row.tokens, row.revision, reason)
