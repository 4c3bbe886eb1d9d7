"""`stepwell log since LOG [POSITION]`: print the entries of a log behind a position, all of them by default."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.output import print_json
from stepwell.cli.common.parameters import argument, json_flag, whole_number
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import ENTRY_KEYS, LogName, Project, entry_json, opened_log, print_entry

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    position: Annotated[
        int, argument("POSITION", "position of the last entry that is not wanted (default: 0)", parse=whole_number)
    ] = 0,
    project: Project,
    address: Address = None,
    json: Annotated[bool, json_flag(f"`head`, `next_position`, and `entries`, a list, each with {ENTRY_KEYS}")] = False,
) -> int:
    """Go on later with the position of the last entry that was printed."""
    with opened_log(address, project, name) as log:
        if json:
            status = log.status()
            found = [entry_json(entry) for entry in log.entries(position)]
            print_json({"head": status.head, "next_position": status.next_position, "entries": found})
            return 0
        for entry in log.entries(position):
            print_entry(entry)
    return 0
