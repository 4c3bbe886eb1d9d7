"""`stepwell log list`: list the logs of a project with their positions and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import Project
from stepwell.client.client import Client, connect
from stepwell.domain.logs.model import LogStatus

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    project: Project,
    address: Address = None,
    json: Annotated[
        bool, json_flag("`logs`, a list, each with the fields of `stepwell.types.LogStatus` by name")
    ] = False,
) -> int:
    """If there are none, a line on stderr says how to make one."""
    with connect(resolve_address(address), [project]) as client:
        found = [*_found(client)]
    if json:
        print_json({"logs": to_json_value(found)})
    elif found:
        result_console().print(_table(found))
    else:
        print_error(
            f"project {project!r} has no logs: make one with `stepwell log append LOG TEXT --project {project}`"
        )
    return 0


def _found(client: Client) -> Iterator[LogStatus]:
    """Iterate over the logs, a page at a time."""
    cursor: str | None = None
    while True:
        page = client.logs.list(limit=limits.PAGE_ROWS_MAX, cursor=cursor)
        yield from page.logs
        if page.cursor is None:
            return
        cursor = page.cursor


def _table(found: list[LogStatus]) -> Table:
    """Return the table of logs."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("log", style="bold", overflow="fold")
    for heading in ("entries", "bytes", "positions", "retains"):
        table.add_column(heading, justify="right")
    for each in found:
        positions = f"{each.first_position} to {each.next_position - 1}" if each.entries else "none"
        table.add_row(each.name, f"{each.entries:,}", f"{each.bytes:,}", positions, _retention(each))
    return table


def _retention(log: LogStatus) -> str:
    """Return what a log retains, in a few words."""
    age = "" if log.keep_ms is None else f"{log.keep_ms / 1000:,g} s"
    number = "" if log.keep_entries is None else f"{log.keep_entries:,}"
    return ", ".join(filter(None, (number, age))) or "all"
