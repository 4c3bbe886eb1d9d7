"""The search for the fragments that share most words with a text, for strategies that start from such fragments.

The graph, tiered and plan-decision strategies use it. It shares the word indexes of the keyword strategy, so each
project is indexed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.index.bm25 import Bm25Index
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.index.terms import query_terms, query_weight
from stepwell.strategies.protocol import StrategyView

_CHARS_PER_TERM: Final = 32  # on average, at most: only so much of a text is split into words


class KeywordHit(Struct, frozen=True, gc=False):
    """A fragment that has some of the words. `words_by_term` has the word of the text for each term."""

    row: FragmentRow
    score: float
    terms: tuple[str, ...]
    words_by_term: Mapping[str, str]

    @property
    def words(self) -> str:
        """The first words that it has, as the text spells them."""
        return ", ".join(self.words_by_term[term] for term in self.terms[: limits.REASON_WORDS_MAX])


class KeywordSearch:
    """Searches the word indexes, one project at a time: the contents of another project change nothing.

    The strategies of one worker share it. It has no lock, because a worker runs one request at a time.
    """

    def __init__(self, indexes: Bm25IndexCache | None = None) -> None:
        self._indexes: Final = Bm25IndexCache() if indexes is None else indexes

    def best(
        self, text: str, view: StrategyView, project: str, limit: int, *, kinds: Sequence[str] = ()
    ) -> list[KeywordHit]:
        """Return the fragments with most of the words of a text, the best first; ties by id."""
        words = _first_terms(text, limits.QUERY_TERMS_MAX)
        return _hits(self._indexes.content(view, project), words, [*words], limit, kinds)

    def best_of_rarest(
        self, text: str, view: StrategyView, project: str, limit: int, terms_max: int
    ) -> list[KeywordHit]:
        """Return the best hits of the rarest words of a text.

        The rare words of a long text say what it is about, and a search for few rare words is quick.
        """
        index, words = self._indexes.content(view, project), _first_terms(text, limits.RAREST_TERMS_EXAMINED_MAX)
        frequencies = dict(zip(words, index.frequencies(words), strict=True))
        candidates = [term for term in words if frequencies[term] and query_weight(term) == 1]
        rarest = sorted(candidates, key=lambda term: (frequencies[term], term))
        return _hits(index, words, rarest[:terms_max], limit, ())

    def confidence(self, text: str, view: StrategyView, project: str) -> float:
        """Return the share of the words of a text that occur, each weighted by its rarity."""
        words = _first_terms(text, limits.QUERY_TERMS_MAX)
        return self._indexes.content(view, project).coverage([*words]) if words else 0.0


def _first_terms(text: str, terms_max: int) -> dict[str, str]:
    """Return the first terms of a text, each with the word that it stands for."""
    return dict(islice(query_terms(text[: terms_max * _CHARS_PER_TERM]).items(), terms_max))


def _hits(
    index: Bm25Index, words: dict[str, str], terms: Sequence[str], limit: int, kinds: Sequence[str]
) -> list[KeywordHit]:
    matches = index.best(terms, limit, kinds=kinds) if terms else ()
    return [KeywordHit(match.row, match.score, match.terms, words) for match in matches]
