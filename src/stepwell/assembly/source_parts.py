"""The rows of the sources that have hits, found among all rows of a project.

A search through all rows takes milliseconds for each 100,000 of them, with each question. So the rows of a view that is
asked for a second time are kept by source. A project that changes between all questions costs one search for each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow

FindRows = Callable[[str, Sequence[FragmentRow], AbstractSet[str]], Iterable[FragmentRow]]
"""A function of a project, all of its rows and some sources to the rows of these sources, each source in order."""

_PROJECTS_MAX: Final = 4  # whose rows are kept


class _SeenRows(Struct, frozen=True):
    """The rows of a project at one revision; by source, if they were asked for again."""

    rows: Sequence[FragmentRow]
    by_source: Mapping[str, Sequence[FragmentRow]] | None = None


class SourceParts:
    """The rows of the projects that were asked for last, by source. Any number of threads may use it.

    Two threads may do the same work, or forget a project that the other one keeps; the results are the same.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _SeenRows] = {}

    def find(self, project: str, rows: Sequence[FragmentRow], sources: AbstractSet[str]) -> Iterable[FragmentRow]:
        """Return the rows of some sources. Rows are recognised as the same tuple, which never changes."""
        seen = self._seen.get(project)
        if seen is None or seen.rows is not rows or not isinstance(rows, tuple):
            self._replace_rows(project, _SeenRows(rows))
            return search(project, rows, sources)
        if seen.by_source is None:
            by_source: defaultdict[str, list[FragmentRow]] = defaultdict(list)
            for row in rows:
                by_source[row.source].append(row)
            seen = _SeenRows(rows, dict(by_source))
            self._replace_rows(project, seen)
        known = seen.by_source or {}
        return chain.from_iterable(known.get(source, ()) for source in sources)

    def _replace_rows(self, project: str, seen: _SeenRows) -> None:
        """Keep the rows of a project, and those of the few projects before it."""
        others = [(name, each) for name, each in self._seen.items() if name != project]
        self._seen = {**dict(others[1 - _PROJECTS_MAX :]), project: seen}


def search(project: str, rows: Sequence[FragmentRow], sources: AbstractSet[str]) -> list[FragmentRow]:  # noqa: ARG001 - as `FindRows` has it
    """Return the rows of some sources, without keeping anything."""
    return [row for row in rows if row.source in sources]
