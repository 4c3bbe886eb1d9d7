"""Tables of immutable rows. A table changes by `swap` alone, and `unswap` is its inverse."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedDict


class Keyed(Protocol):
    """A row knows its key."""

    @property
    def key(self) -> Hashable: ...


RowT = TypeVar("RowT", bound=Keyed)


class Table(Generic[RowT]):
    """Rows by key, in order of key."""

    def __init__(self) -> None:
        self.rows: SortedDict[Hashable, RowT] = SortedDict()

    def get(self, key: Hashable) -> RowT | None:
        row: RowT | None = self.rows.get(key)
        return row

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RowT]:
        return iter(self.rows.values())

    def after(self, key: str | None) -> Iterator[RowT]:
        """Rows behind a key, or all."""
        for found in self.rows.irange(key, inclusive=(False, True)):
            yield self.rows[found]

    def swap(self, before: RowT | None, after: RowT | None) -> None:
        """Take one row for another with the same key."""
        if after is not None:
            self.rows[after.key] = after
        elif before is not None:
            del self.rows[before.key]

    def unswap(self, before: RowT | None, after: RowT | None) -> None:
        """Undo a swap."""
        self.swap(after, before)


class Cell(Generic[RowT]):
    """A table of exactly one row."""

    def __init__(self, row: RowT) -> None:
        self.row = row

    def swap(self, _before: RowT, after: RowT) -> None:
        self.row = after

    def unswap(self, before: RowT, _after: RowT) -> None:
        self.row = before
