"""The rules of subplans: declare children, and let agents start them.

All children are declared at once, in the order in which they will be merged. Any number of agents then ask for a child
that is ready. Finding a child and taking its lease is one step, so no two agents get the same child.

A child that has failed and is queued again is for another agent than the one that failed it, because the reason may lie
with that agent. The parent remembers the sessions that asked for its children. While it knows of others, the session
that failed a child is passed over for `limits.RETRY_HEAD_START_MS`, which leaves an agent that waits enough time to
ask. So the only agent of a parent gets its child again at once, and no child waits without end for agents that are
gone. Agents that said what they can do count as others only for the children that they can do.
"""

from __future__ import annotations

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.leases import find_plan, require_lease
from stepwell.domain.plans.abilities import Abilities, LimitedAgent, canonical_abilities
from stepwell.domain.plans.commands import DeclareSubplans, ProceedPlan, StartReady, SubplanSpec
from stepwell.domain.plans.lifecycle import PlanEvent
from stepwell.domain.plans.model import Action, Child, Phase, Plan, PlanState, Subplans
from stepwell.domain.plans.plan_creation import new_plan
from stepwell.domain.plans.plan_tree import (
    can_begin,
    check_order,
    children,
    is_finished,
    is_over,
    ready_children,
)
from stepwell.domain.plans.transitions import (
    require_held_plan,
    start_under_lease,
    step_changes,
    steps_to_execute,
    transition,
)
from stepwell.domain.replies import PlanFound, ReadyStarted
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import ActionUnavailable, AlreadyExists, Busy, InvalidArgument, PlanNotReady


@decides(DeclareSubplans)
def declare_subplans(state: State, command: DeclareSubplans, origin: Origin) -> Verdict:
    """Create the children of an executing plan, once. Needs the lease.

    A second declaration is refused unless the plan was reverted.
    """
    plan = find_plan(state, command.plan_id, origin)
    require_lease(plan, command.lease, origin)
    if plan.phase is not Phase.EXECUTE:
        raise PlanNotReady(f"plan {plan.plan_id!r} is {plan.position}: children are declared while it executes")
    if plan.subplans is not None:
        raise AlreadyExists(f"plan {plan.plan_id!r} has its children already", plan_id=plan.plan_id)
    declared = tuple(Child(spec.plan_id, spec.alias, spec.depends_on) for spec in command.children)
    check_order(declared, command.mode)
    _require_size(state, plan, command.children)
    grown = replace(
        plan,
        subplans=Subplans(
            command.mode, command.max_parallel, command.fail_fast, command.merge, declared, command.retries
        ),
    )
    changes = (RowChanged(plan, grown), *_new_children(state, plan, command, origin))
    return Verdict(PlanFound(grown), changes)


@decides(StartReady)
def start_ready(state: State, command: StartReady, origin: Origin) -> Verdict:
    """Take the lease on the first ready child that the session may see and the agent can do, and return the child.

    A child that this session failed is left to other agents for a while. If no child is ready, the reply says whether
    one can become ready later (`is_over` is false), whether that could be one for this agent (`is_for_others` is
    false), and which children have failed, so that the agent knows whether to wait.
    """
    parent = find_plan(state, command.plan_id, origin)
    agent = LimitedAgent(
        origin.session_id,
        canonical_abilities(command.actors, command.labels, read_only=command.read_only),
        command.straight,
    )
    errored = tuple(child.plan_id for child in children(state, parent) if child.state is PlanState.ERRORED)
    for child in ready_children(state, parent):
        if not (can_begin(parent, child) and origin.sees(child.projects) and _can_start(state, agent, child)):
            continue
        if not _is_left_to_others(state, parent, child, origin):
            steps = _start_steps(state, child, command, origin)
            changes = (*_with_agent(parent, agent), *step_changes(steps))
            return Verdict(ReadyStarted(steps[-1], is_over=False, errored=errored), changes)
    if is_over(state, parent):
        return Verdict(ReadyStarted(None, is_over=True, errored=errored))
    if _is_for_others(state, parent, agent, origin):
        return Verdict(ReadyStarted(None, is_over=False, errored=errored, is_for_others=True))
    return Verdict(ReadyStarted(None, is_over=False, errored=errored), _with_agent(parent, agent))


@decides(ProceedPlan)
def proceed_plan(state: State, command: ProceedPlan, origin: Origin) -> Verdict:
    """Complete strategize, queue execute and start it, as three transitions in one step.

    In separate requests, another session could take the lease after the second one.
    """
    plan = require_held_plan(state, command.plan_id, command.lease, command.expected_version, origin)
    transition(plan, PlanEvent.COMPLETE_STRATEGIZE, origin.now_ms)
    steps = steps_to_execute(state, plan, origin, command.lease_ms)
    return Verdict(PlanFound(steps[-1]), step_changes(steps))


