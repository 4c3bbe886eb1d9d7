"""The tree of a plan's children, for `stepwell plan show`: as nested values for JSON, and as text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from rich.text import Text
from rich.tree import Tree

from stepwell.cli.plan.format import position_text
from stepwell.client.client import Client
from stepwell.domain.plans.model import Phase, Plan, PlanState
from stepwell.errors import NotFound


class ChildNode(Struct, frozen=True):
    """A child of a plan, with its own children.

    A child that retention has deleted has only the fields that its parent declared; the others are None. `error` is the
    child's last error.
    """

    plan_id: str
    alias: str
    depends_on: tuple[str, ...]
    action_name: str | None
    phase: Phase | None
    state: PlanState | None
    attempt: int | None
    error: str | None
    children: tuple[ChildNode, ...]


def child_nodes(client: Client, plan: Plan) -> tuple[ChildNode, ...]:
    """Return the children of a plan in declared order, with all their descendants.

    Each child is read by one request. Trees are small, and the depth is bounded by `SUBPLAN_DEPTH_MAX`.
    """
    if plan.subplans is None:
        return ()
    return tuple(_child_node(client, child.plan_id, child.alias, child.depends_on) for child in plan.subplans.children)


def _child_node(client: Client, plan_id: str, alias: str, depends_on: tuple[str, ...]) -> ChildNode:
    """Return one child. It may have been deleted, or become invisible, between two requests."""
    try:
        plan = client.plans.get_plan(plan_id)
    except NotFound:
        return ChildNode(plan_id, alias, depends_on, None, None, None, None, None, ())
    return ChildNode(
        plan_id=plan_id,
        alias=alias,
        depends_on=depends_on,
        action_name=plan.action_name,
        phase=plan.phase,
        state=plan.state,
        attempt=plan.attempt,
        error=plan.errors[-1].message if plan.errors else None,
        children=child_nodes(client, plan),
    )


def render_tree(heading: str, children: Sequence[ChildNode]) -> Tree:
    """Return the children as a tree of text."""
    tree = Tree(Text(heading, "bold"))
    _add_branches(tree, children)
    return tree


def _add_branches(tree: Tree, children: Sequence[ChildNode]) -> None:
    """Add a branch for each child, and below it its own children."""
    for each in children:
        _add_branches(tree.add(_line(each)), each.children)


def _line(child: ChildNode) -> Text:
    """Return the text of one child: alias, id, position, and the attempt and dependencies if there is something
    to say.
    """
    line = Text(f"{child.alias}  ").append(child.plan_id, "dim").append("  ")
    if child.phase is None or child.state is None:
        return line.append("forgotten", "dim")
    line.append_text(position_text(child.phase, child.state))
    # Most children succeed at the first attempt, so only further attempts are worth a word.
    if child.attempt != 1:
        line.append(f", attempt {child.attempt}")
    if child.depends_on:
        line.append(f", after {', '.join(child.depends_on)}", "dim")
    return line
