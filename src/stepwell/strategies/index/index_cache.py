"""The indexes that a worker keeps, one for each project: whoever looks for words there shares them."""

from __future__ import annotations

from typing import Final

from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import is_content
from stepwell.strategies.index.bm25 import Bm25Index, Weights
from stepwell.strategies.index.incremental import PROJECTS_MAX, IndexCache
from stepwell.strategies.protocol import StrategyView

INDEXES_MAX: Final = PROJECTS_MAX
"""Projects of which a worker keeps the index, those that were asked for last: no request has more.

An index takes about 1.1 kB for a fragment of 100 words.
"""


class Indexes:
    """The index of a project, as of a view.

    Listings of files have one of their own: whoever does not ask for them is not told of them, and a word is worth
    what it is worth among the others.
    """

    def __init__(self, weights: Weights | None = None, indexes_max: int = INDEXES_MAX) -> None:
        given = Weights() if weights is None else weights
        self._content = IndexCache(lambda project: Bm25Index(project, given), indexes_max)
        self._listings = IndexCache(lambda project: Bm25Index(project, given, _is_listing), indexes_max)

    def __len__(self) -> int:
        return len(self._content) + len(self._listings)

    def index(self, view: StrategyView, project: str) -> Bm25Index:
        """Of everything but listings."""
        return self._content.of(view, project)

    def files(self, view: StrategyView, project: str) -> Bm25Index:
        """Of listings."""
        return self._listings.of(view, project)


def _is_listing(row: FragmentRow) -> bool:
    return not is_content(row)
