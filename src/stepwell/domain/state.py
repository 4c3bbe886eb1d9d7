"""The state: tables of immutable rows, and nothing else. It changes through `machine` alone.

Not thread-safe, and not meant to be: it has one owner, `stepwell.manager.state_owner`, who refuses all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, cast

from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.changesets.table import EntryTable
from stepwell.domain.plans.model import Action, Decision, Plan
from stepwell.domain.plans.table import PlanTable
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.receipts.table import ReceiptTable
from stepwell.domain.tables import Cell, Table
from stepwell.domain.tasks.model import Task, Worker
from stepwell.domain.tasks.queue import TaskTable, WorkerTable
from stepwell.domain.tiers.body_refs import BodyTable
from stepwell.domain.tiers.model import FragmentRow, TierBudget
from stepwell.domain.tiers.table import FragmentEntry, FragmentTable

if TYPE_CHECKING:
    from stepwell.domain.replies import Row
    from stepwell.domain.verdict import AnyChange


class _Swaps(Protocol):
    def swap(self, before: object, after: object) -> None: ...
    def unswap(self, before: object, after: object) -> None: ...


_HOLDERS = (FragmentRow, EntryRow, ReceiptRow, Task)
"""The rows that refer to bodies."""


class State:
    """Tiers, plans, changesets and receipts at one revision, and the tasks of the moment."""

    def __init__(self, budget: TierBudget | None = None) -> None:
        self.revision = 0
        self._budget = Cell(budget or TierBudget())
        self.bodies = BodyTable()
        self.fragments = FragmentTable()
        self.actions: Table[Action] = Table()
        self.plans = PlanTable()
        self.decisions: Table[Decision] = Table()
        self.contexts: Table[ContextRow] = Table()
        self.changesets: Table[Changeset] = Table()
        self.entries = EntryTable()
        self.receipts = ReceiptTable()
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
            Task: self.tasks,
            Worker: self.workers,
        }
        # A table only ever sees rows of the type under which it stands here.
        self._tables = cast("dict[type, _Swaps]", tables)

    @property
    def budget(self) -> TierBudget:
        return self._budget.row

    def restore(
        self, revision: int, rows: Iterable[Row], fragments: Sequence[FragmentEntry], serial: int, tick: int
    ) -> None:
        """Be as a state was that had these rows and fragments, the latter in the order of their use."""
        self.revision = revision
        for row in rows:
            self._tables[type(row)].swap(self.budget if isinstance(row, TierBudget) else None, row)
            self._count(None, row)
        self.fragments.restore(fragments, serial, tick)
        for entry in fragments:
            self._count(None, entry.row)
        self.settle()

    def forwards(self, change: AnyChange) -> None:
        """Make it so."""
        before, after = change.before, change.after
        self._tables[type(after or before)].swap(before, after)
        self._count(before, after)

    def backwards(self, change: AnyChange) -> None:
        """Undo the latest change that is not undone yet."""
        before, after = change.before, change.after
        self._tables[type(after or before)].unswap(before, after)
        self._count(after, before)

    def settle(self) -> None:
        """What was changed stays: forget how to undo it."""
        self.fragments.settle()
        self.bodies.settle()

    def _count(self, before: object, after: object) -> None:
        # New before old, so that a body which stays is never counted as gone.
        if after is not None and isinstance(after, _HOLDERS):
            for held in after.held:
                self.bodies.retain(held, after.tier)
        if before is not None and isinstance(before, _HOLDERS):
            for held in before.held:
                self.bodies.release(held, before.tier)
