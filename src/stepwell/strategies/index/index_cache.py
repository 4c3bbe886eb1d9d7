"""The caches of indexes that a worker process keeps between two requests.

Building an index reads every body of a project; bringing an index to a newer view reads only the bodies that changed.
A worker therefore keeps one index for each project and kind of index. Strategies that need the same index share one
cache: `registry.built_in` passes it to their constructors.

A cache belongs to one worker process. It has no lock, because a worker gives its strategies one request at a time. It
is bounded by the number of projects, and the project that was used least recently makes room for the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from stepwell import limits
from stepwell.domain.tiers.commit_history import HISTORY_ID
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import is_content
from stepwell.strategies.index import embeddings
from stepwell.strategies.index.embeddings import EmbeddingIndex
from stepwell.strategies.index.incremental import IncrementalIndex
from stepwell.strategies.index.proximity import ProximityIndex
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces
from stepwell.strategies.index.timeline import TimelineIndex
from stepwell.strategies.index.words.bm25 import Bm25Index
from stepwell.strategies.index.words.fields import Weights
from stepwell.strategies.protocol import StrategyView

I = TypeVar("I", bound=IncrementalIndex)  # noqa: E741 - the usual name of an index


class IndexCache(Generic[I]):
    """One index of a kind for each of the projects that were used last.

    `build` makes the empty index of a project. An index that leaves the cache is built anew when its project is used
    again; the result is the same, because an index depends on nothing but the view.
    """

    def __init__(self, build: Callable[[str], I], projects_max: int = limits.INDEXED_PROJECTS_MAX) -> None:
        self._build: Final = build
        self._projects_max: Final = projects_max
        self._indexes: OrderedDict[str, I] = OrderedDict()
        """By project, the one that was used least recently first."""

    def __len__(self) -> int:
        return len(self._indexes)

    def get(self, view: StrategyView, project: str) -> I:
        """Return the index of a project, brought to the state of a view.

        It is valid until the next call: then it may follow another view. An error while a body is read leaves an
        index that the next call repairs.
        """
        index = self._indexes.get(project)
        if index is None:
            index = self._indexes[project] = self._build(project)
        self._indexes.move_to_end(project)
        if len(self._indexes) > self._projects_max:
            self._indexes.popitem(last=False)
        index.catch_up(view)
        return index

    def known(self, project: str) -> I | None:
        """Return the index of a project as it is, or None if there is none yet."""
        return self._indexes.get(project)

    def restore(self, project: str, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        """Put the index of a snapshot into the cache."""
        index = self._build(project)
        index.restore(snapshot, places)
        self._indexes[project] = index


class Bm25IndexCache:
    """The word indexes of projects: for each project one of its content, and one of its listings of files.

    A listing of a file has an index of its own because only a request that names its kind may see it, and because the
    weight of a word is its frequency among the fragments that compete with each other.
    """

    def __init__(self, weights: Weights | None = None, projects_max: int = limits.INDEXED_PROJECTS_MAX) -> None:
        given = Weights() if weights is None else weights
        self.all_content: Final = IndexCache(lambda project: Bm25Index(project, given), projects_max)
        self._listings = IndexCache(lambda project: Bm25Index(project, given, _is_listing), projects_max)

    def __len__(self) -> int:
        return len(self.all_content) + len(self._listings)

    def content(self, view: StrategyView, project: str) -> Bm25Index:
        """Return the index of all fragments of a project but its listings of files."""
        return self.all_content.get(view, project)

    def listings(self, view: StrategyView, project: str) -> Bm25Index:
        """Return the index of a project's listings of files."""
        return self._listings.get(view, project)


class IndexCaches:
    """One cache for each kind of index. The strategies of one worker share them."""

    def __init__(self) -> None:
        self.words: Final = Bm25IndexCache()
        self.neighbours: Final = IndexCache(ProximityIndex)
        self.timelines: Final = IndexCache(TimelineIndex)
        self.embeddings: Final = IndexCache(_embedding_index)

    def stored(self) -> dict[str, IndexCache[Any]]:
        """Return the caches whose indexes can be stored, by name: all but that of the listings of files."""
        return {
            "words": self.words.all_content,
            "neighbours": self.neighbours,
            "timelines": self.timelines,
            "embeddings": self.embeddings,
        }

    def following(self, project: str) -> list[IndexCache[Any]]:
        """Return the caches whose indexes are worth being kept up to date: that of embeddings only if it has one.

        It takes far longer than the others, and a model that may not be there.
        """
        has_embeddings = self.embeddings.known(project) is not None
        return [self.words.all_content, self.neighbours, self.timelines, *([self.embeddings] if has_embeddings else [])]


def _embedding_index(project: str) -> EmbeddingIndex:
    """Return an empty index. The model is loaded when the first text is embedded."""
    return EmbeddingIndex(project, embeddings.embed)


def _is_listing(row: FragmentRow) -> bool:
    return not is_content(row) and row.fragment_id != HISTORY_ID
