"""Reporting the outcome of a tree transaction to the manager, so that both agree even if an answer is lost.

The tree is committed before the manager is asked to record the outcome. If the manager's answer is lost, the client
does not know whether the outcome is recorded, and so not whether it may undo the tree. `report_outcome` resolves this
by sending the command again and reading the plan.
"""

from __future__ import annotations

from collections.abc import Callable

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.domain.plans.model import Plan
from stepwell.errors import LeaseLost, OutcomeUnknown, Refused, RuntimeFault


def report_outcome(
    plans: PlanApi,
    plan_id: str,
    send: Callable[[], Plan],
    is_recorded: Callable[[Plan], bool],
    is_lease_over: Callable[[Plan], bool],
) -> Plan:
    """Send a report until it is certain whether the manager recorded it, and return the plan.

    `send` must be idempotent. Raises `Refused` if the report is not recorded and will not be: the caller undoes the
    tree. Raises `RuntimeFault` (`OutcomeUnknown`) if that stays unknown: the caller leaves the tree as it is.

    After a lost answer the first request may still be on its way, so a refusal of the second one proves nothing. Then
    only the plan itself does: `is_recorded` says that the report arrived; `is_lease_over` says that a late one would be
    refused.
    """
    lost: RuntimeFault | None = None
    for _ in range(limits.APPLY_REPORTS_MAX):
        try:
            return send()
        except RuntimeFault as fault:
            lost = fault
        except Refused:
            if lost is None:
                raise
        plan = _read(plans, plan_id, lost)
        if is_recorded(plan):
            return plan
        if is_lease_over(plan):
            raise LeaseLost(f"plan {plan_id!r} is {plan.position}: its lease is over", plan_id=plan_id)
    assert lost is not None
    raise _unknown(plan_id, lost) from lost


def _read(plans: PlanApi, plan_id: str, lost: RuntimeFault) -> Plan:
    """Return the plan; if the manager cannot be reached for this either, the outcome is unknown."""
    try:
        return plans.get_plan(plan_id)
    except RuntimeFault:
        raise _unknown(plan_id, lost) from lost


def _unknown(plan_id: str, lost: RuntimeFault) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the files are changed, but whether plan {plan_id!r} has ended is not known ({lost.message}): the next call "
        "at this root sees to it"
    )
