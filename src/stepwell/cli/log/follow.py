"""`stepwell log follow LOG`: print each entry of a log as it is appended, until Ctrl-C.

Entries that were removed before they could be printed are reported on stderr, and the command goes on behind them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.output import print_error, print_json
from stepwell.cli.common.parameters import flag, option, whole_number
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import ENTRY_KEYS, LogName, Project, entry_json, opened_log, print_entry
from stepwell.errors import EntriesMissed

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    project: Project,
    since: Annotated[
        int | None,
        option(
            "--since",
            metavar="POSITION",
            about="begin behind it; 0 is the beginning of the log (default: with the next entry)",
            parse=whole_number,
        ),
    ] = None,
    count: Annotated[
        int | None, option("--count", "-n", metavar="N", about="end after so many entries", parse=whole_number)
    ] = None,
    address: Address = None,
    json: Annotated[bool, flag("--json", f"a JSON object on a line for each entry, with {ENTRY_KEYS}")] = False,
) -> int:
    """The log need not exist yet."""
    with opened_log(address, project, name) as log, log.watch(since) as watch:
        printed = 0
        while count is None or printed < count:
            try:
                entry = watch.get()
            except EntriesMissed as missed:
                print_error(missed.message)
                continue
            if entry is None:
                break
            if json:
                print_json(entry_json(entry))
            else:
                print_entry(entry)
            sys.stdout.flush()
            printed += 1
    return 0
