"""Parents and children: which child may start, which are finished, who is below whom."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from stepwell.domain.plans.lifecycle import TERMINAL
from stepwell.domain.plans.model import Child, Phase, Plan, PlanState, Position, SubplanMode, Subplans
from stepwell.domain.state import State
from stepwell.errors import InvalidArgument, PlanNotReady

_FINISHED = Position(Phase.EXECUTE, PlanState.COMPLETE)  # what it changed is merged into its parent
_NEW = Position(Phase.STRATEGIZE, PlanState.QUEUED)
_STRATEGIZED = Position(Phase.STRATEGIZE, PlanState.COMPLETE)  # it has a strategy, and nobody who executes it
_REQUEUED = Position(Phase.EXECUTE, PlanState.QUEUED)
_EXECUTING = Position(Phase.EXECUTE, PlanState.PROCESSING)


def children(state: State, plan: Plan) -> list[Plan]:
    """A plan's children in declared order."""
    return [state.plans.rows[child.plan_id] for child in plan.subplans.children] if plan.subplans else []


def descendants(state: State, plan: Plan) -> Iterator[Plan]:
    """Everybody below a plan, parents before children."""
    for child in children(state, plan):
        yield child
        yield from descendants(state, child)


def is_finished(plan: Plan) -> bool:
    """Whether a child has nothing left to do: it executed, or was cancelled."""
    return plan.position == _FINISHED or plan.position in TERMINAL


def has_executed(plan: Plan) -> bool:
    """Whether a child has changes that count."""
    return plan.position == _FINISHED


def is_running(plan: Plan) -> bool:
    """Whether a child takes one of its parent's places: begun, and neither finished nor failed for good."""
    return plan.position != _NEW and plan.state is not PlanState.ERRORED and not is_finished(plan)


class _Occupancy(NamedTuple):
    """How many of a parent's places are taken, and on how many children somebody works."""

    running: int
    leased: int


def _occupancy(siblings: list[Plan]) -> _Occupancy:
    return _Occupancy(sum(map(is_running, siblings)), sum(each.lease is not None for each in siblings))


def require_turn(state: State, plan: Plan) -> None:
    """Refuse to begin a child before its turn, or to go on with one that failed while others have its place."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is None:
        return
    if parent.subplans is None or all(child.plan_id != plan.plan_id for child in parent.subplans.children):
        raise PlanNotReady(f"its parent {parent.plan_id!r} was reverted and disowned it: cancel it")
    if plan.phase is Phase.STRATEGIZE:
        require_parent_executing(state, plan)
    _require_turn(state, parent.subplans, plan, plan.phase, _occupancy(children(state, parent)))


def _require_turn(state: State, subplans: Subplans, plan: Plan, phase: Phase, occupancy: _Occupancy) -> None:
    """Whether a child's phase may start, whatever its parent does meanwhile."""
    is_first = phase is Phase.STRATEGIZE
    if subplans.mode is SubplanMode.SEQUENTIAL:
        if is_first:
            _require_finished(state, _earlier_siblings(subplans.children, plan), "it comes after")
        return
    if is_first and subplans.mode is SubplanMode.DEPENDENCY_ORDERED:
        _require_executed(state, _dependencies(subplans.children, plan))
    # Who executes has had its place since it began, unless it failed in between and others took it.
    taken = occupancy.running if is_first else occupancy.leased
    if taken >= subplans.max_parallel:
        raise PlanNotReady(f"{taken} of its siblings are running already, which is max_parallel")


def ready_children(state: State, parent: Plan) -> Iterator[Plan]:
    """The children, in declared order, that can be begun or gone on with as soon as the parent executes."""
    siblings = children(state, parent)
    occupancy = _occupancy(siblings)
    for child in siblings:
        if parent.subplans and child.position in {_NEW, _STRATEGIZED, _REQUEUED}:
            phase = Phase.STRATEGIZE if child.position == _NEW else Phase.EXECUTE
            with contextlib.suppress(PlanNotReady):
                _require_turn(state, parent.subplans, child, phase, occupancy)
                yield child


