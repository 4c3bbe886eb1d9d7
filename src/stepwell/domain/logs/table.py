"""The tables of logs and of their entries, and the order in which rows of entries are due to be deleted.

Both tables share one index: each log with rows to delete, now (they are dead) or at a known time (they expire). So the
manager finds what is due without looking at the other logs.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict, SortedList

from stepwell import limits
from stepwell.domain.logs.entries import EntryRun
from stepwell.domain.logs.model import POPPED, LogEntryRow, LogRow
from stepwell.domain.tables import Table


class LogTable(Table[LogRow]):
    """Logs by project and name, and by serial. Owned by the `State`, as are the `entries` in it."""

    def __init__(self) -> None:
        super().__init__()
        self.order: SortedList[tuple[str, str]] = SortedList()  # the keys of `rows`
        self.by_serial: SortedDict[int, LogRow] = SortedDict()
        self.entries = LogEntryTable(self)
        self.due: SortedList[tuple[int, int]] = SortedList()  # time and serial; 0: it has dead entries
        self._due_of: dict[int, int] = {}

    def serial_at(self, revision: int) -> int:
        """Return the serial of a log that is created at a revision: one that no log and no row of an entry has."""
        latest = [table.peekitem()[0] for table in (self.by_serial, self.entries.by_log) if table]
        return max(revision, *(serial + 1 for serial in latest)) if latest else revision

    def swap(self, before: LogRow | None, after: LogRow | None) -> None:
        """Replace a log by its successor, insert it or delete it. A log keeps its serial."""
        super().swap(before, after)
        if before is None and after is not None:
            self.order.add(after.key)
        elif after is None and before is not None:
            self.order.remove(before.key)
            del self.by_serial[before.serial]
            self.refile(before.serial)
        if after is not None:
            self.by_serial[after.serial] = after
            self.refile(after.serial)

    def after(self, project: str, name: str) -> Iterator[LogRow]:
        """Iterate over the logs of a project with a larger name."""
        for key in self.order.irange((project, name), inclusive=(False, True)):
            if key[0] != project:
                return
            yield self.rows[key]

    def live_from(self, log: LogRow, now_ms: int) -> int:
        """Return the index of the first entry of a log that is neither dead nor expired."""
        run = self.entries.of(log.serial)
        index = run.index_of(log.first_position)
        return index if log.keep_ms is None else max(index, run.index_newer(now_ms - log.keep_ms))

    @property
    def has_dead(self) -> bool:
        """True if a row of a dead entry is to be deleted."""
        return bool(self.due) and self.due[0][0] == 0

    def refile(self, serial: int) -> None:
        """Update the index of what is due, after the log or its oldest row has changed."""
        due_ms, was_ms = self.due_ms(serial), self._due_of.get(serial)
        if due_ms == was_ms:
            return
        if was_ms is not None:
            self.due.remove((was_ms, serial))
            del self._due_of[serial]
        if due_ms is not None:
            self.due.add((due_ms, serial))
            self._due_of[serial] = due_ms

    def due_ms(self, serial: int) -> int | None:
        """Return the time at which the oldest row of a log is to be deleted; 0 for a dead one, None for never."""
        run = self.entries.by_log.get(serial)
        if run is None:
            return None
        oldest = run[0]
        if serial == POPPED:
            return oldest.at_ms + limits.LOG_POPPED_MS
        log = self.by_serial.get(serial)
        if log is None or oldest.position < log.first_position:
            return 0
        return None if log.keep_ms is None else oldest.at_ms + log.keep_ms


class LogEntryTable:
    """The entries of each log, by its serial: inserted and deleted at the ends of a log, and never replaced."""

    def __init__(self, logs: LogTable) -> None:
        self._logs = logs
        self._count = 0
        self.by_log: SortedDict[int, EntryRun] = SortedDict()

    def __len__(self) -> int:
        """Return the number of all rows, those of dead and popped entries included."""
        return self._count

    def of(self, serial: int) -> EntryRun:
        """Return the entries of a log, which may be none. The caller must not change them."""
        return self.by_log.get(serial) or EntryRun()

    def swap(self, before: LogEntryRow | None, after: LogEntryRow | None) -> None:
        """Insert `after`, or delete `before`."""
        if after is not None:
            run = self.by_log.get(after.log)
            if run is None:
                run = self.by_log[after.log] = EntryRun()
            run.insert(after)
            self._count += 1
            if run[0] is after:
                self._logs.refile(after.log)
        elif before is not None:
            run = self.by_log[before.log]
            is_oldest = run[0].position == before.position
            run.remove(before)
            self._count -= 1
            if not run:
                del self.by_log[before.log]
            if is_oldest:
                self._logs.refile(before.log)

    def unswap(self, before: LogEntryRow | None, after: LogEntryRow | None) -> None:
        """Undo `swap(before, after)`."""
        self.swap(after, before)
