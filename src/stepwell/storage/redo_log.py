"""The redo log: the changes of a turn as one row, until the tables have them.

A commit that wrote each row into its table would change a page or more of each of them, and flush these pages. So a
turn appends one record here, in the same database, and the tables follow in slices: when the manager is idle, after
some seconds, when the log exceeds its bound, and at the end. Bodies are not in the log, because their bytes would be
written twice: a turn writes them to their own table, in the same transaction. A fragment can also become cold only when
its body is in the table, because clients read it there.

    redo_log    number (of the commit), revision, record, checksum

A record is the row of the table `store` after the turn, and a list of changes: each the name of a statement in
`STATEMENTS`, and its rows. In the tables the rows get checksums of their own. The numbers have no gaps and begin
behind the number of commits that the table `store` says, so that a missing record is noticed. A slice moves the oldest
records into the tables and deletes them, in one transaction. The tables are therefore always the state of an earlier
commit, as a whole; only replies that have reached their callers meanwhile are left out.

Everything that reads the tables applies the log first: a manager that starts and a backup in their own transaction,
readers that must not write on a `log_view`. A manager of a later version applies it before it migrates the tables. So
the names and the columns of a statement are never changed: a migration adds columns behind the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from stepwell import limits
from stepwell.errors import StoreDamaged
from stepwell.storage import rows
from stepwell.storage.rows import StoreRow
from stepwell.storage.sql import Database
from stepwell.storage.table import CheckedTable, Value, Values

LOGGED: Final[tuple[CheckedTable, ...]] = (
    rows.BUDGET,
    rows.FRAGMENTS,
    rows.ACTIONS,
    rows.PLANS,
    rows.LEASES,
    rows.DECISIONS,
    rows.CONTEXTS,
    rows.CHANGESETS,
    rows.ENTRIES,
    rows.RECEIPTS,
    rows.POOLS,
    rows.LOGS,
    rows.LOG_ENTRIES,
    rows.TICKETS,
    rows.SESSIONS,
    rows.REPLIES,
    rows.REPLY_PARTS,
    rows.EVENTS,
)
"""The tables that follow the log, besides `store`."""

STATEMENTS: Final = {
    **{f"{table.name}.put": table.put for table in LOGGED},
    **{f"{table.name}.delete": table.delete for table in LOGGED},
    "fragments.delete": rows.DELETE_FRAGMENT,
    "replies.end": "DELETE FROM replies WHERE session_id = ?",
    "replies.cut": "DELETE FROM replies WHERE session_id = ? AND request_id < ?",
    "reply_parts.end": "DELETE FROM reply_parts WHERE session_id = ?",
    "reply_parts.cut": "DELETE FROM reply_parts WHERE session_id = ? AND request_id < ?",
    "reply_parts.complete": "DELETE FROM reply_parts WHERE session_id = ? AND request_id = ?",
}
"""The statements of the changes, by table and purpose. The names are in the records: they are never renamed."""

Change = tuple[str, Sequence[Values]]
"""The name of a statement, and the rows of its parameters."""


class _Record(Struct, array_like=True, frozen=True):
    store: tuple[object, ...]
    changes: list[tuple[str, list[tuple[object, ...]]]]


class AppliedSlice(NamedTuple):
    """The result of a slice: the row of the store in its table, the bytes of the records, and the number of events."""

    store: StoreRow
    bytes: int
    events: int


_PUTS: Final = {f"{table.name}.put": table for table in LOGGED}
_EVENTS_PUT: Final = f"{rows.EVENTS.name}.put"
_REPLIES_PUT: Final = f"{rows.REPLIES.name}.put"
_COLUMNS: Final = "SELECT number, revision, record, checksum FROM redo_log"
_LATEST: Final = f"{_COLUMNS} ORDER BY number DESC LIMIT 1"
_UP_TO: Final = f"{_COLUMNS} WHERE number <= ? ORDER BY number"
_BEHIND: Final = f"{_COLUMNS} WHERE revision > ? ORDER BY number"

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Record).decode


def append(db: Database, store: StoreRow, changes: Sequence[Change]) -> int:
    """Append the record of a commit, inside the caller's transaction, and return its bytes."""
    record = _encode((astuple(store), changes))
    db.execute(rows.REDO_LOG.put, rows.REDO_LOG.sealed((store.commits, store.revision, record)))
    return len(record)


def is_empty(db: Database) -> bool:
    """Return True if the tables have everything."""
    return db.execute("SELECT 1 FROM redo_log LIMIT 1").fetchone() is None


def latest_store_row(db: Database) -> StoreRow | None:
    """Return the row of the store after the latest record, or None if the log is empty."""
    found = db.execute(_LATEST).fetchone()
    return None if found is None else _store_row(found, _opened(found))


