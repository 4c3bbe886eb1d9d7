"""The replies to the commands on logs."""

from __future__ import annotations

from stepwell.domain.logs.model import LogEntryRow, LogStatus
from stepwell.domain.reply_roots import Page, Reply


class EntriesAppended(Reply, frozen=True):
    """The positions that an append has got, from the first to the last without gaps, and the new head of the log."""

    project: str
    name: str
    first_position: int
    last_position: int
    head: int

    @property
    def positions(self) -> range:
        """The positions of the entries, in order."""
        return range(self.first_position, self.last_position + 1)


class EntryPopped(Reply, frozen=True):
    """The entry that was removed, or None if the log had none; and the head of the log."""

    project: str
    name: str
    entry: LogEntryRow | None
    head: int

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return () if self.entry is None else (self.entry.digest,)


class EntriesFound(Reply, frozen=True):
    """Entries of a log in order, and the log at that moment.

    No entry below `first_position` is there any more. `more` says that there are further ones, in the direction in
    which the page was read. `serial` is 0 for a log that does not exist.
    """

    entries: tuple[LogEntryRow, ...]
    head: int
    first_position: int
    next_position: int
    serial: int
    more: bool

    @property
    def body_digests(self) -> tuple[bytes, ...]:
        return tuple([entry.digest for entry in self.entries])


class LogFound(Reply, frozen=True):
    """The status of a log after it was read, cleared or given a retention."""

    log: LogStatus


class LogRemoved(Reply, frozen=True):
    """The log that was deleted."""

    project: str
    name: str


class LogPage(Page[LogStatus], frozen=True):
    """The logs of a project in order of name."""

    logs: tuple[LogStatus, ...]
    cursor: str | None


class LogsTrimmed(Reply, frozen=True):
    """The number of rows that trimming changed. `more` says that another call would change more."""

    count: int
    more: bool = False
