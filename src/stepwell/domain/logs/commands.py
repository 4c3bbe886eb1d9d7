"""The commands on logs. `rules` decides them.

The names in `AppendToLog` and `PopFromLog` are only bounded in length by their types, because matching the patterns
takes longer than decoding the rest, and the names of a log that exists are valid.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from stepwell import limits
from stepwell.domain.bounded_types import (
    Body,
    Cursor,
    FragmentId,
    Metadata,
    PageLimit,
    Positive,
    ProjectName,
    Revision,
    UncheckedId,
    UncheckedLabel,
    UncheckedProject,
    UploadNumber,
)
from stepwell.domain.command_roots import Internal, Read, Write
from stepwell.domain.logs import replies
from stepwell.domain.logs.model import Position


class NewEntry(Struct, frozen=True, array_like=True, gc=False):
    """One entry of an append: its body, or the number under which the body was uploaded."""

    body: Body | UploadNumber
    kind: UncheckedLabel = "text"
    metadata: Metadata = field(default_factory=dict[str, str])


class AppendToLog(Write[replies.EntriesAppended], frozen=True):
    """Append entries to a log, in order and at one revision. The first append creates the log.

    With `expected_head` the append is refused with `Conflict` unless the log has that head; 0 means "must not exist".
    """

    project: UncheckedProject
    name: UncheckedId
    entries: Annotated[
        tuple[NewEntry, ...],
        Meta(
            min_length=1, max_length=limits.LOG_APPENDED_MAX, description="append 1 to 256 entries at a time, or extend"
        ),
    ]
    expected_head: Revision | None = None

    @property
    def inline(self) -> tuple[int, ...]:
        """The lengths of the bodies inside the command."""
        return tuple([len(entry.body) for entry in self.entries if isinstance(entry.body, bytes)])


class PopFromLog(Write[replies.EntryPopped], frozen=True):
    """Remove the last entry of a log and return it. Its body stays readable for a minute."""

    project: UncheckedProject
    name: UncheckedId
    expected_head: Revision | None = None


class ClearLog(Write[replies.LogFound], frozen=True):
    """Remove all entries of a log. Positions go on behind them."""

    project: ProjectName
    name: FragmentId
    expected_head: Revision | None = None


class RetainInLog(Write[replies.LogFound], frozen=True):
    """Set how many entries a log retains, and for how long; None is unlimited. It creates a log that does not exist."""

    project: ProjectName
    name: FragmentId
    keep_entries: Positive | None = None
    keep_ms: Positive | None = None
    expected_head: Revision | None = None


class DeleteLog(Write[replies.LogRemoved], frozen=True):
    """Delete a log with its entries and its retention. A later log of that name begins at position 1."""

    project: ProjectName
    name: FragmentId
    expected_head: Revision | None = None


class ReadLog(Read[replies.EntriesFound], frozen=True):
    """Read a page of entries with their bodies, in order.

    With `after` it has the first entries behind that position; otherwise the last ones, before `before` if that is
    given.
    """

    project: ProjectName
    name: FragmentId
    after: Position | None = None
    before: Position | None = None
    limit: PageLimit = 100


class GetLog(Read[replies.LogFound], frozen=True):
    """Return the status of a log; that of one which does not exist has head 0."""

    project: ProjectName
    name: FragmentId


class ListLogs(Read[replies.LogPage], frozen=True):
    """List the logs of a project by name."""

    project: ProjectName
    limit: PageLimit = 100
    cursor: Cursor | None = None


class TrimLogs(Internal[replies.LogsTrimmed], frozen=True):
    """Mark the entries that have expired, and delete the rows of dead entries, a bounded number. The manager sends
    it.
    """


LogRead = ReadLog | GetLog | ListLogs
LogWrite = AppendToLog | PopFromLog | ClearLog | RetainInLog | DeleteLog
