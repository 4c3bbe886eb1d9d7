"""Rolling an applied plan back: its changes the other way round, in one transaction, and then the manager is told.

There is no lease: nobody works on a plan that has ended, and the turn at the root lets one at a time at the tree. Once
the tree is what it was, and that is on disk, it has happened: whoever comes next tells the manager, if need be.
"""

from __future__ import annotations

import time
from contextlib import suppress

from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows import tree_recovery
from stepwell.client.workflows.plan_delta import PlanDelta, is_same_root
from stepwell.client.workflows.report import report_outcome
from stepwell.client.workflows.wait import await_end, await_turn
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, PlanNotReady, Refused, TreeFailed
from stepwell.trees.lock import RootLock
from stepwell.trees.transaction import TreeTransaction


def roll_back(context: ChangesetApi, root: str, reason: str, wait_s: float) -> Plan:
    """The plan, rolled back, by this call or an earlier one."""
    plans = PlanApi(context.session)
    until_s = time.monotonic() + wait_s
    while True:
        plan = plans.get_plan(context.plan_id)
        if plan.rolled_back is not None:
            tree_recovery.tidy(context, root)
            return plan
        is_sure = _require_applied(plan, root)
        try:
            with await_turn(root, until_s, wait_s) as turn:
                if turn is not None:
                    tree_recovery.recover_root(context, turn)
                    plan = plans.get_plan(context.plan_id)
                    return plan if plan.rolled_back else _under_turn(context, turn, plan, reason, is_sure=is_sure)
        except tree_recovery.TransactionUndecided as undecided:
            await_end(context.session, undecided.plan, until_s, wait_s)


def _require_applied(plan: Plan, root: str) -> bool:
    """Whether this is surely where it was applied: that tree may have been moved since."""
    if plan.applied is None:
        raise PlanNotReady(
            f"plan {plan.plan_id!r} is {plan.position}: only what was applied can be rolled back",
            plan_id=plan.plan_id,
            phase=str(plan.phase),
            state=str(plan.state),
        )
    is_same = is_same_root(plan.applied.root, root)
    if is_same is False:
        raise _elsewhere(plan, root)
    return is_same is True


def _elsewhere(plan: Plan, root: str) -> InvalidArgument:
    assert plan.applied is not None
    return InvalidArgument(
        f"plan {plan.plan_id!r} was applied at {plan.applied.root!r}, and not at {root!r}: roll it back there, or "
        "wherever that tree is now"
    )


def _under_turn(context: ChangesetApi, turn: RootLock, plan: Plan, reason: str, *, is_sure: bool) -> Plan:
    plans = PlanApi(context.session)
    netted = PlanDelta(context, backwards=True)
    with TreeTransaction(turn, tree_recovery.name_back(plan), netted.deltas, netted.read_body) as change:
        if change.is_already_applied and not is_sure:  # it has never had the changes: that proves nothing
            raise _elsewhere(plan, turn.root.path)
        change.apply()
        change.commit()
        try:
            ended = report_outcome(
                plans,
                plan.plan_id,
                lambda: plans.roll_back(plan.plan_id, reason, proof=netted.proof),
                lambda plan: plan.rolled_back is not None,
                lambda _plan: False,
            )
        except Refused:
            change.undo()
            raise
        with suppress(TreeFailed):
            change.finalize()
        return ended
