"""Parents and children: the descendants of a plan, the children that may start, and the children that are finished.

A child is finished when its execute phase is complete, because its changes are then merged into its parent and applied
with it, or when it was cancelled. A child that has started occupies one of its parent's `max_parallel` places until it
is finished or failed. A failed child gives its place up; after a retry it needs a free place again.

The functions only read the state. They are used by the deciders of other modules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from stepwell.domain.plans.lifecycle import TERMINAL
from stepwell.domain.plans.model import Child, Phase, Plan, PlanState, Position, SubplanMode, Subplans
from stepwell.domain.state import State
from stepwell.errors import InvalidArgument, PlanNotReady
from stepwell.text import plural

_FINISHED = Position(Phase.EXECUTE, PlanState.COMPLETE)  # the changes can be merged into the parent
_NEW = Position(Phase.STRATEGIZE, PlanState.QUEUED)
_STRATEGIZED = Position(Phase.STRATEGIZE, PlanState.COMPLETE)  # has a strategy, and no session that executes it
_REQUEUED = Position(Phase.EXECUTE, PlanState.QUEUED)
_EXECUTING = Position(Phase.EXECUTE, PlanState.PROCESSING)


def children(state: State, plan: Plan) -> list[Plan]:
    """Return a plan's children in declared order."""
    return [state.plans.rows[child.plan_id] for child in plan.subplans.children] if plan.subplans else []


def descendants(state: State, plan: Plan) -> Iterator[Plan]:
    """Iterate over all plans below a plan, each parent before its children."""
    for child in children(state, plan):
        yield child
        yield from descendants(state, child)


def is_finished(plan: Plan) -> bool:
    """Return True if a child has nothing left to do: it has executed or was cancelled."""
    return plan.position == _FINISHED or plan.position in TERMINAL


def has_executed(plan: Plan) -> bool:
    """Return True if a child has completed its execute phase, so that its changes count."""
    return plan.position == _FINISHED


def is_running(plan: Plan) -> bool:
    """Return True if a child occupies one of its parent's places: it has started, and is neither finished nor
    failed.
    """
    return plan.position != _NEW and plan.state is not PlanState.ERRORED and not is_finished(plan)


class _Occupancy(NamedTuple):
    """The number of children that occupy a place of their parent, and the number of children that have a lease."""

    running: int
    leased: int


def _occupancy(siblings: list[Plan]) -> _Occupancy:
    """Return the occupancy of a parent. It is computed once for a scan of all children, because it reads each
    of them.
    """
    return _Occupancy(sum(map(is_running, siblings)), sum(each.lease is not None for each in siblings))


def require_turn(state: State, plan: Plan) -> None:
    """Raise `PlanNotReady` if a child may not start its phase yet.

    A new child waits for its turn and for a place. A child that failed and was queued again waits for a place. A child
    that a reverted parent no longer declares can only be cancelled.
    """
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is None:
        return
    if parent.subplans is None or all(child.plan_id != plan.plan_id for child in parent.subplans.children):
        raise PlanNotReady(f"its parent {parent.plan_id!r} was reverted and no longer declares it: cancel it")
    if plan.phase is Phase.STRATEGIZE:
        require_parent_executing(state, plan)
    _require_turn(state, parent.subplans, plan, plan.phase, _occupancy(children(state, parent)))


def _require_turn(state: State, subplans: Subplans, plan: Plan, phase: Phase, occupancy: _Occupancy) -> None:
    """Raise `PlanNotReady` if the order of the children, or `max_parallel`, does not let the child start the phase.

    The state of the parent is not checked here, because `ready_children` also asks for parents that do not execute.
    """
    is_first = phase is Phase.STRATEGIZE
    if subplans.mode is SubplanMode.SEQUENTIAL:
        if is_first:
            _require_finished(state, _earlier_siblings(subplans.children, plan), "it comes after")
        return
    if is_first and subplans.mode is SubplanMode.DEPENDENCY_ORDERED:
        _require_executed(state, _dependencies(subplans.children, plan))
    # A child that goes on to execute counts itself among the running ones. It therefore compares with the leased ones,
    # which can be as many as there are places only if it failed in between and siblings took its place.
    taken = occupancy.running if is_first else occupancy.leased
    if taken >= subplans.max_parallel:
        raise PlanNotReady(f"{plural(taken, 'sibling is', 'siblings are')} running already, which is max_parallel")


def ready_children(state: State, parent: Plan) -> Iterator[Plan]:
    """Iterate over the children, in declared order, that can start or go on as soon as the parent executes."""
    siblings = children(state, parent)
    occupancy = _occupancy(siblings)
    for child in siblings:
        if parent.subplans and child.position in {_NEW, _STRATEGIZED, _REQUEUED}:
            phase = Phase.STRATEGIZE if child.position == _NEW else Phase.EXECUTE
            with contextlib.suppress(PlanNotReady):
                _require_turn(state, parent.subplans, child, phase, occupancy)
                yield child


