"""`stepwell plan list`: list plans with their positions, oldest first.

By default it lists the plans that are not over, because those are the ones an operator can act on. `--all` lists all;
`--state` and `--parent` list matching plans whether they are over or not. If there are none, a line on stderr says so
and the exit code is 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json, result_console
from stepwell.cli.common.subcommand import Subcommand
from stepwell.cli.plan.format import position_text
from stepwell.cli.plan.resolve import find_plan
from stepwell.client.client import Client, connect
from stepwell.domain.plans.lifecycle import TERMINAL
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.domain.replies import PlanSummary


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the filters. The choices are the values of the domain's enumerations, so a new state appears here by
    itself.
    """
    parser.add_argument("--phase", choices=[each.value for each in Phase], help="only those that are in it")
    parser.add_argument("--state", choices=[each.value for each in PlanState], help="only those that are in it")
    parser.add_argument("--parent", metavar="PLAN", help="only its children")
    parser.add_argument(
        "--all", action="store_true", help="also those that are over (they are shown anyway with --state or --parent)"
    )


def _run(arguments: argparse.Namespace) -> int:
    """Print the plans as a table, or with `--json` as a list of objects."""
    with connect(resolve_address(arguments.address)) as client:
        found = [*_found(client, arguments)]
    if arguments.json:
        print_json({"plans": to_json_value(found)})
        return 0
    if found:
        result_console().print(_table(found))
    else:
        print_error(
            "there are no such plans" if arguments.all else "there are no such plans; --all shows also what is over"
        )
    return 0


def _found(client: Client, arguments: argparse.Namespace) -> Iterator[PlanSummary]:
    """Iterate over the matching plans, a page at a time.

    The manager filters by phase, state and parent. Whether a plan is over is a pair of phase and state, so this filter
    is applied here.
    """
    phase = Phase(arguments.phase) if arguments.phase else None
    state = PlanState(arguments.state) if arguments.state else None
    parent = find_plan(client, arguments.parent).plan_id if arguments.parent else None
    # A user who asks for a state or for a parent's children wants all matching plans.
    shows_all = arguments.all or state is not None or parent is not None
    cursor: str | None = None
    while True:
        page = client.plans.list_plans(
            phase=phase, state=state, parent_plan_id=parent, limit=limits.PAGE_ROWS_MAX, cursor=cursor
        )
        yield from (each for each in page.plans if shows_all or Position(each.phase, each.state) not in TERMINAL)
        if page.cursor is None:
            return
        cursor = page.cursor


def _table(found: list[PlanSummary]) -> Table:
    """Return the table of plans. Ids are never folded, because they are copied into the next command."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("plan", style="bold", no_wrap=True)
    table.add_column("action", overflow="fold")
    table.add_column("phase/state", no_wrap=True)
    table.add_column("attempt", justify="right")
    table.add_column("parent", no_wrap=True)
    for each in found:
        where = position_text(each.phase, each.state, rolled_back=each.rolled_back)
        table.add_row(each.plan_id, each.action_name, where, str(each.attempt), each.parent_plan_id or "")
    return table


LIST: Final = Subcommand(
    "List plans, the oldest first, by default those that are not over",
    _add_arguments,
    _run,
    "`plans`, a list, each with `plan_id`, `action_name`, `phase`, `state`, `attempt`, `version`, `parent_plan_id` and "
    "`rolled_back`",
)
