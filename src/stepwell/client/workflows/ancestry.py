"""What a plan brings along to a question: where it stands, what it may see, and what was decided before it."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.domain.plans.model import Decision, Plan
from stepwell.strategies.protocol import DecisionSeen, PlanSeen


class PlanAncestry:
    """A plan and its ancestors, as they are now."""

    def __init__(self, plans: PlanApi, plan_id: str) -> None:
        self._plans = plans
        self._line = [*self._up(plan_id)]

    @property
    def plan(self) -> Plan:
        return self._line[0]

    def seen(self) -> PlanSeen:
        """What goes with a request: as many decisions as there is room for, the nearest first."""
        decisions = (
            DecisionSeen(each.decision_id, plan.plan_id, each.question, each.choice, each.rationale, depth)
            for depth, plan in enumerate(self._line)
            for each in self._standing(plan)
        )
        skeleton = "\n\n".join(map(_told, self._line[1:]))
        return PlanSeen.bounded(self.plan.plan_id, self.plan.phase, decisions, skeleton)

    def _up(self, plan_id: str | None) -> Iterator[Plan]:
        while plan_id is not None:
            plan = self._plans.get_plan(plan_id)
            yield plan
            plan_id = plan.parent_plan_id

    def _standing(self, plan: Plan) -> Iterator[Decision]:
        """Those that no revert or rollback has superseded, in the order of recording."""
        cursor = None
        while plan.decision_ids:
            page = self._plans.list_decisions(plan.plan_id, limit=limits.PAGE_ROWS_MAX, cursor=cursor)
            yield from (each for each in page.decisions if each.superseded_at_ms is None)
            cursor = page.cursor
            if cursor is None:
                break


def _told(plan: Plan) -> str:
    """What a child has to know of a plan above it."""
    lines = [f"Goal: {plan.description}", f"Done when: {plan.definition_of_done}"]
    lines += [f"Always: {each.text}" for each in plan.invariants]
    return "\n".join(line for line in lines if not line.endswith(": "))
