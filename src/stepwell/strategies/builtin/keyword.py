"""The keyword strategy: fragments that have the words of the query, ranked by BM25F and by the files that they are in.

A fragment that has more of the words, or rarer ones, or has them in its name or path, comes first. The strategy needs
no model and no metadata, so it is also the fallback when no other strategy has an answer. Its work can be divided among
workers: each scores its share with the statistics of the whole view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from typing import Final

from stepwell import limits
from stepwell.domain.tiers.source_outline import FILE_KIND
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.index.words.bm25 import Bm25Index, Bm25Match
from stepwell.strategies.index.words.keyword_hits import found_words
from stepwell.strategies.index.words.query import parse_query
from stepwell.strategies.partition import ViewShare, unwrap_shares
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.strategies.ranking import RESULTS_MAX, by_score, fill_budget, merge_shares, requested_projects


class KeywordStrategy:
    """Scores by the words that a fragment shares with the query.

    All statistics come from the fragment's own project: the contents of another project change no score.
    """

    name: str = "keyword"
    capabilities: frozenset[str] = frozenset({"query", "kinds"})

    def __init__(self, indexes: Bm25IndexCache | None = None) -> None:
        self._indexes: Final = Bm25IndexCache() if indexes is None else indexes

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:
        """Return the share of the query's terms that occur, weighted by their rarity, in the best of the projects."""
        whole, _ = unwrap_shares(view)
        query = parse_query(request.query)
        indexes = self._requested_indexes(request, whole) if query.weights else ()
        return max((index.coverage([*query.content_weights]) for index in indexes), default=0.0)

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the matching fragments, the best first; ties by project and id."""
        whole, portions = unwrap_shares(view)
        query = parse_query(request.query)
        matches = [
            index.best(query, RESULTS_MAX, kinds=request.kinds, portions=portions)
            for index in (self._requested_indexes(request, whole) if query.weights else ())
        ]
        scored = (map(partial(_scored, query.words), each) for each in matches)
        return fill_budget(merge(*scored, key=by_score), budget_tokens)

    def _requested_indexes(self, request: ContextRequest, view: StrategyView) -> Iterator[Bm25Index]:
        """Return the indexes that the request needs: that of listings of files only if it names their kind."""
        for project in requested_projects(request, view):
            yield self._indexes.content(view, project)
            if FILE_KIND in request.kinds:
                yield self._indexes.listings(view, project)

    def explain(self) -> str:
        """Return the rule in a sentence."""
        return (
            "Looks for the words of the query, and prefers fragments that have more of them, "
            "or rarer ones, or have them in their name or path, and the files that have most of them."
        )

    def partition(self, view: StrategyView, part: int, parts: int) -> StrategyView:
        """Return one share of a view. The statistics stay those of the whole view."""
        return ViewShare(view, part, parts)

    def merge(
        self,
        request: ContextRequest,  # noqa: ARG002 - the scores depend on it already
        shares: Sequence[Sequence[ScoredFragment]],
        budget_tokens: int,
    ) -> Sequence[ScoredFragment]:
        """Return the best fragments of all shares."""
        return merge_shares(shares, budget_tokens, by_score)


def _scored(words: Mapping[str, str], match: Bm25Match) -> ScoredFragment:
    """Return the scored fragment of a match.

    Its reason names the words of the query, because a term may be half of one; without any, a traceback points to it.
    """
    row, found = match.row, found_words(match.terms, words)
    more = len(found) - limits.REASON_WORDS_MAX
    shown = ", ".join(found[: limits.REASON_WORDS_MAX]) or "named by a line of the query"
    reason = shown + (f" and {more} more" if more > 0 else "")
    return ScoredFragment(row.project, row.fragment_id, match.score, row.tokens, row.revision, reason)
