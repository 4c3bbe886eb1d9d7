"""`stepwell log clear LOG`: remove all entries of a log. Positions go on behind them."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import ExpectedHead, LogName, Project, opened_log

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    project: Project,
    expected_head: ExpectedHead = None,
    address: Address = None,
    json: Annotated[bool, json_flag("`log`, with the fields of `stepwell.types.LogStatus` by name")] = False,
) -> int:
    """It takes the same time for ten entries and for a million."""
    with opened_log(address, project, name) as log:
        status = log.clear(expected_head=expected_head)
    if json:
        print_json({"log": to_json_value(status)})
    else:
        print_result(f"log {name!r} has no entries; the next one gets position {status.next_position}")
    return 0
