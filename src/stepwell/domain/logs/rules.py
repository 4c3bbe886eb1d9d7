"""The rules of logs: append, read, pop, clear, retain, delete, list, and the manager's trimming.

Each write names the new state of its log in one row. Entries that it removes are dead from then on, however many they
are: it deletes a bounded number of their rows itself, and `TrimLogs` deletes the others, a step at a time. Entries
whose time is over are absent from that moment on, because every command looks at the clock; the sweep comes later.

The head changes with what callers do: append, pop, clear, and a change of retention. Expiry changes no head, because it
does not make a caller's knowledge wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.bounded_types import known_label
from stepwell.domain.checks import check, check_metadata
from stepwell.domain.logs.commands import (
    AppendToLog,
    ClearLog,
    DeleteLog,
    GetLog,
    ListLogs,
    NewEntry,
    PopFromLog,
    ReadLog,
    RetainInLog,
    TrimLogs,
)
from stepwell.domain.logs.entries import EntryRun
from stepwell.domain.logs.model import POPPED, LogEntry, LogEntryRow, LogNames, LogRow, LogStatus
from stepwell.domain.logs.replies import (
    EntriesAppended,
    EntriesFound,
    EntryPopped,
    LogFound,
    LogPage,
    LogRemoved,
    LogsTrimmed,
)
from stepwell.domain.paging import build_page
from stepwell.domain.state import State
from stepwell.domain.tiers.model import NO_METADATA, BodyRef
from stepwell.domain.verdict import AnyChange, Origin, RowChanged, Verdict, decides
from stepwell.errors import Busy, Conflict, NotFound, TierFull
from stepwell.text import plural


class _Window(Struct):
    """The live entries of a log at one moment: `run` from `start` on. `floor` is the position below which none lives.

    `floor` is also the `first_position` of every row that a command writes, so that an entry that has expired stays
    gone when the retention is made longer.
    """

    run: EntryRun
    start: int
    floor: int

    @property
    def count(self) -> int:
        return len(self.run) - self.start

    @property
    def last(self) -> LogEntryRow | None:
        return self.run[-1] if self.count else None


@decides(AppendToLog)
def append(state: State, command: AppendToLog, origin: Origin) -> Verdict:
    """Insert entries behind the last one, and delete rows of dead entries: as many as it inserts, and some more.

    With a bound on their number, the oldest die in the same step. An entry that would be dead at once is not inserted.
    """
    key = (command.project, command.name)
    log = _named_log(state, key, command.expected_head, origin)
    if log is None:
        log, before = _new_log(state, key, origin), None
    else:
        before = log
    window = _window(state, log, origin.now_ms)
    first, count = log.next_position, len(command.entries)
    floor = window.floor
    if log.keep_entries is not None and (surplus := window.count + count - log.keep_entries) > 0:
        floor = (
            window.run[window.start + surplus].position if surplus < window.count else first + surplus - window.count
        )
    given = [
        _new_row(log.serial, position, entry, state.revision + 1, origin)
        for position, entry in enumerate(command.entries, first)
    ]
    added = [row for row in given if row.position >= floor]
    dead = _dead(window.run, floor, count + limits.LOG_ROWS_PER_APPEND)
    _require_room(state, added, dead)
    after = replace(
        log,
        head=state.revision + 1,
        first_position=floor,
        last_position=first + count - 1,
        next_position=first + count,
    )
    changes: list[AnyChange] = [RowChanged(None, row) for row in added]
    changes += [RowChanged(row, None) for row in dead]
    changes.append(RowChanged(before, after))
    bodies = {
        row.digest: entry.body
        for row, entry in zip(given, command.entries, strict=True)
        if isinstance(entry.body, bytes)
    }
    reply = EntriesAppended(*key, first, first + count - 1, after.head)
    return Verdict(reply, tuple(changes), bodies=bodies)


@decides(PopFromLog)
def pop(state: State, command: PopFromLog, origin: Origin) -> Verdict:
    """Remove the last entry. Its row moves to those of popped entries, so that its body can still be read.

    Popping from a log without entries, or from one that does not exist, is a success and returns no entry.
    """
    key = (command.project, command.name)
    log = _named_log(state, key, command.expected_head, origin)
    window = _window(state, log, origin.now_ms) if log else None
    last = window.last if window else None
    if log is None or window is None or last is None:
        return Verdict(EntryPopped(*key, None, log.head if log else 0))
    before_last = window.run[-2].position if window.count > 1 else window.floor - 1
    after = replace(log, head=state.revision + 1, first_position=window.floor, last_position=before_last)
    popped = state.logs.entries.of(POPPED)
    position = popped[-1].position + 1 if popped else 1
    # The new row comes first, so that the body never has no reference.
    changes: list[AnyChange] = [
        RowChanged(None, replace(last, log=POPPED, position=position, at_ms=origin.now_ms)),
        *(RowChanged(row, None) for row in _forgotten(popped, last.size)),
        RowChanged(last, None),
        RowChanged(log, after),
    ]
    return Verdict(EntryPopped(*key, last, after.head), tuple(changes))


@decides(ClearLog)
def clear(state: State, command: ClearLog, origin: Origin) -> Verdict:
    """Remove all entries. A log that has none stays as it is, and so does its head."""
    key = (command.project, command.name)
    log = _find_log(state, key, command.expected_head, origin)
    if log is None:
        return Verdict(LogFound(LogStatus(*key)))
    window = _window(state, log, origin.now_ms)
    end = log.next_position
    if window.count:
        after = replace(log, head=state.revision + 1, first_position=end, last_position=end - 1)
    else:
        after = replace(log, first_position=window.floor)  # some may have expired
    return _replaced(window.run, log, after)


@decides(RetainInLog)
def retain(state: State, command: RetainInLog, origin: Origin) -> Verdict:
    """Set the retention of a log, which applies at once. Setting what is set changes nothing, and no head."""
    key = (command.project, command.name)
    log = _find_log(state, key, command.expected_head, origin)
    if log is None:
        created = replace(
            _new_log(state, key, origin),
            head=state.revision + 1,
            keep_entries=command.keep_entries,
            keep_ms=command.keep_ms,
        )
        return _replaced(EntryRun(), None, created)
    if (log.keep_entries, log.keep_ms) == (command.keep_entries, command.keep_ms):
        return Verdict(LogFound(_status(state, log, origin.now_ms)))
    window = _window(state, log, origin.now_ms)
    start, keep = window.start, command.keep_entries
    if command.keep_ms is not None:
        start = max(start, window.run.index_newer(origin.now_ms - command.keep_ms))
    if keep is not None:
        start = max(start, len(window.run) - keep)
    after = replace(
        log,
        head=state.revision + 1,
        first_position=max(window.floor, _floor(window.run, start, window.floor)),
        keep_entries=keep,
        keep_ms=command.keep_ms,
    )
    return _replaced(window.run, log, after)


@decides(DeleteLog)
def delete(state: State, command: DeleteLog, origin: Origin) -> Verdict:
    """Delete a log. Rows of its entries that are left have no log, and are dead for that reason."""
    key = (command.project, command.name)
    log = _find_log(state, key, command.expected_head, origin)
    if log is None:
        raise NotFound(
            f"project {command.project!r} has no log {command.name!r}", project=command.project, name=command.name
        )
    rows = state.logs.entries.of(log.serial).between(0, limits.LOG_ROWS_PER_STEP)
    return Verdict(LogRemoved(*key), (*(RowChanged(row, None) for row in rows), RowChanged(log, None)))


@decides(ReadLog)
def read(state: State, command: ReadLog, origin: Origin) -> Verdict:
    """Return a page of entries: the first ones behind a position, or the last ones.

    The page ends early, on the side away from where it begins, if the bodies or the rows become too large. It has at
    least one entry if there is any.
    """
    key = (command.project, command.name)
    log = _find_log(state, key, None, origin)
    if log is None:
        return Verdict(EntriesFound((), 0, 1, 1, 0, more=False))
    window = _window(state, log, origin.now_ms)
    run, start, end = window.run, window.start, len(window.run)
    if command.before is not None:
        end = max(start, run.index_of(command.before))
    if command.after is not None:
        start = min(max(start, run.index_of(command.after + 1)), end)
        rows = run.between(start, min(end, start + command.limit))
        page = rows[: _fitting(rows)]
    else:
        rows = run.between(max(start, end - command.limit), end)[::-1]
        page = rows[: _fitting(rows)][::-1]
    more = len(page) < end - start
    return Verdict(EntriesFound(tuple(page), log.head, window.floor, log.next_position, log.serial, more=more))


@decides(GetLog)
def get(state: State, command: GetLog, origin: Origin) -> Verdict:
    """Return the status of a log, whether it exists or not."""
    key = (command.project, command.name)
    log = _find_log(state, key, None, origin)
    return Verdict(LogFound(_status(state, log, origin.now_ms) if log else LogStatus(*key)))


@decides(ListLogs)
def list_logs(state: State, command: ListLogs, origin: Origin) -> Verdict:
    """Return a page of a project's logs, by name."""
    origin.require((command.project,))
    logs, cursor = build_page(
        state.logs.after(command.project, command.cursor or ""), command.limit, lambda log: log.name
    )
    return Verdict(LogPage(tuple(_status(state, log, origin.now_ms) for log in logs), cursor))


