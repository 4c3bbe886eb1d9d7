"""The rules of plans. Each function decides one command; the tables in `lifecycle` say what is legal."""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import ChangesetState
from stepwell.domain.changesets.rules import ended, require_none_open
from stepwell.domain.leases import find_plan, require_lease
from stepwell.domain.paging import build_page
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompletePhase,
    EndSession,
    ExpireLeases,
    FailPhase,
    GetPlan,
    KeepLeases,
    ListPlans,
    RenewLease,
    RetryPlan,
    RevertPlan,
    StartPhase,
    UseAction,
)
from stepwell.domain.plans.decisions import superseded
from stepwell.domain.plans.lifecycle import PlanEvent
from stepwell.domain.plans.merge import require_merged, require_resolved
from stepwell.domain.plans.model import Phase, Plan
from stepwell.domain.plans.plan_creation import draft
from stepwell.domain.plans.plan_tree import (
    require_children_finished,
    require_parent_executing,
    require_turn,
    require_unmerged,
)
from stepwell.domain.plans.transitions import (
    cancelled,
    children_cancelled,
    held,
    lost,
    moved,
    require_version,
    siblings_cancelled,
    started,
    steps_taken,
    transition,
)
from stepwell.domain.replies import LeasesKept, PlanFound, PlanPage, PlanSummary, SessionEnded
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import InvalidArgument, PlanNotReady

_ADVANCE = {Phase.EXECUTE: PlanEvent.EXECUTE_PLAN, Phase.APPLY: PlanEvent.APPLY_PLAN}


@decides(UseAction)
def use_action(state: State, command: UseAction, origin: Origin) -> Verdict:
    """Make a plan: strategize/queued."""
    changes, plan = draft(
        state,
        origin,
        plan_id=command.plan_id,
        action_name=command.action_name,
        links=command.project_links,
        arguments=command.arguments,
        invariants=command.invariants,
        validations=command.validations,
    )
    return Verdict(PlanFound(plan), changes)


@decides(GetPlan)
def get_plan(state: State, command: GetPlan, origin: Origin) -> Verdict:
    """One plan by id."""
    return Verdict(PlanFound(find_plan(state, command.plan_id, origin)))


@decides(ListPlans)
def list_plans(state: State, command: ListPlans, origin: Origin) -> Verdict:
    """Plans of which the session may see every project."""
    page, cursor = build_page(
        state.plans.after(command.cursor),
        command.limit,
        lambda plan: plan.plan_id,
        accepts=lambda plan: (
            command.phase in {None, plan.phase}
            and command.state in {None, plan.state}
            and command.parent_plan_id in {None, plan.parent_plan_id}
            and command.rolled_back in {None, plan.rolled_back is not None}
            and origin.sees(plan.projects)
        ),
    )
    return Verdict(PlanPage(tuple(map(_summary, page)), cursor))


@decides(StartPhase)
def start_phase(state: State, command: StartPhase, origin: Origin) -> Verdict:
    """Of all who call, the first takes the lease; the others find the plan processing."""
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    if plan.phase is not command.phase:
        transition(plan, PlanEvent(f"start_{command.phase}"), origin.now_ms)  # which says what is legal instead
    begun = started(state, plan, origin, command.lease_ms)
    require_turn(state, plan)
    return moved(plan, begun)


@decides(CompletePhase)
def complete_phase(state: State, command: CompletePhase, origin: Origin) -> Verdict:
    """Strategize or execute is done, its children and changesets too."""
    if command.phase is Phase.APPLY:
        raise InvalidArgument("completing apply needs proof: use complete_apply(plan_id, proof=...)")
    plan = held(state, command.plan_id, command.lease, command.expected_version, origin)
    completed = transition(plan, PlanEvent(f"complete_{command.phase}"), origin.now_ms)
    if command.phase is Phase.EXECUTE:
        require_children_finished(state, plan)
        require_none_open(state, plan)
        require_merged(state, plan)
        completed = replace(completed, executed_attempt=plan.attempt)
    return moved(plan, completed)


@decides(FailPhase)
def fail_phase(state: State, command: FailPhase, origin: Origin) -> Verdict:
    """The error is appended; `retry_plan`, `revert_plan` and `cancel_plan` lead out. A child may have retries left."""
    plan = held(state, command.plan_id, command.lease, command.expected_version, origin)
    failed = transition(plan, PlanEvent(f"fail_{command.phase}"), origin.now_ms, error=command.error)
    aborted = ended(state, plan, ChangesetState.ABORTED, origin.now_ms)
    if not plan.retries_left or plan.attempt >= limits.ATTEMPTS_MAX:
        return moved(plan, failed, *aborted, *siblings_cancelled(state, plan, origin))
    retried = transition(failed, PlanEvent.RETRY_PLAN, origin.now_ms)
    retried = replace(retried, retries_left=plan.retries_left - 1)
    return Verdict(PlanFound(retried), (*steps_taken([plan, failed, retried]), *aborted))