def can_begin(parent: Plan, child: Plan) -> bool:
    """Return True if the parent's position lets the child start: a new child needs a parent that executes.

    A child that has started may go on while its parent is queued again, so that a parent's lost lease does not stop it.
    """
    return child.position != _NEW or parent.position == _EXECUTING


def is_over(state: State, parent: Plan) -> bool:
    """Return True if no child of the parent will become ready without a further request.

    Agents that wait for ready children stop waiting then.
    """
    if parent.position in TERMINAL or parent.phase is Phase.APPLY or parent.position == _FINISHED:
        return True
    if parent.subplans is None:  # the children can still be declared
        return False
    at_work = any(child.lease for child in children(state, parent))
    return not at_work and next(ready_children(state, parent), None) is None


def require_parent_executing(state: State, plan: Plan) -> None:
    """Raise `PlanNotReady` if a child would start, or start again, while its parent does not execute.

    A parent that has completed its execution counts on the children as they are.
    """
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is not None and parent.position != _EXECUTING:
        raise PlanNotReady(f"its parent {parent.plan_id!r} is {parent.position}, not executing")


def require_unmerged(state: State, plan: Plan) -> None:
    """Raise `PlanNotReady` if the child's changes are merged into its parent: the child cannot be undone alone then."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is not None and parent.merged is not None and plan.plan_id in parent.merged.children:
        raise PlanNotReady(
            f"what plan {plan.plan_id!r} changed is merged into its parent: revert or cancel {parent.plan_id!r}",
            plan_id=parent.plan_id,
        )


def require_children_finished(state: State, plan: Plan) -> None:
    """Raise `PlanNotReady` if a child is not finished. A child that has not even started is unfinished too."""
    for child in children(state, plan):
        if not is_finished(child):
            raise PlanNotReady(
                f"child {child.plan_id!r} is {child.position}: let it finish, or cancel it",
                plan_id=child.plan_id,
            )


def check_order(specs: tuple[Child, ...], mode: SubplanMode) -> None:
    """Raise `InvalidArgument` for duplicate aliases, dependencies on children that are not declared, and cycles."""
    aliases = {spec.alias for spec in specs}
    if len(aliases) < len(specs):
        raise InvalidArgument("two children have the same alias")
    if mode is not SubplanMode.DEPENDENCY_ORDERED and any(spec.depends_on for spec in specs):
        raise InvalidArgument(f"depends_on needs mode='dependency_ordered', not {mode.value!r}")
    waiting = {spec.alias: set(spec.depends_on) for spec in specs}
    for alias, needs in waiting.items():
        if missing := needs - aliases:
            raise InvalidArgument(f"child {alias!r} depends on {min(missing)!r}, which is not declared")
    # Repeatedly remove the children without open dependencies (Kahn's algorithm). If none is free, the rest is a cycle.
    while waiting:
        free = {alias for alias, needs in waiting.items() if not needs & waiting.keys()}
        if not free:
            raise InvalidArgument(f"the children {', '.join(sorted(waiting))} depend on each other in a cycle")
        waiting = {alias: needs for alias, needs in waiting.items() if alias not in free}


def _earlier_siblings(siblings: tuple[Child, ...], plan: Plan) -> list[str]:
    """Return the ids of the children that are declared before the plan."""
    ids = [sibling.plan_id for sibling in siblings]
    return ids[: ids.index(plan.plan_id)]


def _dependencies(siblings: tuple[Child, ...], plan: Plan) -> list[str]:
    """Return the ids of the siblings that the plan depends on."""
    ids = {sibling.alias: sibling.plan_id for sibling in siblings}
    own = next(sibling for sibling in siblings if sibling.plan_id == plan.plan_id)
    return [ids[alias] for alias in own.depends_on]


def _require_finished(state: State, plan_ids: list[str], why: str) -> None:
    """Raise `PlanNotReady` for the first plan that is not finished."""
    for plan_id in plan_ids:
        other = state.plans.rows[plan_id]
        if not is_finished(other):
            raise PlanNotReady(f"{why} {plan_id!r}, which is {other.position}", plan_id=plan_id)


def _require_executed(state: State, plan_ids: list[str]) -> None:
    """Raise `PlanNotReady` for the first plan that has not executed. A cancelled dependency has no result to
    build on.
    """
    for plan_id in plan_ids:
        other = state.plans.rows[plan_id]
        if other.position != _FINISHED:
            raise PlanNotReady(f"it depends on {plan_id!r}, which is {other.position}", plan_id=plan_id)
