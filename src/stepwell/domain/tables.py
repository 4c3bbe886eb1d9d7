"""The generic tables of immutable rows. Each subject has its own table in its folder, most of them built on `Table`.

A table changes by `swap(before, after)` alone, which replaces a row by its successor with the same key; None on one
side inserts or deletes. `unswap` with the same arguments is the exact inverse. Whatever a table derives from its rows
(indexes, sums, orders) is updated inside these two methods, so that it can never disagree with the rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedList


class Keyed(Protocol):
    """A row that knows the key under which its table has it."""

    @property
    def key(self) -> Hashable: ...


class Named(Protocol):
    """A row whose key is a text."""

    @property
    def key(self) -> str: ...


RowT = TypeVar("RowT", bound=Keyed)
NamedT = TypeVar("NamedT", bound=Named)


class Table(Generic[RowT]):
    """Rows by key, in no order that a caller may rely on. Subclasses add an order and indexes."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, RowT] = {}

    def get(self, key: Hashable) -> RowT | None:
        """Return the row with this key, or None."""
        return self.rows.get(key)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RowT]:
        return iter(self.rows.values())

    def swap(self, before: RowT | None, after: RowT | None) -> None:
        """Replace `before` by `after`, which has the same key."""
        if after is not None:
            self.rows[after.key] = after
        elif before is not None:
            del self.rows[before.key]

    def unswap(self, before: RowT | None, after: RowT | None) -> None:
        """Undo `swap(before, after)`."""
        self.swap(after, before)


class SortedTable(Table[NamedT], Generic[NamedT]):
    """Rows by key, iterated in the order of their keys, which is the order of pages."""

    def __init__(self) -> None:
        super().__init__()
        self.order: SortedList[str] = SortedList()  # the keys of `rows`

    def __iter__(self) -> Iterator[NamedT]:
        return (self.rows[key] for key in self.order)

    def after(self, key: str | None) -> Iterator[NamedT]:
        """Iterate over the rows with a larger key; over all rows for None. The key need not exist any more."""
        for found in self.order.irange(key, inclusive=(False, True)):
            yield self.rows[found]

    def swap(self, before: NamedT | None, after: NamedT | None) -> None:
        """Replace `before` by `after`, which has the same key. Only an insertion or a deletion changes the order."""
        if before is not None and after is not None:
            self.rows[after.key] = after
        elif after is not None:
            self.rows[after.key] = after
            self.order.add(after.key)
        elif before is not None:
            del self.rows[before.key]
            self.order.remove(before.key)


class Cell(Generic[RowT]):
    """A table of exactly one row, which is replaced and never deleted."""

    def __init__(self, row: RowT) -> None:
        self.row = row

    def swap(self, _before: RowT, after: RowT) -> None:
        """Replace the row."""
        self.row = after

    def unswap(self, before: RowT, _after: RowT) -> None:
        """Undo `swap(before, _after)`."""
        self.row = before
