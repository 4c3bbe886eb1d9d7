"""`stepwell plan queue`: list the plans that wait to be applied to a tree, in the order of their turns.

The plan that is being applied comes first. If no plan waits, a line on stderr says so and the exit code is 0. Plans of
projects that this session may not see are counted, and not listed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from rich import box
from rich.table import Table
from rich.text import Text

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.plan.apply import root_option, tree_root
from stepwell.cli.plan.common.format import local_time
from stepwell.client.client import connect
from stepwell.client.workflows.plan_delta import root_text
from stepwell.domain.replies import ApplyQueueFound
from stepwell.terminal import escape_line
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    root: Annotated[Path | None, root_option("the tree whose queue is listed")] = None,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`tree`; `plans`, the number of plans in the queue; `at_work`, the number of those that are being applied; "
            "and `tickets`, a list, each with `place`, `plan_id`, `priority`, `joined_at_ms`, `session_id`, "
            "`ticket_id`, `turn_until_ms`, `tree` and `revision`"
        ),
    ] = False,
) -> int:
    """The plan that is being applied comes first, then those with the highest priority, and of these the oldest."""
    tree = tree_root(root)
    with connect(resolve_address(address)) as client:
        found = client.plans.apply_queue(root_text(str(tree)))
    if json:
        tickets = to_json_value(found.tickets)
        print_json({"tree": str(tree), "plans": found.plans, "at_work": found.at_work, "tickets": tickets})
    elif not found.plans:
        print_error(f"no plan waits for {escape_line(str(tree))}")
    else:
        result_console().print(_table(found))
        if hidden := found.plans - len({each.plan_id for each in found.tickets}):
            print_error(f"{plural(hidden, 'plan')} of other projects in the same queue")
    return 0


def _table(found: ApplyQueueFound) -> Table:
    """Return the table of tickets. Ids are never folded, because they are copied into the next command."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("place", justify="right")
    table.add_column("plan", style="bold", no_wrap=True)
    table.add_column("priority", justify="right")
    table.add_column("since")
    table.add_column("state")
    for each in found.tickets:
        state = Text("waits")
        if each.place <= found.at_work:
            state = Text("is being applied", "yellow")
        elif each.turn_until_ms is not None:
            state = Text("has its turn", "green")
        table.add_row(str(each.place), each.plan_id, str(each.priority), local_time(each.joined_at_ms), state)
    return table
