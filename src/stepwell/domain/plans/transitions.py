"""Transitions of a plan: the one function that applies the tables of `lifecycle`, and steps that affect several plans.

`transition` is pure: it returns a new `Plan` or raises. The other functions build the list of `RowChanged` values of a
step. Cancelling a plan cancels its descendants and closes their changesets; losing a lease aborts the open changesets
of the plan. Each list is applied as a whole or not at all.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import ChangesetState
from stepwell.domain.changesets.rules import end_open_changesets
from stepwell.domain.leases import find_plan, grant_lease, require_lease
from stepwell.domain.plans.lifecycle import FAILS, LEGAL, STARTS, STEPS, TERMINAL, PlanEvent
from stepwell.domain.plans.model import Lease, PhaseTimes, Plan, PlanFault, PlanState
from stepwell.domain.plans.plan_tree import children, descendants, is_finished
from stepwell.domain.replies import PlanFound
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict
from stepwell.errors import Conflict, PlanNotReady


def require_version(plan: Plan, expected: int | None) -> None:
    """Raise `Conflict` if the caller expects another version of the plan (compare and set). None expects nothing."""
    if expected is not None and expected != plan.version:
        raise Conflict(
            f"plan {plan.plan_id!r} is {plan.position} at version {plan.version}, not {expected}: read it again",
            expected=expected,
            actual=plan.version,
        )


def transition(
    plan: Plan, event: PlanEvent, now_ms: int, *, lease: Lease | None = None, error: str | None = None
) -> Plan:
    """Return the plan after an event.

    `lease` is the lease that the plan has afterwards; every transition without one ends the present lease. `error` is
    appended to the plan's errors. Raise `PlanNotReady` if the event is not legal at the plan's position; the message
    lists the events that are.
    """
    step = STEPS.get((event, plan.phase, plan.state))
    if step is None:
        legal = sorted(str(each) for each, at in LEGAL if at == plan.position)
        raise PlanNotReady(
            f"{event} is not legal for plan {plan.plan_id!r}, which is {plan.position}; "
            f"from there: {', '.join(legal) or 'nothing, it has ended'}",
            plan_id=plan.plan_id,
            phase=str(plan.phase),
            state=str(plan.state),
        )
    errors = plan.errors
    if error is not None:
        session_id = plan.lease.session_id if plan.lease else None
        errors = (*errors, PlanFault(now_ms, plan.phase, plan.attempt, error, session_id))
    state, phase_name, is_again = step.state, step.phase_name, step.is_executed_again
    return replace(
        plan,
        phase=step.phase,
        state=state,
        times={**plan.times, phase_name: _phase_times(plan.times.get(phase_name), state, now_ms)},
        version=plan.version + 1,
        attempt=plan.attempt + step.is_new_attempt,
        lease=lease,
        fence=lease.token if lease else plan.fence,
        errors=errors,
        reversion_count=plan.reversion_count + step.is_reversion,
        # A merge belongs to one attempt at execute.
        merged=None if is_again else plan.merged,
        conflicts=() if is_again else plan.conflicts,
    )


def require_held_plan(state: State, plan_id: str, lease: int | None, expected: int | None, origin: Origin) -> Plan:
    """Return the plan if the caller holds its lease and saw its latest version; raise otherwise."""
    plan = find_plan(state, plan_id, origin)
    require_lease(plan, lease, origin)
    require_version(plan, expected)
    return plan


def plan_verdict(before: Plan, after: Plan, *others: AnyChange) -> Verdict:
    """Return the verdict of a command that changes one plan and, as a consequence, other rows."""
    return Verdict(PlanFound(after), (RowChanged(before, after), *others))


def start_under_lease(state: State, plan: Plan, origin: Origin, lease_ms: int) -> Plan:
    """Return the queued plan as processing, under a new lease of the caller."""
    return transition(plan, STARTS[plan.phase], origin.now_ms, lease=grant_lease(state, plan, origin, lease_ms))


def steps_to_execute(state: State, plan: Plan, origin: Origin, lease_ms: int) -> list[Plan]:
    """Return the plan's values on its way from strategize to execute under a lease of the caller; the plan itself comes
    first.

    The plan's strategize phase is either processing, and is completed first, or complete.
    """
    steps = [plan]
    if plan.state is PlanState.PROCESSING:
        steps.append(transition(steps[-1], PlanEvent.COMPLETE_STRATEGIZE, origin.now_ms))
    steps.append(transition(steps[-1], PlanEvent.EXECUTE_PLAN, origin.now_ms))
    steps.append(start_under_lease(state, steps[-1], origin, lease_ms))
    return steps


def step_changes(steps: list[Plan]) -> tuple[AnyChange, ...]:
    """Return one change for each pair of adjacent values, so that watchers receive each transition."""
    return tuple(RowChanged(before, after) for before, after in pairwise(steps))


def lose_lease(state: State, plan: Plan, origin: Origin, why: str) -> list[AnyChange]:
    """Return the changes of taking back a plan's lease: it is queued as another attempt, its open changesets are
    aborted.

    A plan that has reached the maximum number of attempts becomes `errored` instead. It has probably killed the
    processes that worked on it, and queueing it again would kill more. An operator has to decide.
    """
    event = PlanEvent.LOSE_LEASE
    if plan.attempt >= limits.ATTEMPTS_MAX:
        event = FAILS[plan.phase]
    after = transition(plan, event, origin.now_ms, error=f"lease lost: {why}")
    return [RowChanged(plan, after), *end_open_changesets(state, plan, ChangesetState.ABORTED, origin.now_ms)]


def cancel_tree(state: State, plan: Plan, origin: Origin, reason: str) -> list[AnyChange]:
    """Return the changes of cancelling a plan and its descendants, except those that have ended already.

    Open changesets are closed, not aborted, so that the changes stay readable. They are never applied, because the
    plans are over.
    """
    changes: list[AnyChange] = []
    for each in (plan, *descendants(state, plan)):
        if each.position not in TERMINAL:
            after = transition(each, PlanEvent.CANCEL_PLAN, origin.now_ms, error=reason or None)
            changes += [
                RowChanged(each, after),
                *end_open_changesets(state, each, ChangesetState.CLOSED, origin.now_ms),
            ]
    return changes


def cancel_children(state: State, plan: Plan, origin: Origin, reason: str) -> list[AnyChange]:
    """Return the changes of cancelling every unfinished child of a plan, with its descendants."""
    return [
        change
        for child in children(state, plan)
        if not is_finished(child)
        for change in cancel_tree(state, child, origin, reason)
    ]


def cancel_siblings(state: State, plan: Plan, origin: Origin) -> list[AnyChange]:
    """Return the changes of cancelling a failed child's unfinished siblings, if the parent declared `fail_fast`."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is None or parent.subplans is None or not parent.subplans.fail_fast:
        return []
    reason = f"fail_fast: sibling {plan.plan_id} failed"
    return [
        change
        for sibling in children(state, parent)
        if sibling.plan_id != plan.plan_id and not is_finished(sibling)
        for change in cancel_tree(state, sibling, origin, reason)
    ]


_QUEUED, _PROCESSING = PlanState.QUEUED, PlanState.PROCESSING


def _phase_times(known: PhaseTimes | None, state: PlanState, now_ms: int) -> PhaseTimes:
    """Return the times of a phase that reaches a state. Queueing a phase clears its earlier start and end."""
    if state is _QUEUED:
        return PhaseTimes(now_ms)
    known = known or PhaseTimes()
    if state is _PROCESSING:
        return PhaseTimes(known.queued_at_ms, known.started_at_ms or now_ms, known.ended_at_ms)
    return PhaseTimes(known.queued_at_ms, known.started_at_ms, now_ms)
