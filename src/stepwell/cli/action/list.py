"""`stepwell action list`: print one line for each action, with its name, its state and how many plans have used it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import EXIT_CODES, reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.client.client import Client, connect
from stepwell.domain.replies import ActionSummary

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    address: Address = None,
    json: Annotated[bool, json_flag("`actions`, a list, each with `name`, `state`, `reusable` and `uses`")] = False,
) -> int:
    """If there are none, a line on stderr says how to make one."""
    with connect(resolve_address(address)) as client:
        found = [*_found(client)]
    if json:
        print_json({"actions": to_json_value(found)})
    elif found:
        result_console().print(_table(found))
    else:
        print_error("there are no actions: make one with `stepwell action create NAME`")
    return 0


def _found(client: Client) -> Iterator[ActionSummary]:
    """Iterate over all actions, a page at a time."""
    cursor: str | None = None
    while True:
        page = client.plans.list_actions(limit=limits.PAGE_ROWS_MAX, cursor=cursor)
        yield from page.actions
        if page.cursor is None:
            return
        cursor = page.cursor


def _table(found: list[ActionSummary]) -> Table:
    """Return the table of actions. An action for one plan only is marked with "once"."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("action", style="bold", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("plans", justify="right")
    for each in found:
        state = str(each.state) if each.reusable else f"{each.state}, once"
        table.add_row(each.name, state, f"{each.uses:,}")
    return table
