"""Watches of one log: iterators over its entries from a position on, each once, without gaps.

Events only say that there is something to read: entries are read by position. So it does no harm if events are lost, or
a connection breaks: the next read continues where the last one ended. `LogCursor` holds the position and does no I/O;
the asynchronous watch of `stepwell.aio` uses it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from stepwell.client.api.log_entries import LogListing, StoredLogEntry
from stepwell.client.api.watch import Watches
from stepwell.domain.checks import require_instance
from stepwell.domain.events import AboutLog, AnyEvent
from stepwell.domain.logs.model import LogStatus
from stepwell.errors import EntriesMissed, EventsMissed, InvalidArgument


class LogCursor:
    """The position of a watch: entries that were read and not returned yet, and where to read on.

    `is_behind` says that there may be entries to read. One thread or task uses it at a time.
    """

    def __init__(self, project: str, name: str, since: int | None) -> None:
        require_instance(since, (int, type(None)), "since is a position")
        if since is not None and since < 0:
            raise InvalidArgument("since is the position behind which to begin: 0 for the beginning")
        self._log = (project, name)
        self._entries: deque[StoredLogEntry] = deque()
        self._since = since
        self._serial: int = 0  # of the log that is read; 0 while there is none
        self._is_told = since == 0  # a reader that begins at 0 has missed nothing
        self.after = since or 0  # all entries up to it were read
        self.position = since or 0  # the position to resume from: all entries up to it were returned
        self.is_behind = True

    def begin(self, status: LogStatus) -> None:
        """Begin, without a position behind the present end. Raise `InvalidArgument` for a position that is none yet."""
        if self._since is None:
            self.after = self.position = status.next_position - 1
        elif self._since >= status.next_position:
            raise InvalidArgument(
                f"since={self._since} is no position of log {self._log[1]!r}, whose next one is "
                f"{status.next_position}: it was begun anew"
            )
        self._serial = status.serial

    def pop(self) -> StoredLogEntry | None:
        """Return the next entry; None if another page has to be read first."""
        if not self._entries:
            return None
        entry = self._entries.popleft()
        self.position = entry.position
        return entry

    def add(self, page: LogListing) -> None:
        """Add a page that was read behind `after`. Raise `EntriesMissed` for a gap, and continue behind the gap."""
        if page.serial != self._serial and self._serial:
            self._begin_anew(page)
            return
        self._serial = page.serial
        missed_from = self.after + 1
        self.is_behind = page.more
        if page.entries:
            self._entries.extend(page.entries)
            self.after = page.entries[-1].position
        if missed_from < page.first_position:
            self.after = max(self.after, page.first_position - 1)
            if not self._is_told:
                raise self._missed(f"entries {missed_from} to {page.first_position - 1}", page.first_position - 1)
        self._is_told = False

    def note(self, event: AnyEvent) -> None:
        """Note that there may be more to read, if an event is about this log."""
        if isinstance(event, AboutLog) and (event.project, event.name) == self._log:
            self.is_behind = True

    def _begin_anew(self, page: LogListing) -> None:
        """Go on with the log that has taken the place of a deleted one, and raise `EntriesMissed`."""
        if not page.serial:  # it is deleted, and not begun anew yet
            self.is_behind = False
            return
        self._serial, self.after, self.is_behind = page.serial, 0, True
        raise self._missed("the log was deleted and begun anew: the last entries", 0)

    def _missed(self, what: str, resume: int) -> EntriesMissed:
        self.position = resume
        return EntriesMissed(
            f"{what} of log {self._log[1]!r} were removed before they were read: the watch goes on behind position "
            f"{resume}",
            project=self._log[0],
            name=self._log[1],
            resume=resume,
        )


class LogWatch:
    """An iterator over the entries of a log. `for entry in log.watch(): …` goes on until `close()`.

    One thread iterates; any thread may close it. A broken connection is restored, and no entry is lost or repeated.
    `EntriesMissed` is raised where entries were removed before they were read; iterating again continues behind them.
    """

    def __init__(
        self,
        key: tuple[str, str],
        read: Callable[[int], LogListing],
        read_status: Callable[[], LogStatus],
        watches: Watches,
        since: int | None,
    ) -> None:
        """Watch the log with this project and name, which `read` reads behind a position."""
        self._name = key[1]
        self._read, self._read_status = read, read_status
        self._monotonic = watches.monotonic
        self._cursor = LogCursor(*key, since)
        # The events begin before the first read, so that an entry that is appended in between is not overlooked.
        self._events = watches.open(None, key[:1])
        try:
            self._cursor.begin(read_status())
        except BaseException:
            self.close()
            raise

    @property
    def position(self) -> int:
        """The position to resume from, as `since`: all entries up to it were returned."""
        return self._cursor.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StoredLogEntry:
        entry = self.get()
        if entry is None:
            raise StopIteration
        return entry

    def get(self, timeout_s: float | None = None) -> StoredLogEntry | None:
        """Return the next entry; None if none arrives in time, or the watch is closed."""
        until_s = None if timeout_s is None else self._monotonic() + timeout_s
        cursor = self._cursor
        while not self._events.is_closed:
            if (entry := cursor.pop()) is not None:
                return entry
            if cursor.is_behind:
                cursor.add(self._read(cursor.after))
                continue
            try:
                event = self._events.get(None if until_s is None else max(0.0, until_s - self._monotonic()))
            except EventsMissed:
                cursor.is_behind = True
                continue
            if event is None:
                return None
            cursor.note(event)
        return None

    def close(self) -> None:
        """End the watch. A thread that waits for an entry returns without one."""
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<stepwell.LogWatch of {self._name!r} at position {self.position}>"