@decides(TrimLogs)
def trim(state: State, _command: TrimLogs, origin: Origin) -> Verdict:
    """Delete the rows of entries that are dead or have expired, those of the logs that are due first.

    A log whose entries have expired gets a new `first_position`, so that a reader can tell that there were some.
    """
    logs, changes = state.logs, list[AnyChange]()
    room = limits.LOG_ROWS_PER_STEP
    for due_ms, serial in logs.due:
        if due_ms > origin.now_ms or room <= 0:
            break
        run, log = logs.entries.of(serial), logs.by_serial.get(serial)
        if log is not None:
            window = _window(state, log, origin.now_ms)
            dead = run.between(0, min(window.start, room))
            changes += [RowChanged(row, None) for row in dead]
            if window.floor != log.first_position:
                changes.append(RowChanged(log, replace(log, first_position=window.floor)))
        else:
            count = len(run) if serial != POPPED else run.index_newer(origin.now_ms - limits.LOG_POPPED_MS)
            dead = run.between(0, min(count, room))
            changes += [RowChanged(row, None) for row in dead]
        room -= max(1, len(dead))
    return Verdict(LogsTrimmed(len(changes), more=room <= 0), tuple(changes))


def _named_log(state: State, key: tuple[str, str], expected: int | None, origin: Origin) -> LogRow | None:
    """Return a log whose names were not matched with their patterns yet. A name that exists is valid."""
    if state.logs.get(key) is None:
        check(LogNames(*key))
    return _find_log(state, key, expected, origin)


