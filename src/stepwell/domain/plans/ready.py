"""The rules of working on children: any number of agents ask for what is ready, and no two get the same."""

from __future__ import annotations

from stepwell.domain.leases import find_plan
from stepwell.domain.plans.lifecycle import PlanEvent
from stepwell.domain.plans.model import Phase, Plan, PlanState
from stepwell.domain.plans.plan_tree import can_begin, children, is_over, ready
from stepwell.domain.plans.subplan_commands import ProceedPlan, StartReady
from stepwell.domain.plans.transitions import brought_to_execute, held, started, steps_taken, transition
from stepwell.domain.replies import PlanFound, ReadyStarted
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin, Verdict, decides


@decides(StartReady)
def start_ready(state: State, command: StartReady, origin: Origin) -> Verdict:
    """Found and started in one step. Who finds nothing learns whether there will be something."""
    parent = find_plan(state, command.plan_id, origin)
    errored = tuple(child.plan_id for child in children(state, parent) if child.state is PlanState.ERRORED)
    for child in ready(state, parent):
        if can_begin(parent, child) and origin.sees(child.projects):
            steps = _begun(state, child, command, origin)
            return Verdict(ReadyStarted(steps[-1], is_over=False, errored=errored), steps_taken(steps))
    return Verdict(ReadyStarted(None, is_over(state, parent), errored))


@decides(ProceedPlan)
def proceed_plan(state: State, command: ProceedPlan, origin: Origin) -> Verdict:
    """From strategize to execute, as three transitions that nobody comes between."""
    plan = held(state, command.plan_id, command.lease, command.expected_version, origin)
    transition(plan, PlanEvent.COMPLETE_STRATEGIZE, origin.now_ms)
    steps = brought_to_execute(state, plan, origin, command.lease_ms)
    return Verdict(PlanFound(steps[-1]), steps_taken(steps))


def _begun(state: State, child: Plan, command: StartReady, origin: Origin) -> list[Plan]:
    """The steps by which a child becomes the caller's. One with a strategy, and nobody at it, goes on to execute."""
    if child.state is PlanState.COMPLETE:
        return brought_to_execute(state, child, origin, command.lease_ms)
    steps = [child, started(state, child, origin, command.lease_ms)]
    if command.straight and child.phase is Phase.STRATEGIZE:
        steps += brought_to_execute(state, steps[-1], origin, command.lease_ms)[1:]
    return steps