def can_begin(parent: Plan, child: Plan) -> bool:
    """Whether the parent lets it: only what has begun goes on without one that executes."""
    return child.position != _NEW or parent.position == _EXECUTING


def is_over(state: State, parent: Plan) -> bool:
    """Whether no child will be ready, unless somebody steps in."""
    if parent.position in TERMINAL or parent.phase is Phase.APPLY or parent.position == _FINISHED:
        return True
    if parent.subplans is None:  # they are yet to be declared
        return False
    at_work = any(child.lease for child in children(state, parent))
    return not at_work and next(ready_children(state, parent), None) is None


def require_parent_executing(state: State, plan: Plan) -> None:
    """Refuse to let a child begin, or begin anew, behind the back of a parent that counts on it as it is."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is not None and parent.position != _EXECUTING:
        raise PlanNotReady(f"its parent {parent.plan_id!r} is {parent.position}, not executing")


def require_unmerged(state: State, plan: Plan) -> None:
    """Refuse to take back a child whose changes are its parent's by now."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is not None and parent.merged is not None and plan.plan_id in parent.merged.children:
        raise PlanNotReady(
            f"what plan {plan.plan_id!r} changed is merged into its parent: revert or cancel {parent.plan_id!r}",
            plan_id=parent.plan_id,
        )


def require_children_finished(state: State, plan: Plan) -> None:
    """A parent is not done while a child is not: an unstarted one least of all."""
    for child in children(state, plan):
        if not is_finished(child):
            raise PlanNotReady(
                f"child {child.plan_id!r} is {child.position}: let it finish, or cancel it",
                plan_id=child.plan_id,
            )


def check_order(specs: tuple[Child, ...], mode: SubplanMode) -> None:
    """Refuse duplicate aliases, dependencies on nobody, and cycles."""
    aliases = {spec.alias for spec in specs}
    if len(aliases) < len(specs):
        raise InvalidArgument("two children have the same alias")
    if mode is not SubplanMode.DEPENDENCY_ORDERED and any(spec.depends_on for spec in specs):
        raise InvalidArgument(f"depends_on needs mode='dependency_ordered', not {mode!r}")
    waiting = {spec.alias: set(spec.depends_on) for spec in specs}
    for alias, needs in waiting.items():
        if missing := needs - aliases:
            raise InvalidArgument(f"child {alias!r} depends on {min(missing)!r}, which is not declared")
    while waiting:
        free = {alias for alias, needs in waiting.items() if not needs & waiting.keys()}
        if not free:
            raise InvalidArgument(f"the children {', '.join(sorted(waiting))} depend on each other in a cycle")
        waiting = {alias: needs for alias, needs in waiting.items() if alias not in free}


def _earlier_siblings(siblings: tuple[Child, ...], plan: Plan) -> list[str]:
    ids = [sibling.plan_id for sibling in siblings]
    return ids[: ids.index(plan.plan_id)]


def _dependencies(siblings: tuple[Child, ...], plan: Plan) -> list[str]:
    ids = {sibling.alias: sibling.plan_id for sibling in siblings}
    own = next(sibling for sibling in siblings if sibling.plan_id == plan.plan_id)
    return [ids[alias] for alias in own.depends_on]


def _require_finished(state: State, plan_ids: list[str], why: str) -> None:
    for plan_id in plan_ids:
        other = state.plans.rows[plan_id]
        if not is_finished(other):
            raise PlanNotReady(f"{why} {plan_id!r}, which is {other.position}", plan_id=plan_id)


def _require_executed(state: State, plan_ids: list[str]) -> None:
    """What one depends on has to be there: a cancelled child gives nothing."""
    for plan_id in plan_ids:
        other = state.plans.rows[plan_id]
        if other.position != _FINISHED:
            raise PlanNotReady(f"it depends on {plan_id!r}, which is {other.position}", plan_id=plan_id)
