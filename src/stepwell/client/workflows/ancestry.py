"""The context that a plan adds to a request: its phase, the goals of its ancestors, and the decisions still valid.

A child plan is worked on with the knowledge of the plans above it, without their full texts: the nearest decisions come
first, and the request's bounds cut off the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.domain.plans.model import Decision, Plan
from stepwell.strategies.protocol import DecisionSeen, PlanSeen


class PlanAncestry:
    """A plan and its ancestors up to the root plan, read from the manager when it is made.

    One request for each plan; the depth of plans is bounded by the domain.
    """

    def __init__(self, plans: PlanApi, plan_id: str) -> None:
        self._plans = plans
        self._path = [*self._path_to_root(plan_id)]

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self._path[0]

    def as_seen(self) -> PlanSeen:
        """Return the plan as strategies see it: as many decisions as there is room for, the nearest plan's first."""
        decisions = (
            DecisionSeen(each.decision_id, plan.plan_id, each.question, each.choice, each.rationale, depth)
            for depth, plan in enumerate(self._path)
            for each in self._valid_decisions(plan)
        )
        skeleton = "\n\n".join(map(_describe, self._path[1:]))
        return PlanSeen.bounded(self.plan.plan_id, self.plan.phase, decisions, skeleton)

    def _path_to_root(self, plan_id: str | None) -> Iterator[Plan]:
        while plan_id is not None:
            plan = self._plans.get_plan(plan_id)
            yield plan
            plan_id = plan.parent_plan_id

    def _valid_decisions(self, plan: Plan) -> Iterator[Decision]:
        """Yield a plan's decisions that no revert or rollback has superseded, in order of recording."""
        cursor = None
        while plan.decision_ids:
            page = self._plans.list_decisions(plan.plan_id, limit=limits.PAGE_ROWS_MAX, cursor=cursor)
            yield from (each for each in page.decisions if each.superseded_at_ms is None)
            cursor = page.cursor
            if cursor is None:
                break


def _describe(plan: Plan) -> str:
    """Return the goal, the definition of done and the invariants of an ancestor, as text for its descendants."""
    lines = [f"Goal: {plan.description}", f"Done when: {plan.definition_of_done}"]
    lines += [f"Always: {each.text}" for each in plan.invariants]
    return "\n".join(line for line in lines if not line.endswith(": "))
