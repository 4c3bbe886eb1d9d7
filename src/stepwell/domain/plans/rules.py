"""The rules of plans: one function decides each command on a plan's phases and leases.

Each function first finds the plan and checks the caller's right to change it (scope, lease, expected version), then
calls `transition`, which refuses what the tables of `lifecycle` do not allow, and then collects the changes of other
rows that follow. A function raises or returns a verdict; it never changes the state itself.
"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.applies.turns import kept_turns, require_apply_turn, start_changes
from stepwell.domain.changesets.model import ChangesetState
from stepwell.domain.changesets.rules import end_open_changesets, require_no_open_changeset
from stepwell.domain.leases import find_plan, require_lease
from stepwell.domain.paging import build_page
from stepwell.domain.plans.commands import (
    AdvancePlan,
    BeginPlan,
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
from stepwell.domain.plans.decisions import supersede_decisions
from stepwell.domain.plans.lifecycle import COMPLETES, FAILS, STARTS, PlanEvent
from stepwell.domain.plans.merge import require_merged, require_resolved
from stepwell.domain.plans.model import Phase, Plan
from stepwell.domain.plans.plan_creation import new_plan
from stepwell.domain.plans.plan_tree import (
    require_children_finished,
    require_parent_executing,
    require_turn,
    require_unmerged,
)
from stepwell.domain.plans.transitions import (
    cancel_children,
    cancel_siblings,
    cancel_tree,
    lose_lease,
    plan_verdict,
    require_held_plan,
    require_version,
    start_under_lease,
    step_changes,
    steps_to_execute,
    transition,
)
from stepwell.domain.replies import LeasesKept, PlanFound, PlanPage, PlanSummary, SessionEnded
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import InvalidArgument, PlanNotReady

_ADVANCE = {Phase.EXECUTE: PlanEvent.EXECUTE_PLAN, Phase.APPLY: PlanEvent.APPLY_PLAN}
"""The event that queues each phase which a plan can advance to."""


@decides(UseAction)
def use_action(state: State, command: UseAction, origin: Origin) -> Verdict:
    """Create a plan from an action. It starts as strategize/queued."""
    changes, plan = new_plan(
        state,
        origin,
        plan_id=command.plan_id,
        action_name=command.action_name,
        links=command.project_links,
        arguments=command.arguments,
        invariants=command.invariants,
        validations=command.validations,
        labels=command.labels,
    )
    return Verdict(PlanFound(plan), changes)


@decides(BeginPlan)
def begin_plan(state: State, command: BeginPlan, origin: Origin) -> Verdict:
    """Create a plan from an action and take it through strategize to execute/processing, under a lease of the caller.

    The plan passes through the same positions as with single commands, so watchers receive the same events. A refusal
    leaves nothing behind, not even a use of the action.
    """
    created, plan = new_plan(
        state,
        origin,
        plan_id=command.plan_id,
        action_name=command.action_name,
        links=command.project_links,
        arguments=command.arguments,
        invariants=command.invariants,
        validations=command.validations,
        labels=command.labels,
    )
    started = start_under_lease(state, plan, origin, command.lease_ms)
    steps = [plan, *steps_to_execute(state, started, origin, command.lease_ms)]
    return Verdict(PlanFound(steps[-1]), (*created, *step_changes(steps)))


@decides(GetPlan)
def get_plan(state: State, command: GetPlan, origin: Origin) -> Verdict:
    """Return one plan."""
    return Verdict(PlanFound(find_plan(state, command.plan_id, origin)))


@decides(ListPlans)
def list_plans(state: State, command: ListPlans, origin: Origin) -> Verdict:
    """Return a page of the plans of which the session may see every project, filtered by the fields that are given.

    A page examines a bounded number of rows. It can have fewer plans than the limit, and still a cursor.
    """
    page, cursor = build_page(
        state.plans.after(command.cursor),
        command.limit,
        lambda plan: plan.plan_id,
        accepts=lambda plan: (
            command.phase in {None, plan.phase}
            and command.state in {None, plan.state}
            and command.parent_plan_id in {None, plan.parent_plan_id}
            and command.rolled_back in {None, plan.rolled_back is not None}
            and (command.label is None or command.label in plan.labels)
            and origin.sees(plan.projects)
        ),
    )
    return Verdict(PlanPage(tuple(map(_summary, page)), cursor))


@decides(StartPhase)
def start_phase(state: State, command: StartPhase, origin: Origin) -> Verdict:
    """Take the lease on a queued plan. The first of several callers gets it; the others find the plan processing.

    A child also waits for its turn among its siblings (`require_turn`), and an apply for its turn at the tree.
    """
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    if plan.phase is not command.phase:
        # No plan can start another phase than its present one. This raises, and lists the legal events.
        transition(plan, STARTS[command.phase], origin.now_ms)
    begun = start_under_lease(state, plan, origin, command.lease_ms)
    require_turn(state, plan)
    if plan.phase is not Phase.APPLY:
        return plan_verdict(plan, begun)
    require_apply_turn(state, plan, command.tree, origin)
    return plan_verdict(plan, begun, *start_changes(state, begun, command.tree, origin))


@decides(CompletePhase)
def complete_phase(state: State, command: CompletePhase, origin: Origin) -> Verdict:
    """Complete strategize or execute. Execute needs finished and merged children, and no open changeset.

    The attempt that completes execute becomes `executed_attempt`: from then on its closed changesets are the plan's
    result, and those of earlier attempts are history.
    """
    if command.phase is Phase.APPLY:
        raise InvalidArgument("completing apply needs proof: use complete_apply(plan_id, proof=...)")
    plan = require_held_plan(state, command.plan_id, command.lease, command.expected_version, origin)
    completed = transition(plan, COMPLETES[command.phase], origin.now_ms)
    if command.phase is Phase.EXECUTE:
        require_children_finished(state, plan)
        require_no_open_changeset(state, plan)
        require_merged(state, plan)
        completed = replace(completed, executed_attempt=plan.attempt)
    return plan_verdict(plan, completed)


@decides(FailPhase)
def fail_phase(state: State, command: FailPhase, origin: Origin) -> Verdict:
    """End a phase with an error, which is appended to the plan's errors.

    A child with retries left is queued again in the same step. Otherwise the plan stays errored until `retry_plan`,
    `revert_plan` or `cancel_plan`, and with `fail_fast` its unfinished siblings are cancelled.
    """
    plan = require_held_plan(state, command.plan_id, command.lease, command.expected_version, origin)
    failed = transition(plan, FAILS[command.phase], origin.now_ms, error=command.error)
    aborted = end_open_changesets(state, plan, ChangesetState.ABORTED, origin.now_ms)
    if not plan.retries_left or plan.attempt >= limits.ATTEMPTS_MAX:
        return plan_verdict(plan, failed, *aborted, *cancel_siblings(state, plan, origin))
    retried = transition(failed, PlanEvent.RETRY_PLAN, origin.now_ms)
    retried = replace(retried, retries_left=plan.retries_left - 1)
    return Verdict(PlanFound(retried), (*step_changes([plan, failed, retried]), *aborted))


@decides(AdvancePlan)
def advance_plan(state: State, command: AdvancePlan, origin: Origin) -> Verdict:
    """Queue execute or apply, once the phase before it is complete.

    A child is never applied alone: its changes are part of its parent's.
    """
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    event = _ADVANCE.get(command.phase)
    if event is None:
        raise InvalidArgument("a plan advances to execute or apply; revert_plan leads back to strategize")
    if event is PlanEvent.APPLY_PLAN and plan.parent_plan_id is not None:
        raise PlanNotReady(f"plan {plan.plan_id!r} is a child: what it changed is applied with its parent")
    require_resolved(plan)
    return plan_verdict(plan, transition(plan, event, origin.now_ms))


@decides(RenewLease)
def renew_lease(state: State, command: RenewLease, origin: Origin) -> Verdict:
    """Extend the lease under the same token. A renewal never shortens it."""
    plan = find_plan(state, command.plan_id, origin)
    lease = require_lease(plan, command.lease, origin)
    later = max(lease.expires_at_ms, origin.now_ms + command.lease_ms)
    renewed = transition(plan, PlanEvent.RENEW_LEASE, origin.now_ms, lease=replace(lease, expires_at_ms=later))
    # A heartbeat must not make the version stale that other callers have read.
    return plan_verdict(plan, replace(renewed, version=plan.version))


@decides(RetryPlan)
def retry_plan(state: State, command: RetryPlan, origin: Origin) -> Verdict:
    """Queue an errored phase again, as another attempt. The number of attempts is bounded."""
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    retried = transition(plan, PlanEvent.RETRY_PLAN, origin.now_ms)
    if plan.attempt >= limits.ATTEMPTS_MAX:
        raise PlanNotReady(f"plan {plan.plan_id!r} had {plan.attempt} attempts: revert or cancel it")
    return plan_verdict(plan, retried)


@decides(RevertPlan)
def revert_plan(state: State, command: RevertPlan, origin: Origin) -> Verdict:
    """Send a plan back to strategize: later decisions are superseded, children cancelled, open changesets aborted.

    The number of reversions is bounded, so that a plan that never succeeds ends up with an operator.
    """
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    reverted = transition(plan, PlanEvent.REVERT_PLAN, origin.now_ms, error=f"reverted: {command.reason}")
    # The reversion of a child changes the parent's result. Both checks come after `transition`, whose message is about
    # the plan itself and therefore more useful.
    require_parent_executing(state, plan)
    require_unmerged(state, plan)
    if plan.reversion_count >= limits.REVERSIONS_MAX:
        raise PlanNotReady(f"plan {plan.plan_id!r} was reverted {plan.reversion_count} times: cancel it")
    return plan_verdict(
        plan,
        replace(reverted, executed_attempt=None, subplans=None),
        *supersede_decisions(state, plan, origin.now_ms),
        *end_open_changesets(state, plan, ChangesetState.ABORTED, origin.now_ms),
        *cancel_children(state, plan, origin, f"parent {plan.plan_id} was reverted"),
    )


@decides(CancelPlan)
def cancel_plan(state: State, command: CancelPlan, origin: Origin) -> Verdict:
    """End a plan and all its descendants for good. Their changesets stay readable.

    A child whose changes are merged cannot be cancelled alone, because the parent's result contains them.
    """
    plan = find_plan(state, command.plan_id, origin)
    require_version(plan, command.expected_version)
    # `cancel_tree` skips plans that have ended. For the named plan itself that is a refusal, which this raises.
    transition(plan, PlanEvent.CANCEL_PLAN, origin.now_ms)
    require_unmerged(state, plan)
    changes = cancel_tree(state, plan, origin, command.reason)
    after = changes[0].after
    assert isinstance(after, Plan)
    return Verdict(PlanFound(after), tuple(changes))


@decides(EndSession)
def end_session(state: State, command: EndSession, origin: Origin) -> Verdict:
    """Take back every lease of a session that has ended."""
    plans = state.plans.leased_to(command.session_id)
    return _lose_leases(state, plans, origin, f"session {command.session_id} ended")


@decides(KeepLeases)
def keep_leases(state: State, command: KeepLeases, _origin: Origin) -> Verdict:
    """Extend the leases that were held at `held_at_ms` to `until_ms`, after a time in which no manager was running.

    Their holders could not renew them. Nothing else about the plans changes, not even the version. Turns in queues of
    applies are extended, too.
    """
    expiring = state.plans.by_expiry.irange((command.held_at_ms + 1, ""), (command.until_ms, ""))
    plans = [state.plans.rows[plan_id] for _, plan_id in expiring]
    changes: list[AnyChange] = []
    for plan in plans:
        assert plan.lease is not None
        changes.append(RowChanged(plan, replace(plan, lease=replace(plan.lease, expires_at_ms=command.until_ms))))
    changes += kept_turns(state, command.held_at_ms, command.until_ms)
    return Verdict(LeasesKept(tuple(plan.plan_id for plan in plans)), tuple(changes))


@decides(ExpireLeases)
def expire_leases(state: State, _command: ExpireLeases, origin: Origin) -> Verdict:
    """Take back leases that were not renewed in time.

    The number for each step is bounded. The manager repeats the command while more are left.
    """
    plans = islice(state.plans.expired(origin.now_ms), limits.EXPIRIES_PER_STEP_MAX)
    return _lose_leases(state, list(plans), origin, "it expired")


def _lose_leases(state: State, plans: list[Plan], origin: Origin, why: str) -> Verdict:
    """Return the verdict that takes back the leases of the plans, with the ids of the plans in the reply."""
    changes: list[AnyChange] = [change for plan in plans for change in lose_lease(state, plan, origin, why)]
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
        labels=plan.labels,
    )
