"""The commands that are possible next for a plan, mostly those that bring it forward."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.domain.changesets.commands import EndChangeset, RecordChange, StartChangeset
from stepwell.domain.changesets.model import ChangesetState
from stepwell.domain.commands import Command
from stepwell.domain.plans.commands import (
    AdvancePlan,
    CancelPlan,
    CompleteApply,
    CompletePhase,
    DeclareSubplans,
    FailPhase,
    RecordDecision,
    RenewLease,
    RetryPlan,
    RevertPlan,
    StartPhase,
    SubplanSpec,
)
from stepwell.domain.plans.model import Phase, Plan, PlanState
from stepwell.domain.replies import Reply
from stepwell.domain.state import State

LEASE_MS = 5_000


def next_commands(state: State, plan: Plan, serial: int, body: Callable[[], bytes]) -> list[Command[Reply]]:
    """Return the possible commands. `serial` makes new names; `body` gives a body when one is recorded."""
    name, phase = plan.plan_id, plan.phase
    match plan.state:
        case PlanState.QUEUED:
            return [StartPhase(name, phase, LEASE_MS)]
        case PlanState.PROCESSING:
            return _processing_commands(state, plan, serial, body)
        case PlanState.COMPLETE:
            following = Phase.APPLY if phase is Phase.EXECUTE else Phase.EXECUTE
            return [AdvancePlan(name, following)] * 3 + [RevertPlan(name, "x")]
        case PlanState.ERRORED:
            return [RetryPlan(name)]
        case _:
            return [CancelPlan(name)]


def _processing_commands(state: State, plan: Plan, serial: int, body: Callable[[], bytes]) -> list[Command[Reply]]:
    name, phase, token = plan.plan_id, plan.phase, plan.lease.token if plan.lease else None
    found: list[Command[Reply]] = [
        *[_done(state, plan, token)] * 2,
        RenewLease(name, token, 2 * LEASE_MS),
        FailPhase(name, phase, token, "x"),
        RecordDecision(name, f"decision-{serial}", token, "?", "!"),
        CancelPlan(name),
    ]
    if phase is Phase.EXECUTE:
        opened = [each for each in state.changesets if (each.plan_id, each.state) == (name, ChangesetState.OPEN)]
        found += [
            DeclareSubplans(name, token, (SubplanSpec("c", f"child-{serial}", "act"),)),
            *record(plan, serial, body) * 2,
            *[EndChangeset(name, each.context_id, token, each.changeset_id) for each in opened],
        ]
    return found


def _done(state: State, plan: Plan, token: int | None) -> Command[Reply]:
    if plan.phase is not Phase.APPLY:
        return CompletePhase(plan.plan_id, plan.phase, token)
    entries = [entry for each in plan.changeset_ids for entry in state.entries.of(each)]
    proof = {entry.path: entry.after.digest if entry.after else None for entry in entries}
    return CompleteApply(plan.plan_id, token, proof)


def record(plan: Plan, serial: int, body: Callable[[], bytes]) -> list[Command[Reply]]:
    """A change in a changeset of its own."""
    name, token = plan.plan_id, plan.lease.token if plan.lease else None
    return [
        StartChangeset(name, f"context-{name}", f"changeset-{serial}", token),
        RecordChange(name, f"context-{name}", token, f"{serial}.py", body(), body()),
    ]


def progress(state: State, plan_id: str, phase: Phase) -> Command[Reply] | None:
    """What brings a plan a step nearer to working on a phase; None when nothing does, or it is there."""
    plan = state.plans.get(plan_id)
    if plan is None or (plan.phase is phase and plan.state is not PlanState.QUEUED):
        return None
    token = plan.lease.token if plan.lease else None
    match plan.state:
        case PlanState.QUEUED:
            return StartPhase(plan_id, plan.phase, LEASE_MS)
        case PlanState.PROCESSING:
            return _done(state, plan, token)
        case PlanState.COMPLETE:
            return AdvancePlan(plan_id, Phase.APPLY if plan.phase is Phase.EXECUTE else Phase.EXECUTE)
        case PlanState.ERRORED:
            return RetryPlan(plan_id)
        case _:
            return None
