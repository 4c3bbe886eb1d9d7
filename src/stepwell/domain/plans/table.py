"""The table of plans."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from stepwell.domain.plans.lifecycle import TERMINAL
from stepwell.domain.plans.model import Plan
from stepwell.domain.tables import Table


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
