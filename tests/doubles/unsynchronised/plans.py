"""Actions and plans in two dicts that all callers read, check and write."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace
from ulid import ULID

from stepwell.domain.bounded_types import canonical
from stepwell.domain.plans.model import (
    Action,
    ActionState,
    ArgumentValue,
    Phase,
    Plan,
    PlanState,
    Position,
    ProjectLink,
)
from stepwell.errors import ActionUnavailable, AlreadyExists, NotFound, PlanNotReady, TreeQueued
from tests.doubles.unsynchronised.seam import Seam, no_seam


class PlanLifecycleService:
    """A service that checks first and acts later, so that another caller can come in between."""

    def __init__(self, *, seam: Seam = no_seam) -> None:
        self._seam = seam
        self._actions: dict[str, Action] = {}
        self._plans: dict[str, Plan] = {}
        self._applying: dict[str, str] = {}  # by tree
        self.begun: list[str] = []

    def create_action(
        self,
        name: str,
        *,
        description: str,
        definition_of_done: str,
        strategy_actor: str,
        execution_actor: str,
        reusable: bool = True,
    ) -> Action:
        """Create an action.

        Of two callers that pass the check at the same time, the second overwrites the first one's action.
        """
        name = canonical(name)
        if name in self._actions:
            raise AlreadyExists(f"action {name!r} exists already", name=name)
        action = Action(
            name=name,
            description=description,
            definition_of_done=definition_of_done,
            strategy_actor=strategy_actor,
            execution_actor=execution_actor,
            estimation_actor=None,
            review_actor=None,
            apply_actor=None,
            invariant_actor=None,
            arguments=(),
            invariants=(),
            automation_profile=None,
            reusable=reusable,
            read_only=False,
            state=ActionState.AVAILABLE,
            uses=0,
            created_at_ms=_now_ms(),
            revision=len(self._actions) + 1,
        )
        self._seam("create_action: checked, not stored")
        self._actions[name] = action
        return action

    def get_action(self, name: str) -> Action:
        name = canonical(name)
        action = self._actions.get(name)
        if action is None:
            raise NotFound(f"there is no action {name!r}", name=name)
        return action

    def use_action(
        self,
        name: str,
        *,
        projects: Sequence[str],
        arguments: Mapping[str, ArgumentValue] | None = None,
        labels: Sequence[str] = (),
    ) -> Plan:
        """Use an action. Two callers that find it unspent both use it."""
        action = self.get_action(name)
        if action.spent:
            raise ActionUnavailable(f"action {action.name!r} is not reusable and was used", name=action.name)
        self._seam("use_action: checked, not counted")
        self._actions[action.name] = replace(action, uses=action.uses + 1)
        plan_id = str(ULID())
        plan = Plan(
            plan_id=plan_id,
            parent_plan_id=None,
            root_plan_id=plan_id,
            depth=0,
            action_name=action.name,
            description=action.description,
            definition_of_done=action.definition_of_done,
            arguments=dict(arguments or {}),
            project_links=tuple(map(ProjectLink, projects)),
            invariants=(),
            read_only=False,
            created_at_ms=_now_ms(),
            phase=Phase.STRATEGIZE,
            state=PlanState.QUEUED,
            times={},
            labels=tuple(sorted({*labels})),
        )
        self._plans[plan_id] = plan
        return plan

    def get_plan(self, plan_id: str) -> Plan:
        plan = self._plans.get(plan_id)
        if plan is None:
            raise NotFound(f"there is no plan {plan_id!r}", plan_id=plan_id)
        return plan

    def start_strategize(self, plan_id: str) -> Plan:
        return self._move("start_strategize", plan_id, Phase.STRATEGIZE, PlanState.QUEUED, PlanState.PROCESSING)

    def complete_strategize(self, plan_id: str) -> Plan:
        return self._move("complete_strategize", plan_id, Phase.STRATEGIZE, PlanState.PROCESSING, PlanState.COMPLETE)

    def execute_plan(self, plan_id: str) -> Plan:
        plan = self._move("execute_plan", plan_id, Phase.STRATEGIZE, PlanState.COMPLETE, PlanState.QUEUED)
        plan = self._plans[plan_id] = replace(plan, phase=Phase.EXECUTE)
        return plan

    def start_execute(self, plan_id: str) -> Plan:
        """Start the execution. Two callers that find the plan queued both start."""
        return self._move("start_execute", plan_id, Phase.EXECUTE, PlanState.QUEUED, PlanState.PROCESSING)

    def start_ready(self, plan_ids: Sequence[str], *, labels: Collection[str]) -> Plan | None:
        """Start the strategy of the first plan that is queued and that the caller can do.

        Two callers that find the same plan both start it.
        """
        for plan in [self._plans[plan_id] for plan_id in plan_ids]:
            if plan.position == Position(Phase.STRATEGIZE, PlanState.QUEUED) and {*plan.labels} <= {*labels}:
                self._seam("start_ready: found, not started")
                started = replace(plan, state=PlanState.PROCESSING, version=plan.version + 1)
                self._plans[plan.plan_id] = started
                return started
        return None

    def begin_apply(self, plan_id: str, *, tree: str) -> None:
        """Begin to apply a plan to a tree, unless another plan is first in its queue or being applied there.

        Two callers that find the tree free both begin.
        """
        if (present := self._applying.get(tree)) is not None:
            raise TreeQueued(f"plan {present!r} is being applied to {tree!r}")
        self._seam("begin_apply: checked, not begun")
        self._applying[tree] = plan_id
        self.begun.append(plan_id)

    def _move(self, event: str, plan_id: str, phase: Phase, source: PlanState, target: PlanState) -> Plan:
        plan = self.get_plan(plan_id)
        if plan.position != Position(phase, source):
            raise PlanNotReady(f"plan {plan_id} is {plan.position}: {event} needs {Position(phase, source)}")
        self._seam(f"{event}: checked, not moved")
        moved = self._plans[plan_id] = replace(plan, state=target, version=plan.version + 1)
        return moved


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
