"""`stepwell plan list`: list plans with their positions, oldest first.

By default it lists the plans that are not over, because those are the ones an operator can act on. `--all` lists all;
`--state` and `--parent` list matching plans whether they are over or not. If there are none, a line on stderr says so
and the exit code is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.completions import complete_plans
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import choice, flag, json_flag, option
from stepwell.cli.plan.common.format import position_text
from stepwell.cli.plan.common.plan_id import find_plan
from stepwell.client.client import Client, connect
from stepwell.domain.plans.lifecycle import TERMINAL
from stepwell.domain.plans.model import Phase, PlanState, Position
from stepwell.domain.replies import PlanSummary

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    # The choices are the values of the domain's enumerations, so a new state appears here by itself.
    phase: Annotated[Phase | None, choice("--phase", values=Phase, about="only those that are in it")] = None,
    state: Annotated[PlanState | None, choice("--state", values=PlanState, about="only those that are in it")] = None,
    parent: Annotated[
        str | None, option("--parent", metavar="PLAN", about="only its children", complete=complete_plans)
    ] = None,
    label: Annotated[
        str | None, option("--label", metavar="LABEL", about="only those that need an agent with this label")
    ] = None,
    shows_all: Annotated[
        bool, flag("--all", "also those that are over (they are shown anyway with --state or --parent)")
    ] = False,
    address: Address = None,
    json: Annotated[
        bool,
        json_flag(
            "`plans`, a list, each with `plan_id`, `action_name`, `phase`, `state`, `attempt`, `version`, "
            "`parent_plan_id`, `rolled_back` and `labels`"
        ),
    ] = False,
) -> int:
    """With --state or --parent it lists matching plans whether they are over or not."""
    with connect(resolve_address(address)) as client:
        parent_id = find_plan(client, parent).plan_id if parent else None
        # A user who asks for a state or for a parent's children wants all matching plans.
        is_over_shown = shows_all or state is not None or parent_id is not None
        found = [
            each
            for each in _found(client, phase, state, parent_id, label)
            if is_over_shown or Position(each.phase, each.state) not in TERMINAL
        ]
    if json:
        print_json({"plans": to_json_value(found)})
    elif found:
        result_console().print(_table(found))
    else:
        print_error(
            "there are no such plans" if shows_all else "there are no such plans; --all shows also what is over"
        )
    return 0


def _found(
    client: Client, phase: Phase | None, state: PlanState | None, parent: str | None, label: str | None
) -> Iterator[PlanSummary]:
    """Iterate over the matching plans, a page at a time.

    The manager filters by phase, state, parent and label. Whether a plan is over is a pair of phase and state, so the
    caller applies that filter.
    """
    cursor: str | None = None
    while True:
        page = client.plans.list_plans(
            phase=phase,
            state=state,
            parent_plan_id=parent,
            label=label,
            limit=limits.PAGE_ROWS_MAX,
            cursor=cursor,
        )
        yield from page.plans
        if page.cursor is None:
            return
        cursor = page.cursor


def _table(found: list[PlanSummary]) -> Table:
    """Return the table of plans, with labels if there are some. Ids are never folded, because they are copied into the
    next command.
    """
    has_labels = any(each.labels for each in found)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("plan", style="bold", no_wrap=True)
    table.add_column("action", overflow="fold")
    table.add_column("phase/state", no_wrap=True)
    table.add_column("attempt", justify="right")
    table.add_column("parent", no_wrap=True)
    if has_labels:
        table.add_column("labels", overflow="fold")
    for each in found:
        where = position_text(each.phase, each.state, rolled_back=each.rolled_back)
        labels = [", ".join(each.labels)] if has_labels else []
        table.add_row(each.plan_id, each.action_name, where, str(each.attempt), each.parent_plan_id or "", *labels)
    return table
