"""Reading a database back, without changing a byte of it.

One reader serves two callers. A manager that starts wants the complete state or the first problem: `load_from` raises
at once. The doctor wants all problems and everything that is readable besides: `read_all` reports each problem and goes
on. The difference is the `_ProblemSink` that the `_TableReader` reports to.

A problem names the table and the row. Rows are checked by their checksums and by the types of their structs (bounds
included); contradictions between rows are found by `manager.recovery` and by the invariants of the domain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import EntryRow
from stepwell.domain.plans.model import Lease, Plan
from stepwell.domain.replies import Row
from stepwell.domain.tiers.model import TierBudget
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.errors import ProtocolError, StepwellError, StoreDamaged
from stepwell.protocol.codec import decode_results
from stepwell.storage import log_view, rows
from stepwell.storage.database import UNREADABLE, open_to_read, read_error, translated_errors
from stepwell.storage.schema import version_of
from stepwell.storage.sql import Database
from stepwell.storage.store import UNCOUNTED, BodyRow, ReplyPart, SessionRow, StoredState
from stepwell.storage.table import CheckedTable, Value
from stepwell.text import plural

T = TypeVar("T")

_DIGEST_BYTES: Final = 32


class StoredBody(Struct, frozen=True, gc=False):
    """A stored body without its bytes, as the doctor examines it.

    `takes` is the packed size, if it is known. `upload` is the number of the upload that has its parts,
    or None for a body in one piece.
    """

    number: int
    digest: bytes
    size: int
    packed: bool
    takes: int | None
    upload: int | None


class StoreContents(Struct):
    """Everything that could be read. `store` is None if its row is missing or unreadable."""

    store: rows.StoreRow | None
    rows: list[Row]
    fragments: list[FragmentEntry]
    bodies: list[StoredBody]
    leases: dict[str, Lease]
    sessions: set[str]


TABLES: Final = (
    "fragments",
    "bodies",
    "actions",
    "plans",
    "leases",
    "decisions",
    "contexts",
    "changesets",
    "entries",
    "receipts",
    "pools",
    "logs",
    "log_entries",
    "apply_tickets",
    "sessions",
    "replies",
    "reply_parts",
    "events",
)
"""The tables whose rows the doctor counts."""

_BODY_EXTRAS: Final = (
    "data IS NOT NULL, ifnull(packed_bytes, CASE WHEN packed THEN "
    "(SELECT sum(length(data)) FROM body_parts WHERE body_parts.upload = bodies.upload) END)"
)


def load(database: Path) -> StoredState | None:
    """Return everything in a database, in one consistent read, or None if the database is empty."""
    with translated_errors("the database"), closing(open_to_read(database)) as db:
        db.execute("BEGIN")
        if not version_of(db):
            return None
        log_view.apply_log(db)
        return load_from(db)


def read_store_row(db: Database) -> rows.StoreRow:
    """Return the row of the table `store`, or raise `StoreDamaged`."""
    store = _TableReader(db, _RaiseFirst()).store()
    assert store is not None
    return store


def load_from(db: Database) -> StoredState:
    """Return everything in a database with the present tables. Raise `StoreDamaged` at the first problem.

    Raise `StoreFailed` if reading was prevented.

    Events are not read, only their latest revision: one beyond the store's revision belongs to a commit that is
    missing.
    """
    tables = _TableReader(db, _RaiseFirst())
    store = read_store_row(db)
    with translated_errors("table events"):
        (latest,) = db.execute("SELECT ifnull(max(revision), 0) FROM events").fetchone()
    if not isinstance(latest, int) or latest > store.revision:
        raise StoreDamaged(f"table events, revision {latest!r}: the store is at {store.revision}")
    found, leases = tables.rows()
    if unowned := leases.keys() - {row.plan_id for row in found if isinstance(row, Plan)}:
        raise StoreDamaged(f"table leases, plan_id {min(unowned)!r}: there is no such plan")
    fragments = tables.fragments()
    counted = len(fragments) + sum(1 for row in found if not isinstance(row, TierBudget | EntryRow | ApplyTicket))
    if problem := vanished(store, counted):
        raise StoreDamaged(problem)
    return StoredState(
        revision=store.revision,
        clock_ms=store.clock_ms,
        next_serial=store.next_serial,
        tick=store.tick,
        rows=found,
        fragments=fragments,
        bodies=tables.select(rows.BODIES, _body_decoder(fragments)),
        sessions=tables.sessions(),
        replies=tables.select(rows.REPLIES, _reply),
        reply_parts=tables.select(rows.REPLY_PARTS, _reply_part),
    )


def vanished(store: rows.StoreRow, counted: int) -> str | None:
    """Return the problem if the tables of `rows.COUNTED` have another number of rows than the last commit left."""
    if store.row_count in {UNCOUNTED, counted}:
        return None
    names = ", ".join(table.name for table in rows.COUNTED)
    return f"the tables {names} have {plural(counted, 'row')} together, and the last commit left {store.row_count}"


def read_all(db: Database, report: Callable[[str], None]) -> StoreContents:
    """Return everything that is readable, and report each problem.

    Events, replies and the bytes of bodies are left out, because they are too large to hold at once. The doctor reads
    them one by one.
    """
    tables = _TableReader(db, _ReportAll(report))
    store = tables.store()
    found, leases = tables.rows()
    return StoreContents(
        store=store,
        rows=found,
        fragments=tables.fragments(),
        bodies=tables.select(rows.BODIES, _stored_body, _BODY_EXTRAS),
        leases=leases,
        sessions={each.session_id for each in tables.sessions()},
    )


class _ProblemSink(Protocol):
    """The receiver of problems.

    It may raise, which ends the reading, or return, which skips the row or the rest of the table.
    """

    def on_row(self, table: str, values: Sequence[Value], error: Exception) -> None:
        """Handle a row that is not valid."""
        ...

    def on_table(self, table: str, rows_read: int, error: Exception) -> None:
        """Handle an error of SQLite, after some rows of the table were read."""
        ...


class _RaiseFirst:
    """Raises the first problem, for a manager that starts."""

    def on_row(self, table: str, values: Sequence[Value], error: Exception) -> None:  # noqa: ARG002
        raise error

    def on_table(self, table: str, rows_read: int, error: Exception) -> None:  # noqa: ARG002
        raise read_error(f"table {table}", error) from error


class _ReportAll:
    """Reports each problem as text, for the doctor."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def on_row(self, table: str, values: Sequence[Value], error: Exception) -> None:
        self._report(error.message if isinstance(error, StoreDamaged) else f"table {table}, {values[0]!r}: {error}")

    def on_table(self, table: str, rows_read: int, error: Exception) -> None:
        self._report(f"table {table} cannot be read behind its first {plural(rows_read, 'row')}: {error}")


