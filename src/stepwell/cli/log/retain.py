"""`stepwell log retain LOG`: set how many entries a log retains, and for how long. It applies at once."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.json_values import to_json_value
from stepwell.cli.common.output import print_json, print_result
from stepwell.cli.common.parameters import decimal_number, json_flag, option, whole_number
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import ExpectedHead, LogName, Project, opened_log
from stepwell.text import plural

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    project: Project,
    entries: Annotated[
        int | None,
        option("--entries", metavar="N", about="number of entries (default: unlimited)", parse=whole_number),
    ] = None,
    seconds: Annotated[
        float | None,
        option("--seconds", metavar="S", about="age of entries (default: unlimited)", parse=decimal_number),
    ] = None,
    expected_head: ExpectedHead = None,
    address: Address = None,
    json: Annotated[bool, json_flag("`log`, with the fields of `stepwell.types.LogStatus` by name")] = False,
) -> int:
    """Without --entries and --seconds the log retains everything. A log that does not exist is created."""
    with opened_log(address, project, name) as log:
        age_ms = None if seconds is None else int(seconds * 1000)
        status = log.retain(entries, age_ms=age_ms, expected_head=expected_head)
    if json:
        print_json({"log": to_json_value(status)})
    else:
        print_result(f"log {name!r} has {plural(status.entries, 'entry', 'entries')}")
    return 0
