"""Tables of immutable rows. A table changes by `swap` alone, and `unswap` is its inverse."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from sortedcontainers import SortedDict, SortedList

from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.plans.lifecycle import TERMINAL
from stepwell.domain.plans.model import Plan
from stepwell.domain.receipts.model import ReceiptRow


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


class PlanTable(Table[Plan]):
    """Plans by id and by tree, their leases by session and by expiry, and the roots that are over by their end."""

    def __init__(self) -> None:
        super().__init__()
        self.by_session: dict[str, set[str]] = {}
        self.by_expiry: SortedList[tuple[int, str]] = SortedList()
        self.by_root: dict[str, set[str]] = {}
        self.by_end: SortedList[tuple[int, str]] = SortedList()

    def swap(self, before: Plan | None, after: Plan | None) -> None:
        super().swap(before, after)
        if before and after is None:
            self._fell(before)
        if after and before is None:
            self.by_root.setdefault(after.root_plan_id, set()).add(after.plan_id)
        if before and (end := _end(before)):
            self.by_end.remove(end)
        if after and (end := _end(after)):
            self.by_end.add(end)
        old, new = before and before.lease, after and after.lease
        if before and old:
            self.by_expiry.remove((old.expires_at_ms, before.plan_id))
            self.by_session[old.session_id].discard(before.plan_id)
            if not self.by_session[old.session_id]:
                del self.by_session[old.session_id]
        if after and new:
            self.by_expiry.add((new.expires_at_ms, after.plan_id))
            self.by_session.setdefault(new.session_id, set()).add(after.plan_id)

    def _fell(self, plan: Plan) -> None:
        tree = self.by_root[plan.root_plan_id]
        tree.discard(plan.plan_id)
        if not tree:
            del self.by_root[plan.root_plan_id]

    def tree(self, root_plan_id: str) -> list[Plan]:
        """A root and everybody below it, disowned or not, children before parents."""
        plans = (self.rows[plan_id] for plan_id in self.by_root.get(root_plan_id, ()))
        return sorted(plans, key=lambda plan: (-plan.depth, plan.plan_id))

    def leased_to(self, session_id: str) -> list[Plan]:
        """The plans that a session works on, in order of id."""
        return [self.rows[plan_id] for plan_id in sorted(self.by_session.get(session_id, ()))]

    def expired(self, now_ms: int) -> Iterator[Plan]:
        """The plans whose lease is over, the longest first."""
        return (self.rows[plan_id] for _, plan_id in self.by_expiry.irange(None, (now_ms, "\x7f")))

    @property
    def next_expiry_ms(self) -> int | None:
        """When the first lease ends."""
        return self.by_expiry[0][0] if self.by_expiry else None


def _end(plan: Plan) -> tuple[int, str] | None:
    """Under what a root that is over is filed. None for any other plan."""
    if plan.parent_plan_id is not None or plan.position not in TERMINAL:
        return None
    return plan.ended_at_ms or 0, plan.plan_id


class EntryTable:
    """Entries of changesets: they come and go at the end only."""

    def __init__(self) -> None:
        self.by_changeset: dict[str, list[EntryRow]] = {}
        self.by_plan: dict[str, int] = {}

    def swap(self, before: EntryRow | None, after: EntryRow | None) -> None:
        if after is not None:
            self.by_changeset.setdefault(after.changeset_id, []).append(after)
            self.by_plan[after.plan_id] = self.by_plan.get(after.plan_id, 0) + 1
        elif before is not None:
            self.by_changeset[before.changeset_id].pop()
            self.by_plan[before.plan_id] -= 1
            if not self.by_changeset[before.changeset_id]:
                del self.by_changeset[before.changeset_id]
            if not self.by_plan[before.plan_id]:
                del self.by_plan[before.plan_id]

    def unswap(self, before: EntryRow | None, after: EntryRow | None) -> None:
        self.swap(after, before)

    def of(self, changeset_id: str) -> list[EntryRow]:
        """A changeset's entries in order. Not to be changed."""
        return self.by_changeset.get(changeset_id, [])


class ReceiptTable(Table[ReceiptRow]):
    """Receipts by id and in the order in which they came, and how many bytes they have."""

    def __init__(self) -> None:
        super().__init__()
        self.by_serial: SortedDict[int, str] = SortedDict()
        self.bytes = 0

    @property
    def next_serial(self) -> int:
        """Behind the newest one."""
        return self.by_serial.peekitem()[0] + 1 if self.by_serial else 1

    def swap(self, before: ReceiptRow | None, after: ReceiptRow | None) -> None:
        super().swap(before, after)
        if before is not None:
            del self.by_serial[before.serial]
            self.bytes -= before.size
        if after is not None:
            self.by_serial[after.serial] = after.receipt_id
            self.bytes += after.size

    def before(self, serial: int | None) -> Iterator[ReceiptRow]:
        """Those that came before one, or all; the newest first."""
        for at in self.by_serial.irange(None, serial, inclusive=(True, False), reverse=True):
            yield self.rows[self.by_serial[at]]

    def surplus(self, count: int, size: int) -> list[ReceiptRow]:
        """The oldest, no more of them than it takes to leave so many, of so many bytes together."""
        leaving: list[ReceiptRow] = []
        left_count, left_bytes = len(self), self.bytes
        for receipt_id in self.by_serial.values():
            if left_count <= count and left_bytes <= size:
                break
            row = self.rows[receipt_id]
            leaving.append(row)
            left_count -= 1
            left_bytes -= row.size
        return leaving