class _TableReader:
    """Reads the tables of one connection row by row, inside the caller's read transaction."""

    def __init__(self, db: Database, problems: _ProblemSink) -> None:
        self._db = db
        self._problems = problems

    def select(self, table: CheckedTable, make: Callable[[Sequence[Value]], T], extras: str = "") -> list[T]:
        """Return the rows of a table, each compared with its checksum and made by `make`. Problems go to the sink.

        An error of `make` concerns one row, and the next row is read. An error of SQLite ends the table, because its
        cursor cannot continue behind a damaged page.
        """
        found: list[T] = []
        try:
            for values in self._db.execute(table.select_with(extras) if extras else table.select):
                try:
                    found.append(make(table.opened(values)))
                except (StepwellError, ValueError, TypeError) as error:
                    self._problems.on_row(table.name, values, error)
        except UNREADABLE as error:
            self._problems.on_table(table.name, len(found), error)
        return found

    def store(self) -> rows.StoreRow | None:
        """Return the row of the table `store`. It must exist exactly once."""
        found = self.select(rows.STORE, rows.STORE.row)
        if len(found) != 1:
            error = StoreDamaged(f"table store has {plural(len(found), 'row')} that can be read, and not one")
            self._problems.on_row("store", (), error)
        return found[0] if found else None

    def rows(self) -> tuple[list[Row], dict[str, Lease]]:
        """Return all rows but fragments, and the leases by plan. Plans contain their leases.

        The leases are returned as well, because a lease without a plan is a problem that each caller handles in its own
        way.
        """
        found: list[Row] = []
        if budget := self.select(rows.BUDGET, tuple):
            try:
                found.append(rows.budget_of(budget))
            except StoreDamaged as error:
                self._problems.on_row("budget", budget[0], error)
        found += self.select(rows.ACTIONS, rows.ACTIONS.row)
        leases = dict(self.select(rows.LEASES, rows.lease_of))
        plans: list[Plan] = self.select(rows.PLANS, rows.PLANS.row)
        found += [msgspec.structs.replace(plan, lease=leases.get(plan.plan_id)) for plan in plans]
        found += self.select(rows.DECISIONS, rows.DECISIONS.row)
        found += self.select(rows.CONTEXTS, rows.CONTEXTS.row)
        found += self.select(rows.CHANGESETS, rows.CHANGESETS.row)
        found += self.select(rows.ENTRIES, rows.ENTRIES.row)
        found += self.select(rows.RECEIPTS, rows.RECEIPTS.row)
        found += self.select(rows.POOLS, rows.POOLS.row)
        found += self.select(rows.LOGS, rows.LOGS.row)
        found += self.select(rows.LOG_ENTRIES, rows.LOG_ENTRIES.row)
        found += self.select(rows.TICKETS, rows.TICKETS.row)
        return found, leases

    def fragments(self) -> list[FragmentEntry]:
        """Return the fragments in the order of their use."""
        return self.select(rows.FRAGMENTS, rows.FragmentDecoder())

    def sessions(self) -> list[SessionRow]:
        """Return the sessions."""
        return self.select(rows.SESSIONS, rows.SESSIONS.row)


