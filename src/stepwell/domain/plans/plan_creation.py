"""Creation of plans: the one function that makes a plan from an action.

`UseAction` creates a plan without a parent, `DeclareSubplans` creates children. Both use `new_plan`, so that scope,
bounds, arguments and inheritance are checked in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.plans.abilities import label_set
from stepwell.domain.plans.actions import bind, render, usable_action
from stepwell.domain.plans.lifecycle import START
from stepwell.domain.plans.model import Action, ArgumentValue, Invariant, PhaseTimes, Plan, ProjectLink
from stepwell.domain.plans.validations import Validation, join_validations
from stepwell.domain.state import State
from stepwell.domain.verdict import AnyChange, Origin, RowChanged
from stepwell.errors import AlreadyExists, Busy, InvalidArgument

_FIRST_PHASE: Final = str(START.phase)


def new_plan(
    state: State,
    origin: Origin,
    *,
    plan_id: str,
    action_name: str,
    links: tuple[ProjectLink, ...],
    arguments: Mapping[str, ArgumentValue],
    invariants: tuple[str, ...] = (),
    validations: tuple[Validation, ...] = (),
    labels: tuple[str, ...] = (),
    retries: int = 0,
    parent: Plan | None = None,
) -> tuple[tuple[AnyChange, ...], Plan]:
    """Return the new plan, and the changes that create it: the action's count of uses, and the plan.

    A child inherits the invariants of its parent, not its labels, and is read-only if its parent is. Texts are rendered
    with the arguments once, here; a later change of the action cannot exist, because actions are immutable apart from
    their state and uses. Raise `OutOfScope`, `AlreadyExists`, `Busy`, `ActionUnavailable`, `NotFound` or
    `InvalidArgument` if the plan cannot be created.
    """
    projects = [link.project for link in links]
    origin.require(projects)
    if len(links) > 1 and len(set(projects)) < len(links):
        raise InvalidArgument("a project is named twice")
    if state.plans.get(plan_id):
        raise AlreadyExists(f"plan {plan_id!r} exists already", plan_id=plan_id)
    if len(state.plans) >= limits.PLANS_MAX:
        raise Busy(f"there are {limits.PLANS_MAX} plans already: end some, and the manager deletes them after a while")
    action = usable_action(state, action_name)
    bound = bind(action, arguments)
    plan = Plan(
        plan_id=plan_id,
        parent_plan_id=parent.plan_id if parent else None,
        root_plan_id=parent.root_plan_id if parent else plan_id,
        depth=parent.depth + 1 if parent else 0,
        action_name=action.name,
        description=render(action.description, bound),
        definition_of_done=render(action.definition_of_done, bound),
        arguments=bound,
        project_links=links,
        invariants=_joined_invariants(parent, action, invariants),
        # A plan is read-only if its action, all of its projects or its parent are. It can then record no changes.
        read_only=action.read_only
        or all(link.read_only for link in links)
        or (parent is not None and parent.read_only),
        created_at_ms=origin.now_ms,
        phase=START.phase,
        state=START.state,
        times={_FIRST_PHASE: PhaseTimes(origin.now_ms)},
        validations=join_validations(action.validations, validations),
        retries_left=retries,
        labels=label_set(labels) if labels else (),
    )
    return (RowChanged(action, replace(action, uses=action.uses + 1)), RowChanged(None, plan)), plan


def _joined_invariants(parent: Plan | None, action: Action, own: tuple[str, ...]) -> tuple[Invariant, ...]:
    """Return the invariants of a new plan: those of its parent, of its action, and its own."""
    inherited = parent.invariants if parent else ()
    if not action.invariants and not own:  # as a rule
        return inherited
    return (
        *inherited,
        *[Invariant(text, "action") for text in action.invariants],
        *[Invariant(text, "plan") for text in own],
    )