@decides(AdvancePlan)
def advance_plan(state: State, command: AdvancePlan, origin: Origin) -> Verdict:
    """Queue execute or apply, once what comes before it is complete."""
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    event = _ADVANCE.get(command.phase)
    if event is None:
        raise InvalidArgument("a plan advances to execute or apply; revert_plan leads back to strategize")
    if event is PlanEvent.APPLY_PLAN and plan.parent_plan_id is not None:
        raise PlanNotReady(f"plan {plan.plan_id!r} is a child: what it changed is applied with its parent")
    require_resolved(plan)
    return moved(plan, transition(plan, event, origin.now_ms))


@decides(RenewLease)
def renew_lease(state: State, command: RenewLease, origin: Origin) -> Verdict:
    """The same token, for longer. A shorter lease than the present one is no renewal."""
    plan = find_plan(state, command.plan_id, origin)
    lease = require_lease(plan, command.lease, origin)
    later = max(lease.expires_at_ms, origin.now_ms + command.lease_ms)
    renewed = transition(plan, PlanEvent.RENEW_LEASE, origin.now_ms, lease=replace(lease, expires_at_ms=later))
    return moved(plan, replace(renewed, version=plan.version))  # a heartbeat makes nobody stale


@decides(RetryPlan)
def retry_plan(state: State, command: RetryPlan, origin: Origin) -> Verdict:
    """An errored phase once more, as another attempt."""
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    retried = transition(plan, PlanEvent.RETRY_PLAN, origin.now_ms)
    if plan.attempt >= limits.ATTEMPTS_MAX:
        raise PlanNotReady(f"plan {plan.plan_id!r} had {plan.attempt} attempts: revert or cancel it")
    return moved(plan, retried)


@decides(RevertPlan)
def revert_plan(state: State, command: RevertPlan, origin: Origin) -> Verdict:
    """Back to strategize: later decisions are superseded, children cancelled, open changesets aborted."""
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    reverted = transition(plan, PlanEvent.REVERT_PLAN, origin.now_ms, error=f"reverted: {command.reason}")
    require_parent_executing(state, plan)
    require_unmerged(state, plan)
    if plan.reversion_count >= limits.REVERSIONS_MAX:
        raise PlanNotReady(f"plan {plan.plan_id!r} was reverted {plan.reversion_count} times: cancel it")
    return moved(
        plan,
        replace(reverted, executed_attempt=None, subplans=None),
        *superseded(state, plan, origin.now_ms),
        *ended(state, plan, ChangesetState.ABORTED, origin.now_ms),
        *children_cancelled(state, plan, origin, f"parent {plan.plan_id} was reverted"),
    )


@decides(CancelPlan)
def cancel_plan(state: State, command: CancelPlan, origin: Origin) -> Verdict:
    """For good, with everybody below it. Changesets stay readable."""
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    transition(plan, PlanEvent.CANCEL_PLAN, origin.now_ms)
    require_unmerged(state, plan)
    changes = cancelled(state, plan, origin, command.reason)
    after = changes[0].after
    assert isinstance(after, Plan)
    return Verdict(PlanFound(after), tuple(changes))


@decides(EndSession)
def end_session(state: State, command: EndSession, origin: Origin) -> Verdict:
    """Its owner is gone, and with it every lease that it held."""
    plans = state.plans.leased_to(command.session_id)
    return _all_lost(state, plans, origin, f"session {command.session_id} ended")


@decides(KeepLeases)
def keep_leases(state: State, command: KeepLeases, _origin: Origin) -> Verdict:
    """Whoever holds one had no chance to renew it. Nothing else about the plan changes, nor its version."""
    held = state.plans.by_expiry.irange((command.held_at_ms + 1, ""), (command.until_ms, ""))
    plans = [state.plans.rows[plan_id] for _, plan_id in held]
    changes: list[AnyChange] = []
    for plan in plans:
        assert plan.lease is not None
        changes.append(RowChanged(plan, replace(plan, lease=replace(plan.lease, expires_at_ms=command.until_ms))))
    return Verdict(LeasesKept(tuple(plan.plan_id for plan in plans)), tuple(changes))


@decides(ExpireLeases)
def expire_leases(state: State, _command: ExpireLeases, origin: Origin) -> Verdict:
    """Nobody renewed them in time. A bounded number at once; the manager asks again while there are more."""
    plans = islice(state.plans.expired(origin.now_ms), limits.EXPIRIES_PER_STEP_MAX)
    return _all_lost(state, list(plans), origin, "it expired")


def _all_lost(state: State, plans: list[Plan], origin: Origin, why: str) -> Verdict:
    changes: list[AnyChange] = [change for plan in plans for change in lost(state, plan, origin, why)]
    return Verdict(SessionEnded(tuple(plan.plan_id for plan in plans)), tuple(changes))


def _summary(plan: Plan) -> PlanSummary:
    return PlanSummary(
        plan_id=plan.plan_id,
        action_name=plan.action_name,
        phase=plan.phase,
        state=plan.state,
        attempt=plan.attempt,
        version=plan.version,
        parent_plan_id=plan.parent_plan_id,
        rolled_back=plan.rolled_back is not None,
    )