def _new_children(state: State, plan: Plan, command: DeclareSubplans, origin: Origin) -> list[AnyChange]:
    """Return the changes that create the children and count the uses of their actions.

    `new_plan` reads the state before this command, so it sees the same count of uses for each child. The uses of one
    action are therefore summed here, into one change of its row.
    """
    actions: dict[str, RowChanged[Action]] = {}
    created: list[AnyChange] = []
    for spec in command.children:
        (use, creation), _ = new_plan(
            state,
            origin,
            plan_id=spec.plan_id,
            action_name=spec.action_name,
            links=spec.project_links or plan.project_links,
            arguments=spec.arguments,
            labels=spec.labels,
            retries=command.retries,
            parent=plan,
        )
        assert isinstance(use.before, Action)
        before = use.before
        uses = sum(isinstance(each.after, Plan) and each.after.action_name == before.name for each in created) + 1
        if uses > 1 and not before.reusable:
            raise ActionUnavailable(f"action {before.name!r} is not reusable: only one child can use it")
        actions[before.name] = RowChanged(before, replace(before, uses=before.uses + uses))
        created.append(creation)
    return [*actions.values(), *created]


def _require_size(state: State, plan: Plan, specs: tuple[SubplanSpec, ...]) -> None:
    """Raise if the new children have the same id, or if the tree would become too deep or too large."""
    if len({spec.plan_id for spec in specs}) < len(specs):
        raise InvalidArgument("two children have the same plan_id")
    if plan.depth >= limits.SUBPLAN_DEPTH_MAX:
        raise PlanNotReady(f"plan {plan.plan_id!r} is {plan.depth} levels deep, the most that is allowed")
    if len(state.plans) + len(specs) > limits.PLANS_MAX:
        raise Busy(
            f"there would be more than the {limits.PLANS_MAX} plans that are allowed: "
            "end some, and the manager deletes them after a while"
        )
    size = len(state.plans.by_root[plan.root_plan_id]) + len(specs)
    if size > limits.PLANS_PER_TREE_MAX:
        raise PlanNotReady(f"this tree would have {size} plans, at most {limits.PLANS_PER_TREE_MAX} are allowed")


def _with_agent(parent: Plan, agent: LimitedAgent) -> tuple[AnyChange, ...]:
    """Return the change by which a parent remembers an agent that asks for its children; none if it does already."""
    subplans = parent.subplans
    if subplans is None or agent.session_id in subplans.agents or agent in subplans.limited:
        return ()
    if agent.abilities.is_any:
        grown = replace(subplans, agents=(*subplans.agents, agent.session_id)[-limits.AGENTS_REMEMBERED_MAX :])
    else:
        grown = replace(subplans, limited=(*subplans.limited, agent)[-limits.LIMITED_AGENTS_MAX :])
    return (RowChanged(parent, replace(parent, subplans=grown)),)


def _can_start(state: State, agent: LimitedAgent, child: Plan) -> bool:
    """Return True if an agent can do the phase in which it would start a ready child."""
    if agent.abilities.is_any:
        return True
    action = state.actions.rows[child.action_name]
    is_first = child.phase is Phase.STRATEGIZE and child.state is PlanState.QUEUED and not agent.straight
    return _covers(agent.abilities, child, {action.strategy_actor if is_first else action.execution_actor})


def _could_start(state: State, agent: LimitedAgent, child: Plan) -> bool:
    """Return True if an agent can do the present phase of a child, or a later one.

    Then it may be offered the child at some time, for instance after another agent has lost the lease.
    """
    if agent.abilities.is_any:
        return True
    action = state.actions.rows[child.action_name]
    is_first = child.phase is Phase.STRATEGIZE and child.state is not PlanState.COMPLETE and not agent.straight
    return _covers(agent.abilities, child, {action.execution_actor, *([action.strategy_actor] if is_first else ())})


def _covers(abilities: Abilities, child: Plan, actors: set[str]) -> bool:
    return abilities.cover(actors, child.labels, is_read_only=child.read_only)


def _is_left_to_others(state: State, parent: Plan, child: Plan, origin: Origin) -> bool:
    """Return True if the session failed this child a short while ago, and other agents that can do it may ask for
    it.
    """
    if not child.errors or child.errors[-1].session_id != origin.session_id or parent.subplans is None:
        return False
    queued_at_ms = child.times[child.phase].queued_at_ms or 0
    if origin.now_ms >= queued_at_ms + limits.RETRY_HEAD_START_MS:
        return False
    return any(session_id != origin.session_id for session_id in parent.subplans.agents) or any(
        other.session_id != origin.session_id and _could_start(state, other, child) for other in parent.subplans.limited
    )


def _is_for_others(state: State, parent: Plan, agent: LimitedAgent, origin: Origin) -> bool:
    """Return True if the children of a parent are declared, and the agent can do none that is left.

    A child that has failed for good is not left, because it needs an intervention first.
    """
    return parent.subplans is not None and not any(
        origin.sees(child.projects) and _could_start(state, agent, child)
        for child in children(state, parent)
        if not is_finished(child) and child.state is not PlanState.ERRORED
    )


def _start_steps(state: State, child: Plan, command: StartReady, origin: Origin) -> list[Plan]:
    """Return the child's values on its way to being processed under a lease of the caller; the child itself comes
    first.

    A child that has completed strategize goes on to execute, and so does a new child if the caller asked for
    `straight`.
    """
    if child.state is PlanState.COMPLETE:
        return steps_to_execute(state, child, origin, command.lease_ms)
    steps = [child, start_under_lease(state, child, origin, command.lease_ms)]
    if command.straight and child.phase is Phase.STRATEGIZE:
        steps += steps_to_execute(state, steps[-1], origin, command.lease_ms)[1:]
    return steps
