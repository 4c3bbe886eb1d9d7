"""Reading a database back, without changing a byte of it: damage is reported with what and where."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar, cast
from urllib.parse import quote

import msgspec

from stepwell.domain.plans.model import Plan
from stepwell.domain.replies import Row
from stepwell.errors import StoreDamaged, StoreFailed
from stepwell.storage import rows
from stepwell.storage.schema import APPLICATION_ID, version_of
from stepwell.storage.store import BodyRow, SessionRow, StoredState

T = TypeVar("T")

_HEADER_BYTES: Final = 100
_ONE_PAGE: Final = 4_096
_KEPT_FROM_READING: Final = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
}
_MAGIC: Final = b"SQLite format 3\0"


def open_to_read(database: str | Path) -> sqlite3.Connection:
    """A connection that changes neither the database nor, when it is closed, its log. SQLite may make their index."""
    uri = f"file://{quote(str(Path(database).absolute()))}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5.0)


def check_length(database: Path) -> None:
    """A file that lost its end reads well as long as nobody comes to it: its header says how long it was.

    Not while there is a log: who was killed while writing that back left the file shorter than it is.
    """
    with database.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    log = database.with_name(f"{database.name}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    name = f"the database {str(database)!r}"
    if not header and has_log:
        raise StoreDamaged(f"{name} is empty, and its log is not: restore a backup")
    if header.startswith(_MAGIC) and len(header) == _HEADER_BYTES and not has_log:
        page_bytes = {1: 65_536}.get(size := int.from_bytes(header[16:18]), size)  # 1 stands for what does not fit
        pages = int.from_bytes(header[28:32])
        if database.stat().st_size < page_bytes * pages:
            raise StoreDamaged(f"{name} has lost its end: it had {pages} pages of {page_bytes} bytes")
    elif 0 < len(header) < _HEADER_BYTES and _MAGIC.startswith(header[: len(_MAGIC)]):
        raise StoreDamaged(f"{name} has lost all but {len(header)} bytes")


def is_half_made(database: Path) -> bool:
    """Whether somebody was killed in the moment in which a database of ours became one: SQLite then puts it right.

    What it would need for that cannot be done by who only reads.
    """
    if not database.with_name(f"{database.name}-journal").exists():
        return False
    with database.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return header[68:72] in {b"", bytes(4), APPLICATION_ID.to_bytes(4)} and database.stat().st_size <= _ONE_PAGE


def load(database: Path) -> StoredState | None:
    """All that is in a database, in one consistent read; None if it is empty."""
    with damage("the database"), closing(open_to_read(database)) as db:
        db.execute("BEGIN")
        return load_from(db) if version_of(db) else None


@contextmanager
def damage(where: str) -> Generator[None]:
    """What SQLite cannot read was not written by it, unless it was kept from reading."""
    try:
        yield
    except UnicodeError as error:  # of texts, SQLite's own messages included
        raise _damaged(where, error) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _KEPT_FROM_READING:
            raise StoreFailed(f"{where} cannot be read now: {error}") from error
        raise _damaged(where, error) from error


def _damaged(where: str, error: Exception) -> StoreDamaged:
    return StoreDamaged(f"{where} cannot be read: {error}; restore a backup, or see `stepwell doctor`")


def load_from(db: sqlite3.Connection) -> StoredState:
    """All that is in a database, as its tables are today."""
    store = _select(db, "store", "SELECT revision, clock_ms, next_serial, tick FROM store", tuple)
    if len(store) != 1:
        raise StoreDamaged(f"table store has {len(store)} rows and not one")
    revision, clock_ms, next_serial, tick = _checked("store", store[0], tuple[int, int, int, int])
    ((latest,),) = _select(db, "events", "SELECT ifnull(max(revision), 0) FROM events", tuple)
    if not isinstance(latest, int) or latest > revision:
        raise StoreDamaged(f"table events, revision {latest!r}: the store is at {revision}")
    with damage("table fragments"):
        fragments = rows.entries(db.execute(rows.SELECT_FRAGMENTS))
    return StoredState(
        revision=revision,
        clock_ms=clock_ms,
        next_serial=next_serial,
        tick=tick,
        rows=_rows(db),
        fragments=fragments,
        bodies=_select(db, "bodies", "SELECT digest, size, packed, packed_bytes, upload FROM bodies", _body),
        sessions=_select(db, "sessions", "SELECT * FROM sessions", session_of),
        replies=_select(db, "replies", "SELECT * FROM replies", _reply),
    )


def _rows(db: sqlite3.Connection) -> list[Row]:
    found: list[Row] = []
    if budget := _select(db, "budget", "SELECT * FROM budget", tuple):
        found.append(rows.budget_of(budget))
    found += _select(db, "actions", rows.ACTIONS.select, rows.ACTIONS.row)
    leases = dict(_select(db, "leases", "SELECT * FROM leases", rows.lease_of))
    plans: list[Plan] = _select(db, "plans", rows.PLANS.select, rows.PLANS.row)
    found += [msgspec.structs.replace(plan, lease=leases.pop(plan.plan_id, None)) for plan in plans]
    if leases:
        raise StoreDamaged(f"table leases, plan_id {min(leases)!r}: there is no such plan")
    found += _select(db, "decisions", rows.DECISIONS.select, rows.DECISIONS.row)
    found += _select(db, "contexts", rows.CONTEXTS.select, rows.CONTEXTS.row)
    found += _select(db, "changesets", rows.CHANGESETS.select, rows.CHANGESETS.row)
    found += _select(db, "entries", rows.ENTRIES.select, rows.ENTRIES.row)
    found += _select(db, "receipts", rows.RECEIPTS.select, rows.RECEIPTS.row)
    return found


def _select(db: sqlite3.Connection, table: str, query: str, make: Callable[[Sequence[rows.Value]], T]) -> list[T]:
    with damage(f"table {table}"):
        return [make(values) for values in db.execute(query)]


class _Body(NamedTuple):
    digest: bytes
    size: int
    packed: Literal[0, 1]
    packed_bytes: int | None
    upload: int | None


def _body(values: Sequence[rows.Value]) -> tuple[BodyRow, int | None]:
    found = _checked("bodies", values, _Body)
    return BodyRow(found.digest, found.size, bool(found.packed), None, found.upload), found.packed_bytes


def _reply(values: Sequence[rows.Value]) -> tuple[str, int, bytes]:
    return _checked("replies", values, tuple[str, int, bytes])


def _checked(table: str, values: Sequence[rows.Value], kind: type[T]) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table {table}, row {str(values[:2])[:200]}: {error}") from error


def session_of(values: Sequence[rows.Value]) -> SessionRow:
    """A session, as its columns have it."""
    fields = dict(zip(SessionRow.__struct_fields__, values, strict=True))
    projects = fields["projects"]
    try:
        scope = None if projects is None else msgspec.json.decode(cast(str, projects), type=list[str])
        return msgspec.convert(fields | {"projects": scope}, SessionRow)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table sessions, session_id {fields['session_id']!r}: {error}") from error
