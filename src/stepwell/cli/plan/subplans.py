"""`stepwell plan subplans PLAN`: show the children of a plan, with their descendants.

It prints the tree that is also a part of `stepwell plan show`: for each child its alias, its id, its position and
attempt, the siblings that it waits for, its labels, and whether its changes are merged into the parent. Lines below
that name the session that works on it, each conflict of its changes with those of the children before it, and its last
error. If there are no children, a line on stderr says so and the exit code is 0.
"""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.plan.common.children import ChildNode, child_nodes, render_tree
from stepwell.cli.plan.common.format import local_time
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect
from stepwell.domain.plans.model import Plan, SubplanMode, Subplans
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`plan_id`; `subplans` (how they run and are merged) and `merged` (the merge), null if there is none; "
            "`open_conflicts`, their number; and `children`, a list, each with `plan_id`, `alias`, `depends_on`, "
            "`action_name`, `phase`, `state`, `attempt`, `lease`, `error`, `is_merged`, `conflicts` (each with `path` "
            "and `state`), `labels` and its own `children`"
        ),
    ] = False,
) -> int:
    """The children are in the order in which they are merged, each with its own children below it."""
    with connect(resolve_address(address)) as client:
        found = find_plan(client, plan)
        children = child_nodes(client, found)
    if json:
        print_json(_json_object(found, children))
    elif found.subplans is None:
        print_error(f"plan {found.plan_id} has no children")
    else:
        result_console().print(render_tree(_heading(found, found.subplans), children, has_details=True))
    return 0


def _json_object(plan: Plan, children: tuple[ChildNode, ...]) -> dict[str, object]:
    """Return the object for `--json`."""
    return {
        "plan_id": plan.plan_id,
        "subplans": to_json_value(plan.subplans),
        "merged": to_json_value(plan.merged),
        "open_conflicts": len(plan.open_conflicts),
        "children": to_json_value(children),
    }


def _heading(plan: Plan, subplans: Subplans) -> str:
    """Return how the children run, and how far their merge is."""
    count = len(subplans.children)
    number = plural(count, "child", "children")
    places = "" if subplans.mode is SubplanMode.SEQUENTIAL else f", at most {subplans.max_parallel} at once"
    how = f"{number}, {subplans.mode}{places}, merge strategy {subplans.merge}"
    if plan.merged is None:
        return f"{how}; not merged"
    conflicts = plural(len(plan.open_conflicts), "open conflict")
    return f"{how}; merged {local_time(plan.merged.at_ms)}, {conflicts}"