def _find_log(state: State, key: tuple[str, str], expected: int | None, origin: Origin) -> LogRow | None:
    """Return a log, or None. Raise `OutOfScope`, or `Conflict` if the caller expects another head.

    A log that does not exist has head 0.
    """
    origin.require((key[0],))
    log = state.logs.get(key)
    actual = log.head if log else 0
    if expected is not None and expected != actual:
        raise Conflict(
            f"log {key[1]!r} has head {actual}, not {expected}: read it again and decide anew",
            expected=expected,
            actual=actual,
        )
    return log


def _new_log(state: State, key: tuple[str, str], origin: Origin) -> LogRow:
    """Return the row of a log without entries. Raise `TierFull` if there are too many logs."""
    if len(state.logs) >= limits.LOGS_MAX:
        raise TierFull(f"there are {limits.LOGS_MAX} logs already: delete some", limit=limits.LOGS_MAX)
    serial = state.logs.serial_at(state.revision + 1)
    return LogRow(
        *key,
        serial=serial,
        head=0,
        first_position=1,
        last_position=0,
        next_position=1,
        created_at_ms=origin.now_ms,
    )


def _window(state: State, log: LogRow, now_ms: int) -> _Window:
    """Return the live entries of a log."""
    run = state.logs.entries.of(log.serial)
    start = state.logs.live_from(log, now_ms)
    return _Window(run, start, max(log.first_position, _floor(run, start, log.first_position)))


