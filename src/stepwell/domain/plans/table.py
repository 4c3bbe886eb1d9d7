"""The table of plans, with its indexes: trees, leases by session and by expiry, and ended roots by their end.

The indexes exist so that the manager never scans all plans: a session that ends finds its leases, the sweep finds the
leases that have expired, and retention finds the trees that ended first.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from stepwell.domain.plans.lifecycle import TERMINAL_STATES
from stepwell.domain.plans.model import Plan
from stepwell.domain.tables import SortedTable


class PlanTable(SortedTable[Plan]):
    """Plans by id and by tree, their leases by session and by expiry, and the roots that have ended by their end.

    Owned by the `State`. Deciders only read it; `swap` keeps all indexes in agreement with the rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_session: dict[str, set[str]] = {}
        self.by_expiry: SortedList[tuple[int, str]] = SortedList()
        self.by_root: dict[str, set[str]] = {}
        self.by_end: SortedList[tuple[int, str]] = SortedList()

    def swap(self, before: Plan | None, after: Plan | None) -> None:
        """Replace a plan by its successor, and update all indexes."""
        super().swap(before, after)
        old = new = None
        if before is None:
            assert after is not None, "one of them is there"
            self.by_root.setdefault(after.root_plan_id, set()).add(after.plan_id)
        else:
            old = before.lease
            if after is None:
                self._remove_from_tree(before)
            if before.state in TERMINAL_STATES and (end := _end(before)):
                self.by_end.remove(end)
        if after is not None:
            new = after.lease
            if after.state in TERMINAL_STATES and (end := _end(after)):
                self.by_end.add(end)
        if old is new:  # the usual case of a change that is no transition
            return
        if before is not None and old is not None:
            self.by_expiry.remove((old.expires_at_ms, before.plan_id))
            self.by_session[old.session_id].discard(before.plan_id)
            if not self.by_session[old.session_id]:
                del self.by_session[old.session_id]
        if after is not None and new is not None:
            self.by_expiry.add((new.expires_at_ms, after.plan_id))
            self.by_session.setdefault(new.session_id, set()).add(after.plan_id)

    def _remove_from_tree(self, plan: Plan) -> None:
        """Remove a deleted plan from the index of trees."""
        tree = self.by_root[plan.root_plan_id]
        tree.discard(plan.plan_id)
        if not tree:
            del self.by_root[plan.root_plan_id]

    def tree(self, root_plan_id: str) -> list[Plan]:
        """Return the plans of a tree, children before parents, with those that their parent does not list any more."""
        plans = (self.rows[plan_id] for plan_id in self.by_root.get(root_plan_id, ()))
        return sorted(plans, key=lambda plan: (-plan.depth, plan.plan_id))

    def leased_to(self, session_id: str) -> list[Plan]:
        """Return the plans that a session holds leases of, in order of id."""
        return [self.rows[plan_id] for plan_id in sorted(self.by_session.get(session_id, ()))]

    def expired(self, now_ms: int) -> Iterator[Plan]:
        """Iterate over the plans whose lease has expired, from the earliest expiry on."""
        return (self.rows[plan_id] for _, plan_id in self.by_expiry.irange(None, (now_ms, "\x7f")))

    @property
    def next_expiry_ms(self) -> int | None:
        """The time at which the next lease expires; None without leases."""
        return self.by_expiry[0][0] if self.by_expiry else None


def _end(plan: Plan) -> tuple[int, str] | None:
    """Return the key of an ended plan in the index by end; None if it is not a root."""
    return None if plan.parent_plan_id is not None else (plan.ended_at_ms or 0, plan.plan_id)
