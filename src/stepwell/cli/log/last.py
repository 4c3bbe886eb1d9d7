"""`stepwell log last LOG`: print the last entries of a log, oldest first."""

from __future__ import annotations

from typing import Annotated, Final

from stepwell.cli.common.addresses import Address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.error_report import reports_errors
from stepwell.cli.common.output import print_json
from stepwell.cli.common.parameters import json_flag, option, whole_number
from stepwell.cli.log.exit_codes import EXIT_CODES
from stepwell.cli.log.options import ENTRY_KEYS, LogName, Project, entry_json, opened_log, print_entry
from stepwell.client.api.log_entries import LogListing, StoredLogEntry
from stepwell.client.api.logs import Log

app: Final = command_app()


@app.command(cls=ShellCommand, epilog=EXIT_CODES)
@reports_errors
def run(
    *,
    name: LogName,
    project: Project,
    count: Annotated[
        int, option("--count", "-n", metavar="N", about="number of entries, at most 1,000", parse=whole_number)
    ] = 10,
    address: Address = None,
    json: Annotated[bool, json_flag(f"`head`, `next_position`, and `entries`, a list, each with {ENTRY_KEYS}")] = False,
) -> int:
    """A log that does not exist has no entries, and head 0."""
    with opened_log(address, project, name) as log:
        page = log.last(count)
        entries = [*_before(log, page, count - len(page)), *page] if page.more else [*page]
        if json:
            found = [entry_json(entry) for entry in entries]
            print_json({"head": page.head, "next_position": page.next_position, "entries": found})
            return 0
        for entry in entries:
            print_entry(entry)
    return 0


def _before(log: Log, page: LogListing, count: int) -> list[StoredLogEntry]:
    """Return so many entries before those of a page that ended early, because bodies are large."""
    found: list[StoredLogEntry] = []
    while count > 0 and page.more:
        page = log.last(count, before=page[0].position)
        found[:0] = page.entries
        count -= len(page)
    return found
