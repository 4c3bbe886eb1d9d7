"""The rules of an apply's end: applied with proof, constrained by a validation, or rolled back with proof.

The tree is the caller's, and the manager never sees it. What it holds the caller to is the digest found at each path,
against what the plan's changesets come to.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from stepwell.domain.changesets.model import Content
from stepwell.domain.changesets.rules import net_changes_of
from stepwell.domain.plans.commands import CompleteApply, ConstrainApply, RollBackPlan
from stepwell.domain.plans.decisions import supersede_decisions
from stepwell.domain.plans.leases import find_plan
from stepwell.domain.plans.lifecycle import PlanEvent
from stepwell.domain.plans.model import Applied, Constrained, Plan, PlanState, RolledBack
from stepwell.domain.plans.transitions import plan_verdict, require_held_plan, require_version, transition
from stepwell.domain.plans.validations import check_results, not_passed
from stepwell.domain.replies import PlanFound
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, Verdict, decides
from stepwell.errors import NotProven, NotValidated, PlanNotReady


@decides(CompleteApply)
def complete_apply(state: State, command: CompleteApply, origin: Origin) -> Verdict:
    """Applied, if the digest found at each path is the one that the changesets lead to, and it is valid."""
    if repeated := _repeated_reply(state, command.plan_id, command.lease, PlanState.APPLIED, origin):
        return repeated
    plan = require_held_plan(state, command.plan_id, command.lease, command.expected_version, origin)
    applied = transition(plan, PlanEvent.COMPLETE_APPLY, origin.now_ms)
    check_results(plan.validations, command.validations)
    net = net_changes_of(state, plan, plan.executed_attempt)
    _require_proof(plan, {path: change.after for path, change in net.items()}, command.proof, "applied")
    if names := not_passed(plan.validations, command.validations):
        raise NotValidated(
            f"plan {plan.plan_id!r}: the required validation {names[0]!r} has not passed; undo what was applied, "
            "and call constrain_apply with its result",
            validations=names,
        )
    ending = Applied(origin.now_ms, plan.attempt, origin.session_id, len(net), command.root, command.validations)
    return plan_verdict(plan, replace(applied, applied=ending))


@decides(ConstrainApply)
def constrain_apply(state: State, command: ConstrainApply, origin: Origin) -> Verdict:
    """A required validation failed: kept with its reason, to be reverted or cancelled."""
    if repeated := _repeated_reply(state, command.plan_id, command.lease, PlanState.CONSTRAINED, origin):
        return repeated
    plan = require_held_plan(state, command.plan_id, command.lease, command.expected_version, origin)
    constrained = transition(plan, PlanEvent.CONSTRAIN_APPLY, origin.now_ms, error=command.reason)
    check_results(plan.validations, command.validations)
    ending = Constrained(origin.now_ms, plan.attempt, origin.session_id, command.reason, command.validations)
    return plan_verdict(plan, replace(constrained, constrained=ending))


@decides(RollBackPlan)
def roll_back_plan(state: State, command: RollBackPlan, origin: Origin) -> Verdict:
    """Undone, if the digest found at each path is the one from before the plan. A second call gets the same."""
    plan = find_plan(state, command.plan_id, origin)
    if plan.rolled_back is not None:
        return Verdict(PlanFound(plan))
    require_version(plan, command.expected_version)
    undone = transition(plan, PlanEvent.ROLL_BACK_PLAN, origin.now_ms)
    net = net_changes_of(state, plan, plan.executed_attempt)
    if plan.applied is not None and len(net) != plan.applied.paths:
        raise PlanNotReady(f"plan {plan.plan_id!r} is being forgotten: not all that it changed is known any more")
    _require_proof(plan, {path: change.before for path, change in net.items()}, command.proof, "rolled back")
    ending = RolledBack(origin.now_ms, origin.session_id, command.reason, len(net))
    return plan_verdict(
        plan,
        replace(undone, rolled_back=ending, times=plan.times),
        *supersede_decisions(state, plan, origin.now_ms, entirely=True),
    )


def _repeated_reply(state: State, plan_id: str, lease: int | None, ending: PlanState, origin: Origin) -> Verdict | None:
    """What whoever ended the apply was told, if it asks again: its lease was the last that there was."""
    plan = find_plan(state, plan_id, origin)
    return Verdict(PlanFound(plan)) if plan.state is ending and lease is not None and lease == plan.fence else None


def _require_proof(plan: Plan, due: Mapping[str, Content | None], proof: Mapping[str, bytes | None], what: str) -> None:
    unproven = sorted(
        path
        for path, content in due.items()
        if path not in proof or proof[path] != (content.digest if content else None)
    )
    if unproven:
        raise NotProven(
            f"plan {plan.plan_id!r}: {len(unproven)} paths are not proven to be {what}; the first is {unproven[0]!r}",
            paths=unproven[:100],
        )
