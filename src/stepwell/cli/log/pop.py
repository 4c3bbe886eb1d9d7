"""`stepwell log pop LOG`: remove the last entry of a log and print it. No other process gets it."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import json_flag
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import (
    ENTRY_KEYS,
    ExpectedHead,
    LogName,
    Project,
    entry_json,
    opened_log,
    print_entry,
)

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    project: Project,
    expected_head: ExpectedHead = None,
    address: Address = None,
    json: Annotated[bool, json_flag(f"`entry`, null or an object with {ENTRY_KEYS}")] = False,
) -> int:
    """If the log has no entry, a line on stderr says so, and the exit code is 0."""
    with opened_log(address, project, name) as log:
        entry = log.pop(expected_head=expected_head)
        if json:
            print_json({"entry": None if entry is None else entry_json(entry)})
        elif entry is not None:
            print_entry(entry)
        else:
            print_error(f"log {name!r} has no entry")
    return 0