def events_after(db: Database, revision: int, limit: int) -> Iterator[Value]:
    """Yield the texts of the logged events behind a revision, in order: whole revisions, until there are `limit`."""
    count, latest = 0, revision
    for found in db.execute(_BEHIND, (revision,)):
        for name, changed in _opened(found).changes:
            for event in cast("list[Values]", changed) if name == _EVENTS_PUT else ():
                if (of := cast(int, event[0])) > revision:
                    if count >= limit and of != latest:
                        return
                    count, latest = count + 1, of
                    yield event[-1]


def apply_all(db: Database) -> None:
    """Move all records into the tables, inside the caller's transaction.

    Raise `StoreDamaged` for a damaged or missing record: those before it are applied.
    """
    while apply_slice(db, limits.REDO_SLICE_BYTES) is not None:
        pass


def apply_slice(db: Database, bytes_max: int, is_needed: Callable[[Values], bool] | None = None) -> AppliedSlice | None:
    """Move the oldest records into the tables, inside the caller's transaction. Return None if the log is empty.

    A slice has at least one record, and as many as `bytes_max` allows. Rows of replies that are not needed any more,
    because a later record deletes them, are left out. Raise `StoreDamaged` for a damaged record or a missing one,
    before anything of the slice has changed.
    """
    last, taken = _end_of_slice(db, bytes_max)
    if not taken:
        return None
    commits, events_after = _place_of_tables(db)
    groups, events = dict[str, list[tuple[str, list[Values]]]](), 0
    records = [(found, _opened(found)) for found in db.execute(_UP_TO, (last,)).fetchall()]
    for found, record in records:
        commits += 1
        if found[0] != commits:
            raise rows.REDO_LOG.damage(found, f"the record of commit {commits} is missing before it")
        for name, changed in record.changes:
            if name not in STATEMENTS:
                raise rows.REDO_LOG.damage(found, f"there is no statement {name!r}")
            needed = cast("list[Values]", changed)
            if name == _REPLIES_PUT and is_needed is not None:
                needed = [each for each in needed if is_needed(each)]
            elif name == _EVENTS_PUT:
                events += len(changed)
            _collect(groups, name, needed)
    store = _store_row(*records[-1])
    for group in groups.values():
        for name, values in group:
            _execute(db, name, values)
    db.execute("DELETE FROM redo_log WHERE number <= ?", (last,))
    store = replace(store, events_after=max(store.events_after, events_after))  # some were deleted since the record
    write_store_row(db, astuple(store)[: len(records[-1][1].store)])
    return AppliedSlice(store, taken, events)


def write_store_row(db: Database, values: Values) -> None:
    """Write the row of the table `store`, which may be that of an earlier version."""
    db.execute("DELETE FROM store")
    db.execute(rows.STORE.put_first(len(values)), rows.STORE.sealed(values))


def _place_of_tables(db: Database) -> tuple[int, int]:
    """Return the commit whose state the tables have, and the revision behind which they miss no event."""
    found = db.execute("SELECT commits, events_after FROM store").fetchone()
    if found is None:
        raise StoreDamaged("table store has no row, and the redo log has records")
    return cast("tuple[int, int]", found)


def _execute(db: Database, name: str, values: Sequence[Values]) -> None:
    """Execute a statement for each row. A record of an earlier version has fewer columns, and the tables have too."""
    table = _PUTS.get(name)
    if table is None:
        db.executemany(STATEMENTS[name], values)
    else:
        db.executemany(table.put_first(len(values[0])), map(table.sealed, values))


def _end_of_slice(db: Database, bytes_max: int) -> tuple[int, int]:
    """Return the number of the last record of the next slice and the bytes of its records, or 0 and 0 without any."""
    sizes = "SELECT number, length(record) FROM redo_log ORDER BY number LIMIT ?"
    last = taken = 0
    for number, size in db.execute(sizes, (limits.REDO_SLICE_RECORDS,)).fetchall():
        if taken and taken + size > bytes_max:
            break
        last, taken = number, taken + size
    return last, taken


def _collect(groups: dict[str, list[tuple[str, list[Values]]]], name: str, values: list[Values]) -> None:
    """Add rows to the statements of their table, in order. Equal statements in succession become one."""
    if not values:
        return
    group = groups.setdefault(name.partition(".")[0], [])
    if group and group[-1][0] == name:
        group[-1][1].extend(values)
    else:
        group.append((name, [*values]))


def _opened(found: Sequence[Value]) -> _Record:
    """Return the record of a row of the log, or raise `StoreDamaged`."""
    *_, record = rows.REDO_LOG.opened(found)
    try:
        return _decode(cast(bytes, record))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise rows.REDO_LOG.damage(found, error) from error


def _store_row(found: Sequence[Value], record: _Record) -> StoreRow:
    """Return the row of the store after a record, which may lack the last columns, or raise `StoreDamaged`."""
    try:
        return rows.STORE.row(cast(Values, record.store))
    except (TypeError, StoreDamaged) as error:
        raise rows.REDO_LOG.damage(found, error) from error