def _stored_body(values: Sequence[Value]) -> StoredBody:
    """Return a body for the doctor, or raise `StoreDamaged` if its columns contradict each other.

    A body is either in one piece or in parts. The manager does not check this when it starts: it finds out when it
    reads the body.
    """
    number, digest, size, packed, _packed_bytes, upload, is_inline, takes = values
    if not isinstance(digest, bytes) or len(digest) != _DIGEST_BYTES:
        raise StoreDamaged(f"table bodies, digest {digest!r}: it has {_DIGEST_BYTES} bytes, and this is none")
    if bool(is_inline) == (upload is not None):
        where = "both in one piece and in parts" if is_inline else "neither in one piece nor in parts"
        raise StoreDamaged(f"table bodies, body {digest.hex()}: it is {where}")
    try:
        size_bytes, taken = msgspec.convert((size, takes), tuple[int, int | None])
        part = msgspec.convert(upload, int | None)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table bodies, body {digest.hex()}: {error}") from error
    return StoredBody(cast(int, number), digest, size_bytes, bool(cast(int, packed)), taken, part)


class _Body(NamedTuple):
    """The columns of a body without its bytes."""

    number: int
    digest: bytes
    size: int
    packed: Literal[0, 1]
    packed_bytes: int | None
    upload: int | None


def _body_decoder(fragments: Iterable[FragmentEntry]) -> Callable[[Sequence[Value]], tuple[BodyRow, int | None]]:
    """Return a function that makes a body for a manager, with its packed size, from its columns.

    The digest is the object that the fragments have, which saves the memory of another one.
    """
    known = {entry.row.digest: entry.row.digest for entry in fragments}

    def decode(values: Sequence[Value]) -> tuple[BodyRow, int | None]:
        found = _checked("bodies", values, _Body)
        digest = known.get(found.digest, found.digest)
        return BodyRow(digest, found.size, bool(found.packed), None, found.upload), found.packed_bytes

    return decode


def _reply(values: Sequence[Value]) -> tuple[str, int, bytes]:
    return _checked("replies", values, tuple[str, int, bytes])


def _reply_part(values: Sequence[Value]) -> ReplyPart:
    """Return a part of a reply. Its results are checked, because the manager continues behind them."""
    part = _checked("reply_parts", values, ReplyPart)
    try:
        decode_results(part.results)
    except ProtocolError as error:
        raise StoreDamaged(f"table reply_parts, row {str(values[:3])[:200]}: {error.message}") from error
    return part


def _checked(table: str, values: Sequence[Value], kind: type[T]) -> T:
    """Return values converted to a type, or raise `StoreDamaged` with the table and the row."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table {table}, row {str(values[:2])[:200]}: {error}") from error
