"""The tree of a plan's children, for `stepwell plan show` and `subplans`: as nested values for JSON, and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from rich.text import Text
from rich.tree import Tree

from stepwell.cli.plan.common.format import local_time, position_text
from stepwell.client.client import Client
from stepwell.domain.plans.conflicts import ConflictState
from stepwell.domain.plans.model import Child, Lease, Phase, Plan, PlanState
from stepwell.errors import NotFound
from stepwell.terminal import escape_line
from stepwell.text import plural

_INDENT: Final = "  "  # of the lines about a child, below its own


class ChildConflict(Struct, frozen=True):
    """A path at which the changes of a child did not fit those of the children before it."""

    path: str
    state: ConflictState


class ChildNode(Struct, frozen=True):
    """A child of a plan, with its own children.

    A child that retention has deleted has only the fields that its parent has; the others are None. `lease` belongs to
    the session that works on the child, `error` is the child's last error. `is_merged` and `conflicts` are about the
    merge of its parent.
    """

    plan_id: str
    alias: str
    depends_on: tuple[str, ...]
    action_name: str | None
    phase: Phase | None
    state: PlanState | None
    attempt: int | None
    lease: Lease | None
    error: str | None
    is_merged: bool
    conflicts: tuple[ChildConflict, ...]
    labels: tuple[str, ...] | None
    children: tuple[ChildNode, ...]


def child_nodes(client: Client, plan: Plan) -> tuple[ChildNode, ...]:
    """Return the children of a plan in declared order, with all their descendants.

    Each child is read by one request. Trees are small, and the depth is bounded by `SUBPLAN_DEPTH_MAX`.
    """
    if plan.subplans is None:
        return ()
    return tuple(_child_node(client, plan, child) for child in plan.subplans.children)


def _child_node(client: Client, parent: Plan, child: Child) -> ChildNode:
    """Return one child. It may have been deleted, or become invisible, between two requests."""
    try:
        plan = client.plans.get_plan(child.plan_id)
    except NotFound:
        plan = None
    return ChildNode(
        plan_id=child.plan_id,
        alias=child.alias,
        depends_on=child.depends_on,
        action_name=plan.action_name if plan else None,
        phase=plan.phase if plan else None,
        state=plan.state if plan else None,
        attempt=plan.attempt if plan else None,
        lease=plan.lease if plan else None,
        error=plan.errors[-1].message if plan and plan.errors else None,
        is_merged=parent.merged is not None and child.plan_id in parent.merged.children,
        conflicts=tuple(
            ChildConflict(each.path, each.state) for each in parent.conflicts if each.plan_id == child.plan_id
        ),
        labels=plan.labels if plan else None,
        children=child_nodes(client, plan) if plan else (),
    )


def render_tree(heading: str, children: Sequence[ChildNode], *, has_details: bool = False) -> Tree:
    """Return the children as a tree of text. With `has_details` there are further lines below that of a child."""
    tree = Tree(Text(heading, "bold"))
    _add_branches(tree, children, has_details=has_details)
    return tree


def _add_branches(tree: Tree, children: Sequence[ChildNode], *, has_details: bool) -> None:
    """Add a branch for each child, and below it its own children."""
    for each in children:
        lines = [_line(each), *(_details(each) if has_details else ())]
        _add_branches(tree.add(Text("\n").join(lines)), each.children, has_details=has_details)


def _line(child: ChildNode) -> Text:
    """Return the text of one child: alias, id, position, and the attempt, dependencies, labels and merge if there is
    something to say.
    """
    line = Text(f"{child.alias}  ").append(child.plan_id, "dim").append("  ")
    if child.phase is None or child.state is None:
        return line.append("forgotten", "dim")
    line.append_text(position_text(child.phase, child.state))
    # Most children succeed at the first attempt, so only further attempts are shown.
    if child.attempt != 1:
        line.append(f", attempt {child.attempt}")
    if child.depends_on:
        line.append(f", after {', '.join(child.depends_on)}", "dim")
    if child.labels:
        line.append(f", needs {', '.join(child.labels)}", "cyan")
    if child.is_merged:
        line.append(", merged", "green")
    if is_open := sum(each.state is ConflictState.OPEN for each in child.conflicts):
        line.append(f", {plural(is_open, 'open conflict')}", "red")
    return line


def _details(child: ChildNode) -> Iterator[Text]:
    """Yield a line about the session that works on a child, about each of its conflicts, and about its last error."""
    if child.lease is not None:
        until = local_time(child.lease.expires_at_ms)
        yield Text(f"{_INDENT}session {child.lease.session_id} works on it, until {until} at least", "yellow")
    for each in child.conflicts:
        style = "red" if each.state is ConflictState.OPEN else "green"
        yield Text(f"{_INDENT}conflict at {escape_line(each.path)}: {each.state}", style)
    if child.error is not None:
        yield Text(f"{_INDENT}last error: {escape_line(child.error)}")
