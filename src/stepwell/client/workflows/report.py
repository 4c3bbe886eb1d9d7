"""Telling the manager what became of a tree, so that both agree, though an answer may be lost on its way."""

from __future__ import annotations

from collections.abc import Callable

from stepwell import limits
from stepwell.client.api.plans import PlanApi
from stepwell.domain.plans.model import Plan
from stepwell.errors import LeaseLost, OutcomeUnknown, Refused, RuntimeFault


def report_outcome(
    plans: PlanApi,
    plan_id: str,
    call: Callable[[], Plan],
    is_told: Callable[[Plan], bool],
    is_over: Callable[[Plan], bool],
) -> Plan:
    """What comes of a call that gives the same when it is made again.

    Raises `Refused` where it certainly did not happen and will not, `RuntimeFault` where nobody knows. After an answer
    that was lost the first request may still be under way, so that a refusal of the next one says nothing: only a plan
    that `is_told`, or of which it `is_over`, because whatever comes would be refused, does.
    """
    lost: RuntimeFault | None = None
    for _ in range(limits.APPLY_TOLD_MAX):
        try:
            return call()
        except RuntimeFault as fault:
            lost = fault
        except Refused:
            if lost is None:
                raise
        plan = _read(plans, plan_id, lost)
        if is_told(plan):
            return plan
        if is_over(plan):
            raise LeaseLost(f"plan {plan_id!r} is {plan.position}: its lease is over", plan_id=plan_id)
    assert lost is not None
    raise _unknown(plan_id, lost) from lost


def _read(plans: PlanApi, plan_id: str, lost: RuntimeFault) -> Plan:
    try:
        return plans.get_plan(plan_id)
    except RuntimeFault:
        raise _unknown(plan_id, lost) from lost


def _unknown(plan_id: str, lost: RuntimeFault) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the files are changed, but whether plan {plan_id!r} has ended is not known ({lost.message}): the next call "
        "at this root sees to it"
    )
