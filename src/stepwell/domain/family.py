"""Parents and children: which child may start, which are finished, who is below whom."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.domain.lifecycle import TERMINAL
from stepwell.domain.plan import Child, Phase, Plan, PlanState, Position, SubplanMode
from stepwell.domain.state import State
from stepwell.errors import InvalidArgument, PlanNotReady

_FINISHED = Position(Phase.EXECUTE, PlanState.COMPLETE)  # what it changed is merged into its parent
_WAITING = Position(Phase.STRATEGIZE, PlanState.QUEUED)


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


def is_running(plan: Plan) -> bool:
    """Whether a child takes one of its parent's places: begun, and not finished."""
    return plan.position != _WAITING and not is_finished(plan)


def require_turn(state: State, plan: Plan) -> None:
    """Refuse to begin a child before its turn."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is None or plan.phase is not Phase.STRATEGIZE:
        return
    if parent.subplans is None or all(child.plan_id != plan.plan_id for child in parent.subplans.children):
        raise PlanNotReady(f"its parent {parent.plan_id!r} was reverted and disowned it: cancel it")
    require_parent_executing(state, plan)
    match parent.subplans.mode:
        case SubplanMode.SEQUENTIAL:
            _require_finished(state, _before(parent.subplans.children, plan), "it comes after")
        case SubplanMode.DEPENDENCY_ORDERED:
            _require_executed(state, _needed(parent.subplans.children, plan))
            _require_place(state, parent)
        case SubplanMode.PARALLEL:
            _require_place(state, parent)


def require_parent_executing(state: State, plan: Plan) -> None:
    """Refuse to let a child begin, or begin anew, behind the back of a parent that counts on it as it is."""
    parent = state.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
    if parent is not None and parent.position != Position(Phase.EXECUTE, PlanState.PROCESSING):
        raise PlanNotReady(f"its parent {parent.plan_id!r} is {parent.position}, not executing")


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


def _before(siblings: tuple[Child, ...], plan: Plan) -> list[str]:
    ids = [sibling.plan_id for sibling in siblings]
    return ids[: ids.index(plan.plan_id)]


def _needed(siblings: tuple[Child, ...], plan: Plan) -> list[str]:
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


def _require_place(state: State, parent: Plan) -> None:
    assert parent.subplans is not None
    running = sum(map(is_running, children(state, parent)))
    if running >= parent.subplans.max_parallel:
        raise PlanNotReady(f"{running} of its siblings are running already, which is max_parallel")
