"""The rules for the end of an apply: applied with proof, constrained by a validation, or rolled back with proof.

The tree belongs to the client and the manager never sees it. The client therefore proves the end of an apply or of a
rollback: it sends the digest that it found at each path afterwards. The manager compares these digests with the net
changes of the plan's changesets, and accepts the end only if all of them agree.

Each of the three commands is idempotent for its own caller, because the reply can be lost after the tree was changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import Content
from stepwell.domain.changesets.rules import net_changes_of
from stepwell.domain.leases import find_plan
from stepwell.domain.plans.commands import CompleteApply, ConstrainApply, RollBackPlan
from stepwell.domain.plans.decisions import supersede_decisions
from stepwell.domain.plans.lifecycle import PlanEvent
from stepwell.domain.plans.model import Applied, Constrained, Plan, PlanState, RolledBack
from stepwell.domain.plans.transitions import plan_verdict, require_held_plan, require_version, transition
from stepwell.domain.plans.validations import check_results, not_passed
from stepwell.domain.replies import PlanFound
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, Verdict, decides
from stepwell.errors import NotProven, NotValidated, PlanNotReady
from stepwell.text import plural


@decides(CompleteApply)
def complete_apply(state: State, command: CompleteApply, origin: Origin) -> Verdict:
    """End an apply as applied, if the proof shows the plan's result at each path and all required validations passed.

    The order of the checks matters to the caller. A missing proof (`NotProven`) means that the tree is not as it should
    be. A failed validation (`NotValidated`) means that it is, and has to be undone.
    """
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
    """End an apply as constrained, because a required validation failed.

    The reason is appended to the plan's errors. The plan can be reverted or cancelled afterwards. No proof is needed,
    because nothing is claimed about the tree: undoing the changes there is the client's task.
    """
    if repeated := _repeated_reply(state, command.plan_id, command.lease, PlanState.CONSTRAINED, origin):
        return repeated
    plan = require_held_plan(state, command.plan_id, command.lease, command.expected_version, origin)
    constrained = transition(plan, PlanEvent.CONSTRAIN_APPLY, origin.now_ms, error=command.reason)
    check_results(plan.validations, command.validations)
    ending = Constrained(origin.now_ms, plan.attempt, origin.session_id, command.reason, command.validations)
    return plan_verdict(plan, replace(constrained, constrained=ending))


@decides(RollBackPlan)
def roll_back_plan(state: State, command: RollBackPlan, origin: Origin) -> Verdict:
    """Record that the changes of an applied plan were undone, if the proof shows the earlier content at each path.

    A second call returns the plan as it is. The command needs no lease, because the plan is terminal and no phase is
    left to work on; `expected_version` protects from a concurrent caller. All decisions of the plan are superseded.
    """
    plan = find_plan(state, command.plan_id, origin)
    if plan.rolled_back is not None:
        return Verdict(PlanFound(plan))
    require_version(plan, command.expected_version)
    undone = transition(plan, PlanEvent.ROLL_BACK_PLAN, origin.now_ms)
    net = net_changes_of(state, plan, plan.executed_attempt)
    # Retention removes a large tree in several steps. In between, entries are missing, so a proof would cover too
    # little.
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
    """Return the same reply again for the caller that ended the apply, or None if this is another request.

    The caller is recognised by its lease: the last token that was granted on this plan. Its first reply may have been
    lost.
    """
    plan = find_plan(state, plan_id, origin)
    return Verdict(PlanFound(plan)) if plan.state is ending and lease is not None and lease == plan.fence else None


def _require_proof(plan: Plan, due: Mapping[str, Content | None], proof: Mapping[str, bytes | None], what: str) -> None:
    """Raise `NotProven`, with the paths, unless `proof` has the due digest for every path; None stands for "no
    file".
    """
    unproven = sorted(
        path
        for path, content in due.items()
        if path not in proof or proof[path] != (content.digest if content else None)
    )
    if unproven:
        raise NotProven(
            f"plan {plan.plan_id!r}: {plural(len(unproven), 'path is', 'paths are')} not proven to be {what}; the "
            f"first is {unproven[0]!r}",
            paths=unproven[: limits.PATHS_LISTED_MAX],
        )
