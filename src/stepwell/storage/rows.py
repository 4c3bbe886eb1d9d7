"""Rows of the domain as rows of tables, and back.

A column holds a number, a text, a digest, or JSON for everything nested, so that other tools can read the tables.
Reading is strict: a value that the type of its field does not allow is damage, and the error names the table and the
row.

Each row has a checksum (see `table`), which is compared before the row is converted.

Fragments are converted by hand-written functions, because they are written with every store and read by the million.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Final, Generic, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from stepwell import limits
from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import Changeset, Content, ContextRow, EntryRow
from stepwell.domain.logs.model import LogEntryRow, LogRow
from stepwell.domain.plans.model import Action, Decision, Lease, Plan
from stepwell.domain.pools.model import TokenPool
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.tiers.model import NO_METADATA, FragmentRow, TierBudget, Writer
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.errors import StoreDamaged
from stepwell.storage.sql import Database
from stepwell.storage.store import UNCOUNTED, BodyRow, ReplyPart, SessionRow
from stepwell.storage.table import CheckedTable, Value, Values

RowT = TypeVar("RowT", bound=Struct)

_json = msgspec.json.Encoder(order="deterministic")
_SIMPLE: Final = (str, int, float, bytes, type(None))
_NO_METADATA: Final = "{}"


class RowTable(CheckedTable, Generic[RowT]):
    """A table whose columns are the fields of a Struct, in order. Fields in `without` have no column.

    A new field goes to the end of its Struct, and gets its column by a migration.
    """

    def __init__(self, name: str, kind: type[RowT], key: Sequence[str], *, without: Sequence[str] = ()) -> None:
        super().__init__(name, [field for field in kind.__struct_fields__ if field not in without], key)
        self.kind = kind
        types = {each.name: each.type for each in msgspec.structs.fields(kind)}
        self._types = tuple((column, types[column], _is_text(types[column])) for column in self.columns)

    def values(self, row: RowT) -> Values:
        """Return the values of a row for its columns."""
        values = [getattr(row, column) for column in self.columns]
        return tuple([value if type(value) in _SIMPLE else _to_value(value) for value in values])

    def row(self, values: Sequence[Value]) -> RowT:
        """Return the row that column values stand for, or raise `StoreDamaged`.

        The last columns may be missing from a row that an earlier version has logged: their fields have defaults.
        """
        fields: dict[str, object] = {}
        for (column, kind, is_text), value in zip(self._types, values, strict=False):
            try:
                fields[column] = _from_value(value, kind, is_text=is_text)
            except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
                raise self.damage(values, f"{column}: {error}") from error
        return self.kind(**fields)


def _to_value(value: object) -> Value:
    """Return a field as a column value. Nested values become JSON."""
    if isinstance(value, Enum):
        return cast(str, value.value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, _SIMPLE):
        return value
    return _json.encode(value).decode()


def _from_value(value: Value, kind: type[object], *, is_text: bool) -> object:
    """Return a column value as a field, strictly. SQLite has no booleans and no nesting, so both are restored here.

    A text in a column whose type is no text is JSON. Everything else must have the type of the field already, so that a
    value that stepwell did not write is found.
    """
    if kind is bool and value in {0, 1}:
        return bool(value)
    if isinstance(value, str) and not is_text:
        return msgspec.json.decode(value, type=kind)
    return msgspec.convert(value, kind)


def _is_text(kind: object) -> bool:
    """Return True if a column of this type holds text, and not JSON."""
    members = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return any(isinstance(each, type) and issubclass(each, str) for each in members)


ACTIONS: Final = RowTable("actions", Action, ("name",))
PLANS: Final = RowTable("plans", Plan, ("plan_id",), without=("lease",))
DECISIONS: Final = RowTable("decisions", Decision, ("decision_id",))
CONTEXTS: Final = RowTable("contexts", ContextRow, ("context_id",))
CHANGESETS: Final = RowTable("changesets", Changeset, ("changeset_id",))
RECEIPTS: Final = RowTable("receipts", ReceiptRow, ("receipt_id",))
POOLS: Final = RowTable("pools", TokenPool, ("name",))
LOGS: Final = RowTable("logs", LogRow, ("project", "name"))
TICKETS: Final = RowTable("apply_tickets", ApplyTicket, ("ticket_id",))


class _Entries(CheckedTable):
    """The table of changeset entries. Each side of a change is a set of columns, so that a digest can be searched for.

    It has the interface of `RowTable`. Modes and ordinals came with a later version, hence their place at the end.
    """

    def __init__(self) -> None:
        head = ("plan_id", "changeset_id", "seq", "operation", "path", "source_path")
        sides = [f"{side}_{part}" for side in ("before", "after") for part in ("digest", "size", "held")]
        tail = ("tool", "recorded_at_ms", "before_mode", "after_mode", "ordinal")
        super().__init__("entries", (*head, *sides, *tail), ("changeset_id", "seq"))

    def values(self, row: EntryRow) -> Values:
        return (
            row.plan_id,
            row.changeset_id,
            row.seq,
            row.operation.value,
            row.path,
            row.source_path,
            *_side(row.before),
            *_side(row.after),
            row.tool,
            row.recorded_at_ms,
            row.before.mode if row.before else None,
            row.after.mode if row.after else None,
            row.ordinal,
        )

    def row(self, values: Sequence[Value]) -> EntryRow:
        (*head, b1, b2, b3, a1, a2, a3, tool, recorded_at_ms, b4, a4, ordinal) = values
        fields = (*head, _content(b1, b2, b3, b4), _content(a1, a2, a3, a4), tool, recorded_at_ms, ordinal)
        try:
            return msgspec.convert(fields, EntryRow)
        except msgspec.MsgspecError as error:
            raise self.damage(values, error) from error


def _side(content: Content | None) -> Values:
    """Return the columns of one side of a change. Its mode came with a later version and has a column at the end."""
    return (None, None, None) if content is None else (content.digest, content.size, int(content.held))


def _content(digest: Value, size: Value, held: Value, mode: Value) -> tuple[Value, Value, bool, Value] | None:
    """Return one side of a change from its columns, or None if there is no such side."""
    return None if digest is None else (digest, size, bool(held), mode)


ENTRIES: Final = _Entries()


class _LogEntries(CheckedTable):
    """The table of the entries of logs. It has the interface of `RowTable`, and is faster: there may be millions."""

    def __init__(self) -> None:
        super().__init__("log_entries", LogEntryRow.__struct_fields__, ("log", "position"))

    def values(self, row: LogEntryRow) -> Values:
        metadata = _json.encode(row.metadata).decode() if row.metadata else _NO_METADATA
        return (row.log, row.position, row.digest, row.size, row.at_ms, row.revision, row.kind, metadata)

    def row(self, values: Sequence[Value]) -> LogEntryRow:
        *fields, metadata = values
        try:
            found = NO_METADATA if metadata == _NO_METADATA else _metadata.decode(cast(str, metadata))
            row = msgspec.convert((*fields, found), LogEntryRow)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise self.damage(values, error) from error
        return row if row.metadata else msgspec.structs.replace(row, metadata=NO_METADATA)


LOG_ENTRIES: Final = _LogEntries()

_USE: Final = ("tick", "touched_at_ms", "last_accessed_ms", "access_count", "accesses_since_move")
_FIRST_FIELDS: Final = FragmentRow.__struct_fields__[: FragmentRow.__struct_fields__.index("metadata") + 1]
_LATER_FIELDS: Final = FragmentRow.__struct_fields__[len(_FIRST_FIELDS) :]  # came with a later version, and end a row
_METADATA: Final = len(_FIRST_FIELDS) - 1
_USED: Final = slice(len(_FIRST_FIELDS), len(_FIRST_FIELDS) + len(_USE))
FRAGMENTS: Final = CheckedTable(
    "fragments", (*_FIRST_FIELDS, *_USE, *_LATER_FIELDS), ("project", "fragment_id"), "tick"
)
DELETE_FRAGMENT: Final = "DELETE FROM fragments WHERE serial = ?"


def fragment_values(entry: FragmentEntry) -> Values:
    """Return the column values of a fragment.

    This runs with every store, and is written out by hand because the generic `RowTable.values` takes several times as
    long.
    """
    row = entry.row
    return (
        row.project,
        row.fragment_id,
        row.source,
        row.kind,
        row.detail_depth,
        row.tokens,
        row.size,
        row.digest,
        row.tier.value,
        row.placed_at_ms,
        row.created_at_ms,
        row.revision,
        row.serial,
        _json.encode(row.metadata).decode() if row.metadata else _NO_METADATA,
        *use_values(entry),
        None if row.writer is None else _writer_text(row.writer),
        int(row.keep),
        row.expires_at_ms,
        row.expires_after_ms,
    )


@lru_cache(limits.WRITERS_CACHED_MAX)
def _writer_text(writer: Writer) -> str:
    """Return a writer as JSON. The fragments of one session mostly have the same."""
    return _json.encode(writer).decode()


@lru_cache(limits.WRITERS_CACHED_MAX)
def _writer(text: str) -> Writer:
    """Return the writer of a JSON text, as the object that all fragments with this text share."""
    return msgspec.json.decode(text, type=Writer)


def use_values(entry: FragmentEntry) -> Values:
    """Return the values that reading a fragment changes."""
    return (entry.tick, entry.touched_at_ms, entry.last_accessed_ms, entry.access_count, entry.accesses_since_move)


_metadata = msgspec.json.Decoder(dict[str, str])
_Use = tuple[int, int, int, int, int]


_SHARED_COLUMNS: Final = tuple(
    FRAGMENTS.columns.index(name)
    for name in ("project", "source", "kind", "placed_at_ms", "created_at_ms", "touched_at_ms", "last_accessed_ms")
)


class FragmentDecoder:
    """Makes fragments from their columns, which come row by row.

    SQLite returns a new object for each value. Values that a row has in common with the one before it become one object
    here, as in the manager that has stored them: otherwise a restarted manager would take half as much memory again.
    """

    def __init__(self) -> None:
        self._last: Sequence[Value] = ()

    def __call__(self, values: Sequence[Value]) -> FragmentEntry:
        """Return a fragment, or raise `StoreDamaged`."""
        shared, last = [*values], self._last
        for at in _SHARED_COLUMNS if last else ():
            if type(shared[at]) is type(last[at]) and shared[at] == last[at]:
                shared[at] = last[at]
        self._last = shared
        return fragment_entry(shared)


def fragment_entry(values: Sequence[Value]) -> FragmentEntry:
    """Return a fragment from its columns, or raise `StoreDamaged`."""
    metadata = values[_METADATA]
    writer, keep, *expiry = values[_USED.stop :]
    try:
        row = msgspec.convert(
            (
                *values[:_METADATA],
                {} if metadata == _NO_METADATA else _metadata.decode(cast(str, metadata)),
                None,
                keep == 1 if keep in {0, 1} else keep,
                *expiry,
            ),
            FragmentRow,
        )
        tick, touched, last, count, since = msgspec.convert(values[_USED], _Use)
        stored_by = None if writer is None else _writer(cast(str, writer))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise FRAGMENTS.damage(values, error) from error
    row = msgspec.structs.replace(
        row,
        metadata=row.metadata or NO_METADATA,
        serial=row.revision if row.serial == row.revision else row.serial,  # one object, as for a new fragment
        writer=stored_by,
    )
    return FragmentEntry(row, tick, touched, last, access_count=count, accesses_since_move=since)


BUDGET: Final = CheckedTable("budget", ("name", "value"), ("name",))


def budget_values(budget: TierBudget) -> list[Values]:
    """Return the rows of a budget, one per field."""
    return [(name, value) for name, value in msgspec.structs.asdict(budget).items()]


def budget_of(found: Iterable[Sequence[Value]]) -> TierBudget:
    """Return the budget. A field that is missing, because a later version added it, has its default."""
    try:
        return msgspec.convert({each[0]: each[1] for each in found}, TierBudget)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table budget: {error}") from error


LEASES: Final = CheckedTable("leases", ("plan_id", *Lease.__struct_fields__), ("plan_id",))


def lease_of(values: Sequence[Value]) -> tuple[str, Lease]:
    """Return the plan of a lease, and the lease."""
    plan_id, *fields = values
    try:
        return cast(str, plan_id), msgspec.convert(fields, Lease)
    except msgspec.MsgspecError as error:
        raise LEASES.damage(values, error) from error


class StoreRow(Struct, frozen=True):
    """The one row of the table `store`.

    `commits` grows with every commit, also with one that changes no revision. `has_mark` says that the mark of this
    epoch exists, so that a missing one is a loss (see `mark`). `row_count` is the number of rows in the tables of
    `COUNTED`, because no checksum notices a row that is not there.
    """

    epoch: str
    encoding: str
    starts: int
    revision: int
    clock_ms: int
    next_serial: int
    tick: int
    events_after: int
    boot: str
    durability: str
    commits: int = 0
    has_mark: Literal[0, 1] = 0
    row_count: int = UNCOUNTED


STORE: Final = RowTable("store", StoreRow, ())


def store_values(row: StoreRow) -> Values:
    """Return the values of the row, with their checksum."""
    return STORE.sealed(astuple(row))


SESSIONS: Final = RowTable("sessions", SessionRow, ("session_id",))
REPLIES: Final = CheckedTable("replies", ("session_id", "request_id", "frame"), ("session_id", "request_id"))
REPLY_PARTS: Final = CheckedTable("reply_parts", ReplyPart._fields, ("session_id", "request_id", "ordinal"))
EVENTS: Final = CheckedTable("events", ("revision", "ordinal", "at_ms", "kind", "event"), ("revision", "ordinal"))

REDO_LOG: Final = CheckedTable("redo_log", ("number", "revision", "record"), ("number",))

SELECT_EVENTS: Final = (
    "SELECT revision, ordinal, at_ms, kind, event, checksum FROM events "
    "WHERE revision > ? AND revision <= ? ORDER BY revision, ordinal"
)

_BODY_COLUMNS: Final = ("number", "digest", "size", "packed", "packed_bytes", "upload")
BODIES: Final = CheckedTable("bodies", _BODY_COLUMNS, ("number",))
PUT_BODY: Final = """
INSERT INTO bodies (number, digest, size, packed, packed_bytes, upload, checksum, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (number) DO UPDATE SET
    size = excluded.size, packed = excluded.packed, data = excluded.data, upload = excluded.upload,
    packed_bytes = ifnull(excluded.packed_bytes, packed_bytes),
    checksum = row_checksum(number, digest, excluded.size, excluded.packed,
        ifnull(excluded.packed_bytes, packed_bytes), excluded.upload)
"""
# A value is given once for each place: Python 3.12 warns of numbered placeholders.
NOTE_PACKED_BYTES: Final = (
    "UPDATE bodies SET packed_bytes = ?, checksum = row_checksum(number, digest, size, packed, ?, upload) "
    "WHERE number = ?"
)


def body_values(number: int, body: BodyRow) -> Values:
    """Return the values of a body for `PUT_BODY`, with its bytes behind the checksum."""
    packed_bytes = len(body.data) if body.packed and body.data is not None else None
    values = (number, body.digest, body.size, int(body.packed), packed_bytes, body.upload)
    return (*BODIES.sealed(values), body.data)


TABLES: Final[tuple[CheckedTable, ...]] = (
    STORE,
    BUDGET,
    FRAGMENTS,
    BODIES,
    ACTIONS,
    PLANS,
    LEASES,
    DECISIONS,
    CONTEXTS,
    CHANGESETS,
    ENTRIES,
    RECEIPTS,
    POOLS,
    LOGS,
    LOG_ENTRIES,
    TICKETS,
    SESSIONS,
    REPLIES,
    REPLY_PARTS,
    EVENTS,
    REDO_LOG,
)
"""All tables with checksums. The parts of bodies have none, because the digest of the body covers them."""


COUNTED: Final = (FRAGMENTS, ACTIONS, PLANS, DECISIONS, CONTEXTS, CHANGESETS, RECEIPTS, POOLS, LOGS, LOG_ENTRIES)
"""The tables whose rows are counted. Entries and bodies are missed by rows that refer to them or by their numbers, and
tickets by the places of those behind them.
"""


def verify(connection: Database) -> None:
    """Compare the checksums of all rows, and raise `StoreDamaged` at the first wrong one.

    For callers that change rows in place without having read them: a new checksum must not cover up an old damage.
    """
    for table in TABLES:
        for found in connection.execute(table.select):
            table.opened(found)
