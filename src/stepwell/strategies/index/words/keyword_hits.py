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
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.index.words.bm25 import Bm25Index
from stepwell.strategies.index.words.query import ParsedQuery, parse_query
from stepwell.strategies.index.words.terms import is_stop_term
from stepwell.strategies.protocol import StrategyView


class KeywordHit(Struct, frozen=True, gc=False):
    """A fragment that has some of the words. `words_by_term` has the word of the text for each term."""

    row: FragmentRow
    score: float
    terms: tuple[str, ...]
    words_by_term: Mapping[str, str]

    @property
    def words(self) -> str:
        """The first words that it has, as the text spells them."""
        return ", ".join(found_words(self.terms, self.words_by_term)[: limits.REASON_WORDS_MAX])


def found_words(terms: Sequence[str], words_by_term: Mapping[str, str]) -> list[str]:
    """Return the words that terms stand for, each once: a word has several terms."""
    return [*dict.fromkeys(words_by_term[term] for term in terms)]


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
        return _hits(self._indexes.content(view, project), parse_query(text), limit, kinds)

    def best_of_rarest(
        self, text: str, view: StrategyView, project: str, limit: int, terms_max: int
    ) -> list[KeywordHit]:
        """Return the best hits of the rarest words of a text.

        The rare words of a long text say what it is about, and a search for few rare words is quick.
        """
        index, query = self._indexes.content(view, project), parse_query(text)
        terms = [*islice((term for term in query.words if not is_stop_term(term)), limits.RAREST_TERMS_EXAMINED_MAX)]
        frequencies = dict(zip(terms, index.frequencies(terms), strict=True))
        candidates = [term for term in terms if frequencies[term]]
        rarest = sorted(candidates, key=lambda term: (frequencies[term], term))
        return _hits(index, query.only(tuple(rarest[:terms_max])), limit, ())

    def confidence(self, text: str, view: StrategyView, project: str) -> float:
        """Return the share of the words of a text that occur, each weighted by its rarity."""
        query = parse_query(text)
        return self._indexes.content(view, project).coverage([*query.content_weights]) if query.weights else 0.0


def _hits(index: Bm25Index, query: ParsedQuery, limit: int, kinds: Sequence[str]) -> list[KeywordHit]:
    matches = index.best(query, limit, kinds=kinds) if query.weights else ()
    return [KeywordHit(match.row, match.score, match.terms, query.words) for match in matches]