def _floor(run: EntryRun, start: int, floor: int) -> int:
    """Return the position behind the entry before an index, or `floor` if there is none."""
    return run[start - 1].position + 1 if start else floor


def _new_row(serial: int, position: int, entry: NewEntry, revision: int, origin: Origin) -> LogEntryRow:
    """Return the row of an entry. Raise `InvalidArgument` for a malformed kind, large metadata or an unknown upload."""
    digest, size = origin.resolve_body(entry.body)
    kind = known_label(entry.kind)
    if kind is None:
        check(LogEntry(b"", entry.kind))
    if entry.metadata:
        check_metadata(entry.metadata)
    metadata = entry.metadata or NO_METADATA
    return LogEntryRow(serial, position, digest, size, origin.now_ms, revision, kind or entry.kind, metadata)


def _require_room(state: State, added: Sequence[LogEntryRow], dead: Sequence[LogEntryRow]) -> None:
    """Raise `TierFull` if there is no room for entries or their bodies, or `Busy` while dead ones are being deleted."""
    try:
        _require_rows(len(state.logs.entries) + len(added) - len(dead))
        leaving = [body for row in dead for body in row.held]
        arriving: list[BodyRef] = [body for row in added for body in row.held]
        state.bodies.require_room(arriving, state.budget.bodies_bytes, leaving)
    except TierFull as error:
        if state.logs.has_dead:
            raise Busy("removed entries are being deleted, which makes room: try again in a moment") from error
        raise


def _require_rows(count: int) -> None:
    """Raise `TierFull` if logs would have too many rows of entries."""
    if count > limits.LOG_ENTRIES_MAX:
        raise TierFull(
            f"all logs together have {plural(limits.LOG_ENTRIES_MAX, 'entry', 'entries')} at most: clear or delete "
            "some, or let them retain fewer",
            limit=limits.LOG_ENTRIES_MAX,
        )


def _dead(run: EntryRun, floor: int, count_max: int) -> list[LogEntryRow]:
    """Return the oldest rows below a position, at most so many."""
    return run.between(0, min(run.index_of(floor), count_max))


def _forgotten(popped: EntryRun, size: int) -> list[LogEntryRow]:
    """Return the popped entries that make room for one more with so many bytes, the oldest first."""
    count, left = 0, popped.bytes_from(0) + size
    while count < len(popped) and (len(popped) - count >= limits.LOG_POPPED_MAX or left > limits.LOG_POPPED_BYTES):
        left -= popped[count].size
        count += 1
    return popped.between(0, count)


def _replaced(run: EntryRun, before: LogRow | None, after: LogRow) -> Verdict:
    """Return the verdict that replaces the row of a log, with the deletion of some rows that it makes dead."""
    if before == after:
        return Verdict(LogFound(_status_of(after, run, run.index_of(after.first_position))))
    dead = _dead(run, after.first_position, limits.LOG_ROWS_PER_STEP)
    reply = LogFound(_status_of(after, run, run.index_of(after.first_position)))
    return Verdict(reply, (*(RowChanged(row, None) for row in dead), RowChanged(before, after)))


def _status(state: State, log: LogRow, now_ms: int) -> LogStatus:
    """Return the status of a log at a time."""
    window = _window(state, log, now_ms)
    return _status_of(replace(log, first_position=window.floor), window.run, window.start)


def _status_of(log: LogRow, run: EntryRun, start: int) -> LogStatus:
    """Return the status of a log whose live entries begin at an index."""
    return LogStatus(
        log.project,
        log.name,
        log.head,
        log.first_position,
        log.next_position,
        len(run) - start,
        run.bytes_from(start),
        log.keep_entries,
        log.keep_ms,
        log.created_at_ms,
        log.serial,
    )


def _fitting(rows: Sequence[LogEntryRow]) -> int:
    """Return how many of the rows fit into one page, at least one if there is one."""
    bodies = page = 0
    for count, row in enumerate(rows):
        bodies += row.size
        page += limits.LOG_ROW_BYTES + sum(4 * (len(key) + len(text)) for key, text in row.metadata.items())
        if count and (bodies > limits.LOG_PAGE_BYTES or page > limits.REPLY_BYTES_MAX):
            return count
    return len(rows)
