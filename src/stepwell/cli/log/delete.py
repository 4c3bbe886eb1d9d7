"""`stepwell log delete LOG`: delete a log with its entries and its retention."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
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
    json: Annotated[bool, json_flag("`deleted`, the name of the log")] = False,
) -> int:
    """A later log of that name begins at position 1."""
    with opened_log(address, project, name) as log:
        log.delete(expected_head=expected_head)
    if json:
        print_json({"deleted": name})
    else:
        print_result(f"deleted log {name!r}")
    return 0
