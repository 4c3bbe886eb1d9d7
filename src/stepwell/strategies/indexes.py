"""The indexes that a worker keeps, one for each project: whoever looks for words there shares them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from stepwell import limits
from stepwell.domain.fragment import FragmentRow
from stepwell.domain.outline import is_content
from stepwell.strategies.base import StrategyView
from stepwell.strategies.index import Index, Weights

INDEXES_MAX: Final = limits.PROJECTS_PER_SESSION_MAX
"""Projects of which a worker keeps the index, those that were asked for last: no request has more.

An index takes about 1.1 kB for a fragment of 100 words.
"""


class Indexes:
    """The index of a project, as of a view.

    Listings of files have one of their own: whoever does not ask for them is not told of them, and a word is worth
    what it is worth among the others.
    """

    def __init__(self, weights: Weights | None = None, indexes_max: int = INDEXES_MAX) -> None:
        self._weights: Final = Weights() if weights is None else weights
        self._indexes_max: Final = indexes_max
        self._indexes: OrderedDict[tuple[str, bool], Index] = OrderedDict()

    def __len__(self) -> int:
        return len(self._indexes)

    def index(self, view: StrategyView, project: str) -> Index:
        """Of everything but listings."""
        return self._index(view, project, of_files=False)

    def files(self, view: StrategyView, project: str) -> Index:
        """Of listings."""
        return self._index(view, project, of_files=True)

    def _index(self, view: StrategyView, project: str, *, of_files: bool) -> Index:
        """The one that was not asked for the longest makes room."""
        key = project, of_files
        if key not in self._indexes:
            self._indexes[key] = Index(project, self._weights, _is_listing if of_files else is_content)
        self._indexes.move_to_end(key)
        if len(self._indexes) > self._indexes_max:
            self._indexes.popitem(last=False)
        index = self._indexes[key]
        index.catch_up(view)
        return index


def _is_listing(row: FragmentRow) -> bool:
    return not is_content(row)
