"""The right to work on a plan. `processing` always carries a lease; its token fences off earlier holders."""

from __future__ import annotations

from stepwell import limits
from stepwell.domain.plans.model import Lease, Plan
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, LeaseLost, NotFound, PlanNotReady


def find_plan(state: State, plan_id: str, origin: Origin) -> Plan:
    """The plan, if it exists and the session may see all its projects: what it may not see, it has not."""
    plan = state.plans.get(plan_id)
    if plan is None or not origin.sees(plan.projects):
        raise NotFound(f"there is no plan {plan_id!r} in this session's projects", plan_id=plan_id)
    return plan


def grant_lease(state: State, plan: Plan, origin: Origin, lease_ms: int) -> Lease:
    """A new lease. Its token is the revision that grants it, or larger: on one plan, tokens only grow."""
    if len(state.plans.by_session.get(origin.session_id, ())) >= limits.LEASES_PER_SESSION_MAX:
        raise Busy(f"this session holds {limits.LEASES_PER_SESSION_MAX} leases already: finish some plans first")
    return Lease(max(state.revision, plan.fence) + 1, origin.session_id, origin.now_ms + lease_ms)


def require_lease(plan: Plan, token: int | None, origin: Origin) -> Lease:
    """The plan's current lease, if the caller shows its token in time."""
    if plan.lease is not None and plan.lease.token == token and origin.now_ms < plan.lease.expires_at_ms:
        return plan.lease
    facts = f"plan {plan.plan_id!r} is {plan.position}, attempt {plan.attempt}"
    if token is None and plan.lease is None:
        raise PlanNotReady(f"{facts}: nobody is working on it; start its phase first", plan_id=plan.plan_id)
    if token is None:
        raise LeaseLost(
            f"{facts}: somebody else has its lease; pass lease= if it was given to you", plan_id=plan.plan_id
        )
    raise LeaseLost(f"{facts}: lease {token} is over; stop working on it", plan_id=plan.plan_id, lease=token)
