"""Bugs of logs: positions, heads, popped bodies and trimming."""

from __future__ import annotations

from contextlib import AbstractContextManager

from stepwell.client.api.log_entries import LogListing
from stepwell.client.api.log_watch import LogCursor
from stepwell.domain.logs import rules as log_rules
from stepwell.domain.logs.entries import EntryRun
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from tests.simulator.bugs.registry import bug, patched


@bug("A write to a log with an expected head does not compare it.")
def expected_head_ignored() -> AbstractContextManager[None]:
    find_log = log_rules._find_log

    def find_any(state: State, key: tuple[str, str], _expected: int | None, origin: Origin) -> LogRow | None:
        return find_log(state, key, None, origin)

    return patched((log_rules, "_find_log", find_any))


@bug("A trimming of a log deletes the row of one entry that is not dead.")
def live_entry_trimmed() -> AbstractContextManager[None]:
    def dead(run: EntryRun, floor: int, count_max: int) -> list[LogEntryRow]:
        count = run.index_of(floor)
        return run.between(0, min(count + bool(count), count_max))

    return patched((log_rules, "_dead", dead))


@bug("A watch of a log reads on behind the number of entries that it has read, and not behind the last position.")
def watch_counts_entries() -> AbstractContextManager[None]:
    add = LogCursor.add

    def count(self: LogCursor, page: LogListing) -> None:
        before = self.after
        add(self, page)
        if page.entries:
            self.after = before + len(page.entries)

    return patched((LogCursor, "add", count))
