"""The judge of teams: no agent is given a child that it cannot do, or sent away while there may be one for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepwell.domain.plans.model import Phase, PlanState, Position
from tests.simulator.violation import Violation

if TYPE_CHECKING:
    from stepwell.domain.plans.model import Plan
    from stepwell.domain.state import State

Labels = frozenset[str]


class TeamJudge:
    """Collects what agents could do and what they were told. It knows of a plan what its client asked for."""

    def __init__(self) -> None:
        self._needs: dict[str, Labels] = {}  # by plan, as they were declared
        self._children: dict[str, list[str]] = defaultdict(list)
        self._sent_away: set[tuple[str, Labels]] = set()  # parent, and what the agent could do

    def note_declared(self, parent_id: str, children: Iterable[tuple[str, Iterable[str]]]) -> None:
        """Note the children that a client is about to declare, each with its labels."""
        for plan_id, labels in children:
            self._needs[plan_id] = frozenset(labels)
            self._children[parent_id].append(plan_id)

    def note_given(self, plan: Plan, able: Labels | None) -> None:
        """Check that an agent was given a child that it can do, and that the child is as it was declared."""
        needs = self._needs[plan.plan_id]
        if frozenset(plan.labels) != needs:
            raise Violation(f"plan {plan.plan_id} has the labels {plan.labels}, and was declared with {needs}")
        if able is not None and not needs <= able:
            raise Violation(f"an agent that can do {sorted(able)} was given a plan that needs {sorted(needs)}")

    def note_sent_away(self, parent_id: str, able: Labels | None) -> None:
        """Note that an agent was told that all that is left is for others; one that can do everything never is."""
        if able is None:
            raise Violation("an agent that can do everything was sent away, and it is not over")
        self._sent_away.add((parent_id, able))

    def finish(self, state: State) -> None:
        """Check that agents which were sent away have missed nothing: what they could do had ended, and stays so."""
        for parent_id, able in self._sent_away:
            for plan_id in self._children[parent_id]:
                plan = state.plans.get(plan_id)
                if plan is not None and self._needs[plan_id] <= able and not _is_done(plan):
                    raise Violation(
                        f"an agent that can do {sorted(able)} was sent away, and plan {plan_id} is {plan.position}"
                    )


def _is_done(plan: Plan) -> bool:
    is_executed = plan.position == Position(Phase.EXECUTE, PlanState.COMPLETE)
    return is_executed or plan.state in {PlanState.ERRORED, PlanState.CANCELLED}
