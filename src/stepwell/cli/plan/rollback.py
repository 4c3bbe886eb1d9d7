"""`stepwell plan rollback`: take the changes of an applied plan out of a tree again.

All files are restored, or none. Each file has to have the content that the plan left; otherwise the command lists the
differing files, changes nothing and ends with exit code 3. A plan that is rolled back already is reported as such, and
nothing is changed again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, print_result
from stepwell.cli.common.parameters import json_flag, option
from stepwell.cli.plan.apply import root_option, sigterm_as_interrupt, tree_root
from stepwell.cli.plan.common.format import local_time
from stepwell.cli.plan.common.plan_id import PlanId, find_plan
from stepwell.client.client import connect
from stepwell.terminal import escape_line
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    plan: PlanId,
    root: Annotated[Path | None, root_option("the tree in which it was applied")] = None,
    reason: Annotated[str, option("--reason", metavar="TEXT", about="kept with the plan")] = "",
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`outcome` (`rolled_back` or `rolled_back_before`) and `plan`, with the fields of `stepwell.Plan` by name; "
            "or `error`, with `kind`, `message` and `details`"
        ),
    ] = False,
) -> int:
    """Files that were changed since are a conflict, and then all files are left as they are."""
    tree = tree_root(root)
    with connect(resolve_address(address)) as client:
        before = find_plan(client, plan)
        with sigterm_as_interrupt():
            after = client.execution(before.plan_id).rollback(tree, reason=reason, on_warning=print_error)
    assert after.rolled_back is not None
    was_before = before.rolled_back is not None
    if json:
        print_json({"outcome": "rolled_back_before" if was_before else "rolled_back", "plan": to_json_value(after)})
    elif was_before:
        print_result(f"plan {after.plan_id} was rolled back before, at {local_time(after.rolled_back.at_ms)}")
    else:
        paths = plural(after.rolled_back.paths, "path")
        print_result(f"rolled back {after.plan_id}: {paths} in {escape_line(str(tree))} as before the plan")
    return 0
