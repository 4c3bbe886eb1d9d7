"""The state: tables of immutable rows, and nothing else. Only `machine` changes it.

The state is not thread-safe and has no lock, because it has one owner: `manager.state_owner` in the manager's only
thread, which refuses every other process and thread. Deciders read the tables directly; they never write.

A change reaches the state as a `RowChanged`. `make` gives it to the table of the row's type and updates the counts of
references to bodies. `undo` is the exact inverse, until `forget_undo` says that the change stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.applies.table import TicketTable
from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.changesets.table import EntryTable
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.logs.table import LogTable
from stepwell.domain.plans.model import Action, Decision, Plan
from stepwell.domain.plans.table import PlanTable
from stepwell.domain.pools.model import TokenPool
from stepwell.domain.pools.table import PoolTable
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.receipts.table import ReceiptTable
from stepwell.domain.tables import Cell, SortedTable, Table
from stepwell.domain.tasks.model import Task, Worker
from stepwell.domain.tasks.queue import TaskTable, WorkerTable
from stepwell.domain.tiers.body_refs import BodyTable
from stepwell.domain.tiers.model import FragmentRow, TierBudget
from stepwell.domain.tiers.table import FragmentTable
from stepwell.domain.tiers.tier_index import FragmentEntry

if TYPE_CHECKING:
    from stepwell.domain.replies import Row
    from stepwell.domain.verdict import AnyChange


class _Swappable(Protocol):
    """A table: `swap` replaces a row by its successor, `unswap` with the same arguments undoes that."""

    def swap(self, before: object, after: object) -> None: ...
    def unswap(self, before: object, after: object) -> None: ...


_REFERRING = (FragmentRow, EntryRow, ReceiptRow, LogEntryRow, Task)
"""The types of rows that refer to bodies. Each has `held`, its references, and `tier`, from which it refers."""
_REFERRING_SET = frozenset[type](_REFERRING)
"""The same types, for a lookup by the exact type of a row."""


class State:
    """Tiers, plans, changesets, receipts and logs at one revision, and the tasks and workers of the moment.

    Rows of the first kind survive the manager: the store keeps them, and `revision` counts their changes. Tasks and
    workers end with the manager. `bodies` counts the references of all rows to bodies and is derived from them.
    """

    def __init__(self, budget: TierBudget | None = None) -> None:
        self.revision = 0  # grows by one with each write, and with each other step that changed a row which survives
        self._budget = Cell(budget or TierBudget())
        self.bodies = BodyTable()
        self.fragments = FragmentTable()
        self.actions: SortedTable[Action] = SortedTable()
        self.plans = PlanTable()
        self.decisions: Table[Decision] = Table()
        self.contexts: Table[ContextRow] = Table()
        self.changesets: Table[Changeset] = Table()
        self.entries = EntryTable()
        self.receipts = ReceiptTable()
        self.pools = PoolTable()
        self.logs = LogTable()
        self.tickets = TicketTable()
        # From here on, nothing survives the manager.
        self.tasks = TaskTable()
        self.workers = WorkerTable()
        tables: dict[type, object] = {
            FragmentRow: self.fragments,
            TierBudget: self._budget,
            Action: self.actions,
            Plan: self.plans,
            Decision: self.decisions,
            ContextRow: self.contexts,
            Changeset: self.changesets,
            EntryRow: self.entries,
            ReceiptRow: self.receipts,
            TokenPool: self.pools,
            LogRow: self.logs,
            LogEntryRow: self.logs.entries,
            ApplyTicket: self.tickets,
            Task: self.tasks,
            Worker: self.workers,
        }
        # A table only ever sees rows of the type under which it stands here; the type checker cannot express that.
        self._tables = cast("dict[type, _Swappable]", tables)

    @property
    def budget(self) -> TierBudget:
        """The bounds of the tiers, as the latest `SetBudget` left them."""
        return self._budget.row

    @property
    def row_count(self) -> int:
        """The number of rows that survive, without the entries of changesets, which are numbered without gaps, and
        without tickets, which end with their sessions.
        """
        return (
            len(self.fragments)
            + len(self.actions)
            + len(self.plans)
            + len(self.decisions)
            + len(self.contexts)
            + len(self.changesets)
            + len(self.receipts)
            + len(self.pools)
            + len(self.logs)
            + len(self.logs.entries)
        )

    @property
    def next_expiry_ms(self) -> int | None:
        """The time at which the first lease, or the first turn in a queue of applies, is over; None without any."""
        lease_ms, turn_ms = self.plans.next_expiry_ms, self.tickets.next_expiry_ms
        return turn_ms if lease_ms is None else lease_ms if turn_ms is None else min(lease_ms, turn_ms)

    def restore(
        self, revision: int, rows: Iterable[Row], fragments: Sequence[FragmentEntry], serial: int, tick: int
    ) -> None:
        """Fill a new state with the rows that a store has kept.

        `fragments` are in the order of their use, so that the order of eviction survives a restart. `serial` and `tick`
        are the counters of the fragment table.
        """
        self.revision = revision
        for row in rows:
            self._tables[type(row)].swap(self.budget if isinstance(row, TierBudget) else None, row)
            self._count_references(None, row)
        self.fragments.restore(fragments, serial, tick)
        for entry in fragments:
            self._count_references(None, entry.row)
        self.forget_undo()

    def make(self, change: AnyChange) -> None:
        """Make a change. It can be undone until the next `forget_undo`."""
        before, after = change.before, change.after
        kind = type(before if after is None else after)
        self._tables[kind].swap(before, after)
        if kind in _REFERRING_SET:
            self._count_references(before, after)

    def undo(self, change: AnyChange) -> None:
        """Undo a change, which must be the latest that was made and not undone yet."""
        before, after = change.before, change.after
        self._tables[type(after or before)].unswap(before, after)
        self._count_references(after, before)

    def forget_undo(self) -> None:
        """Accept all changes that were made: drop the information that undoing them would need."""
        self.fragments.forget_undo()
        self.bodies.forget_undo()

    def _count_references(self, before: object, after: object) -> None:
        # The new row counts first, so that the count of a body that both rows have does not pass through zero.
        if after is not None and isinstance(after, _REFERRING):
            for body in after.held:
                self.bodies.retain(body, after.tier)
        if before is not None and isinstance(before, _REFERRING):
            for body in before.held:
                self.bodies.release(body, before.tier)
