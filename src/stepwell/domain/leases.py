"""Leases: the right of one caller at a time to work on a plan.

A plan in state `processing` always has a lease, and no other plan has one. A lease has a token. Tokens on one plan only
grow, so a token fences off every earlier holder: a worker that was presumed dead and comes back shows an old token and
is refused. A lease ends when its phase ends, when it expires, or when its session ends.

The module belongs to the core and not to `plans`, because the rules of changesets need it too, and plans depend on
changesets.
"""

from __future__ import annotations

from stepwell import limits
from stepwell.domain.plans.model import Lease, Phase, Plan
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, LeaseLost, NotFound, PlanError, PlanNotReady


def find_plan(state: State, plan_id: str, origin: Origin) -> Plan:
    """Return the plan. Raise `NotFound` if it does not exist or the session may not see all of its projects.

    Both cases raise the same error with the same text, so that a session cannot find out ids outside its scope.
    """
    plan = state.plans.get(plan_id)
    if plan is None or not origin.sees(plan.projects):
        raise NotFound(f"there is no plan {plan_id!r} in this session's projects", plan_id=plan_id)
    return plan


def grant_lease(state: State, plan: Plan, origin: Origin, lease_ms: int) -> Lease:
    """Return a new lease on the plan for the session of the request.

    The token is at least the revision that grants it, and larger than every earlier token of this plan. Raise `Busy` if
    the session holds the maximum number of leases already, because ending a session takes back all its leases in one
    step.
    """
    if len(state.plans.by_session.get(origin.session_id, ())) >= limits.LEASES_PER_SESSION_MAX:
        raise Busy(f"this session holds {limits.LEASES_PER_SESSION_MAX} leases already: finish some plans first")
    return Lease(max(state.revision, plan.fence) + 1, origin.session_id, origin.now_ms + lease_ms)


def require_lease(plan: Plan, token: int | None, origin: Origin) -> Lease:
    """Return the plan's current lease if `token` is its token and it has not expired.

    Raise `PlanNotReady` if no token was given and no lease exists: a phase has to be started first. Raise `LeaseLost`
    in every other case: the caller must stop working on the plan. A lease that has expired is refused even if the
    manager has not yet taken it back.
    """
    if plan.lease is not None and plan.lease.token == token and origin.now_ms < plan.lease.expires_at_ms:
        return plan.lease
    facts = f"plan {plan.plan_id!r} is {plan.position}, attempt {plan.attempt}"
    if token is None and plan.lease is None:
        raise PlanNotReady(f"{facts}: no session is working on it; start its phase first", plan_id=plan.plan_id)
    if token is None:
        raise LeaseLost(
            f"{facts}: another session holds its lease; pass lease= if it was given to you", plan_id=plan.plan_id
        )
    raise LeaseLost(f"{facts}: lease {token} is over; stop working on it", plan_id=plan.plan_id, lease=token)


def require_executing(state: State, plan_id: str, lease: int | None, origin: Origin) -> Plan:
    """Return the plan if it executes, the caller holds its lease, and it is not read-only; raise otherwise.

    This is the check of every command that records changes, including those that record a merge.
    """
    plan = find_plan(state, plan_id, origin)
    require_lease(plan, lease, origin)
    if plan.phase is not Phase.EXECUTE:
        raise PlanNotReady(f"plan {plan_id!r} is {plan.position}: changes are recorded while it executes")
    if plan.read_only:
        raise PlanError(f"plan {plan_id!r} is read_only, by its action, projects or parent: it can change nothing")
    return plan
