"""What happens to a plan: one function takes it through the tables, and the steps that take others along."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import ChangesetState
from stepwell.domain.changesets.rules import ended
from stepwell.domain.leases import find_plan, grant_lease, require_lease
from stepwell.domain.plans.lifecycle import LEGAL, RETRY, REVERSION, TERMINAL, PlanEvent
from stepwell.domain.plans.model import Lease, Phase, PhaseTimes, Plan, PlanFault, PlanState, Position
from stepwell.domain.plans.plan_tree import children, descendants, is_finished
from stepwell.domain.replies import PlanFound
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict
from stepwell.errors import Conflict, PlanNotReady


def require_version(plan: Plan, expected: int | None) -> None:
    """Compare and set: the plan is still the one that the caller saw."""
    if expected is not None and expected != plan.version:
        raise Conflict(
            f"plan {plan.plan_id!r} is {plan.position} at version {plan.version}, not {expected}: read it again",
            expected=expected,
            actual=plan.version,
        )


def transition(
    plan: Plan, event: PlanEvent, now_ms: int, *, lease: Lease | None = None, error: str | None = None
) -> Plan:
    """The plan after an event, or a refusal that says what is legal instead."""
    target = LEGAL.get((event, plan.position))
    if target is None:
        legal = sorted(str(each) for each, at in LEGAL if at == plan.position)
        raise PlanNotReady(
            f"{event} is not legal for plan {plan.plan_id!r}, which is {plan.position}; "
            f"from there: {', '.join(legal) or 'nothing, it has ended'}",
            plan_id=plan.plan_id,
            phase=str(plan.phase),
            state=str(plan.state),
        )
    again = (event, plan.position) in RETRY or (event, plan.position) in REVERSION
    # What was merged is merged no longer when a plan executes once more.
    anew = again and (plan.phase is Phase.EXECUTE or target.phase is Phase.STRATEGIZE)
    fault = PlanFault(now_ms, plan.phase, plan.attempt, error) if error is not None else None
    return replace(
        plan,
        phase=target.phase,
        state=target.state,
        times=_stamped(plan.times, target, now_ms),
        version=plan.version + 1,
        attempt=plan.attempt + again,
        lease=lease,
        fence=lease.token if lease else plan.fence,
        errors=(*plan.errors, fault) if fault else plan.errors,
        reversion_count=plan.reversion_count + ((event, plan.position) in REVERSION),
        merged=None if anew else plan.merged,
        conflicts=() if anew else plan.conflicts,
    )


def held(state: State, plan_id: str, lease: int | None, expected: int | None, origin: Origin) -> Plan:
    """The plan, if the caller holds its lease and saw its latest version."""
    plan = find_plan(state, plan_id, origin)
    require_lease(plan, lease, origin)
    require_version(plan, expected)
    return plan


def moved(before: Plan, after: Plan, *others: AnyChange) -> Verdict:
    """The verdict that a plan is another now, and what that takes along."""
    return Verdict(PlanFound(after), (RowChanged(before, after), *others))


def started(state: State, plan: Plan, origin: Origin, lease_ms: int) -> Plan:
    """A queued plan, processing under a lease of the caller's."""
    return transition(
        plan, PlanEvent(f"start_{plan.phase}"), origin.now_ms, lease=grant_lease(state, plan, origin, lease_ms)
    )


def brought_to_execute(state: State, plan: Plan, origin: Origin, lease_ms: int) -> list[Plan]:
    """The steps from strategize, at work or complete, to execute under a lease of the caller's; the plan first."""
    steps = [plan]
    if plan.state is PlanState.PROCESSING:
        steps.append(transition(steps[-1], PlanEvent.COMPLETE_STRATEGIZE, origin.now_ms))
    steps.append(transition(steps[-1], PlanEvent.EXECUTE_PLAN, origin.now_ms))
    steps.append(started(state, steps[-1], origin, lease_ms))
    return steps


def steps_taken(steps: list[Plan]) -> tuple[AnyChange, ...]:
    """Each step as a change of its own, so that whoever watches is told of each."""
    return tuple(RowChanged(before, after) for before, after in pairwise(steps))


def lost(state: State, plan: Plan, origin: Origin, why: str) -> list[AnyChange]:
    """The lease of a plan is over: queued again, as another attempt, its open changesets aborted."""
    event = PlanEvent.LOSE_LEASE
    if plan.attempt >= limits.ATTEMPTS_MAX:  # it kills whoever works on it; somebody has to look
        event = PlanEvent(f"fail_{plan.phase}")
    after = transition(plan, event, origin.now_ms, error=f"lease lost: {why}")
    return [RowChanged(plan, after), *ended(state, plan, ChangesetState.ABORTED, origin.now_ms)]


def cancelled(state: State, plan: Plan, origin: Origin, reason: str) -> list[AnyChange]:
    """End a plan and everybody below it. What they changed stays readable, in closed changesets."""
    changes: list[AnyChange] = []
    for each in (plan, *descendants(state, plan)):
        if each.position not in TERMINAL:
            after = transition(each, PlanEvent.CANCEL_PLAN, origin.now_ms, error=reason or None)
            changes += [RowChanged(each, after), *ended(state, each, ChangesetState.CLOSED, origin.now_ms)]
    return changes


def children_cancelled(state: State, plan: Plan, origin: Origin, reason: str) -> list[AnyChange]:
    """End whatever is below a plan and not finished."""
    return [
        change
        for child in children(state, plan)
        if not is_finished(child)
        for change in cancelled(state, child, origin, reason)
    ]


def siblings_cancelled(state: State, plan: Plan, origin: Origin) -> list[AnyChange]:
    """With `fail_fast`, the first child that fails takes its unfinished siblings along."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is None or parent.subplans is None or not parent.subplans.fail_fast:
        return []
    reason = f"fail_fast: sibling {plan.plan_id} failed"
    return [
        change
        for sibling in children(state, parent)
        if sibling.plan_id != plan.plan_id and not is_finished(sibling)
        for change in cancelled(state, sibling, origin, reason)
    ]


def _stamped(times: Mapping[str, PhaseTimes], target: Position, now_ms: int) -> dict[str, PhaseTimes]:
    stamp = times.get(target.phase, PhaseTimes())
    match target.state:
        case PlanState.QUEUED:
            stamp = PhaseTimes(queued_at_ms=now_ms)
        case PlanState.PROCESSING:
            stamp = replace(stamp, started_at_ms=stamp.started_at_ms or now_ms)
        case _:
            stamp = replace(stamp, ended_at_ms=now_ms)
    return {**times, str(target.phase): stamp}
