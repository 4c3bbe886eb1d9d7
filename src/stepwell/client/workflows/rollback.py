"""Roll an applied plan back: apply its changes in reverse, in one transaction, and then report it to the manager.

No lease is needed, because no session works on a plan that has ended; the root's lock admits one process at a time to
the tree. The rollback has happened once the restored tree is committed to disk. If the process dies before its report,
the next process at this root reports it (`tree_recovery`).
"""

from __future__ import annotations

import time
from contextlib import suppress

from stepwell.client.api.changesets import ChangesetApi
from stepwell.client.api.plans import PlanApi
from stepwell.client.workflows import tree_recovery
from stepwell.client.workflows.plan_delta import PlanDelta, is_same_root
from stepwell.client.workflows.report import report_outcome
from stepwell.client.workflows.wait import wait_for_lease_end, wait_for_root_lock
from stepwell.domain.plans.model import Plan
from stepwell.errors import InvalidArgument, PlanNotReady, Refused, TreeFailed
from stepwell.trees.lock import RootLock
from stepwell.trees.transaction import TreeTransaction


def roll_back(
    context: ChangesetApi, root: str, reason: str, wait_s: float, on_warning: tree_recovery.OnWarning | None = None
) -> Plan:
    """Return the plan, rolled back by this call or an earlier one; `root` is absolute.

    Raises `PlanNotReady` if the plan is not applied, `InvalidArgument` if it was applied to another tree,
    `TreeConflict` if its files were changed since, and `Busy` if another process changes the tree for longer than
    `wait_s`.
    """
    plans = PlanApi(context.session)
    until_s = time.monotonic() + wait_s
    while True:
        plan = plans.get_plan(context.plan_id)
        if plan.rolled_back is not None:
            tree_recovery.recover_if_unlocked(context, root, on_warning)
            return plan
        is_root_known = _require_applied(plan, root)
        try:
            with wait_for_root_lock(root, until_s, wait_s) as lock:
                if lock is not None:
                    tree_recovery.recover_root(context, lock, on_warning)
                    plan = plans.get_plan(context.plan_id)
                    if plan.rolled_back:
                        return plan
                    return _roll_back_locked(context, lock, plan, reason, is_root_known=is_root_known)
        except tree_recovery.TransactionUndecided as undecided:
            wait_for_lease_end(context.session, undecided.plan, until_s, wait_s)


def _require_applied(plan: Plan, root: str) -> bool:
    """Return True if the plan was applied at this root; False if the recorded root is gone, so it may be this one.

    Raises `PlanNotReady` if the plan is not applied, and `InvalidArgument` if it was applied at another root.
    """
    if plan.applied is None:
        raise PlanNotReady(
            f"plan {plan.plan_id!r} is {plan.position}: only what was applied can be rolled back",
            plan_id=plan.plan_id,
            phase=str(plan.phase),
            state=str(plan.state),
        )
    is_same = is_same_root(plan.applied.root, root)
    if is_same is False:
        raise _wrong_root(plan, root)
    return is_same is True


def _wrong_root(plan: Plan, root: str) -> InvalidArgument:
    assert plan.applied is not None
    return InvalidArgument(
        f"plan {plan.plan_id!r} was applied at {plan.applied.root!r}, and not at {root!r}: roll it back there, or "
        "wherever that tree is now"
    )


def _roll_back_locked(context: ChangesetApi, lock: RootLock, plan: Plan, reason: str, *, is_root_known: bool) -> Plan:
    """Restore the tree under the root's lock, report it, and return the plan.

    A tree that has none of the plan's changes counts as restored only at the recorded root. Elsewhere it proves
    nothing: it may be a tree to which the plan was never applied.
    """
    plans = PlanApi(context.session)
    delta = PlanDelta(context, backwards=True)
    with TreeTransaction(lock, tree_recovery.rollback_name(plan), delta.deltas, delta.read_body) as change:
        if change.is_already_applied and not is_root_known:
            raise _wrong_root(plan, lock.root.path)
        change.apply()
        change.commit()
        try:
            ended = report_outcome(
                plans,
                plan.plan_id,
                lambda: plans.roll_back(plan.plan_id, reason, proof=delta.proof),
                lambda plan: plan.rolled_back is not None,
                lambda _plan: False,
            )
        except Refused:
            change.undo()
            raise
        with suppress(TreeFailed):  # the rollback is recorded; the next call at this root removes the transaction
            change.finalize()
        return ended
