"""Rows of the domain as rows of tables, and back.

A column holds a number, a text, a digest, or JSON for everything nested, so that other tools can read the tables.
Reading is strict: a value that the type of its field does not allow is damage, and the error names the table and the
row.

Fragments are converted by hand-written functions, because they are written with every store and read by the million.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from types import UnionType
from typing import Final, Generic, TypeVar, cast, get_args

import msgspec
from msgspec import Struct

from stepwell.domain.changesets.model import Changeset, Content, ContextRow, EntryRow
from stepwell.domain.plans.model import Action, Decision, Lease, Plan
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.tiers.model import FragmentRow, TierBudget
from stepwell.domain.tiers.table import FragmentEntry
from stepwell.errors import StoreDamaged

Value = str | int | float | bytes | None
Values = tuple[Value, ...]
RowT = TypeVar("RowT", bound=Struct)

_json = msgspec.json.Encoder(order="deterministic")
_SIMPLE: Final = (str, int, float, bytes, type(None))
_NO_METADATA: Final = "{}"


class RowTable(Generic[RowT]):
    """A table whose columns are the fields of a Struct, in order. Fields in `without` have no column.

    The statements are built once from names in this module, never from data. The order of the fields is the order of
    the columns: a new field goes to the end, and gets its column by a migration.
    """

    def __init__(self, name: str, kind: type[RowT], key: Sequence[str], *, without: Sequence[str] = ()) -> None:
        self.name = name
        self.kind = kind
        self.columns = tuple(field for field in kind.__struct_fields__ if field not in without)
        self._key = tuple(key)
        types = {each.name: each.type for each in msgspec.structs.fields(kind)}
        self._types = tuple((column, types[column], _is_text(types[column])) for column in self.columns)
        self.put = _insert(name, len(self.columns))
        self.delete = f"DELETE FROM {name} WHERE {' AND '.join(f'{each} = ?' for each in self._key)}"  # noqa: S608
        self.select = f"SELECT {', '.join(self.columns)} FROM {name} ORDER BY {', '.join(self._key)}"  # noqa: S608

    def values(self, row: RowT) -> Values:
        """Return the values of a row for its columns."""
        return tuple(_to_value(getattr(row, column)) for column in self.columns)

    def row(self, values: Sequence[Value]) -> RowT:
        """Return the row that column values stand for, or raise `StoreDamaged`."""
        try:
            fields = {
                column: _from_value(value, kind, is_text=is_text)
                for (column, kind, is_text), value in zip(self._types, values, strict=True)
            }
        except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
            raise StoreDamaged(f"table {self.name}, {self._key_text(values)}: {error}") from error
        return self.kind(**fields)

    def _key_text(self, values: Sequence[Value]) -> str:
        """Return the key of a row, for an error message."""
        found = dict(zip(self.columns, values, strict=True))
        return ", ".join(f"{column} {found[column]!r}" for column in self._key)


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


def _insert(name: str, columns: int) -> str:
    """Return the statement that inserts or replaces a row."""
    return f"INSERT OR REPLACE INTO {name} VALUES ({', '.join('?' * columns)})"  # noqa: S608


ACTIONS: Final = RowTable("actions", Action, ("name",))
PLANS: Final = RowTable("plans", Plan, ("plan_id",), without=("lease",))
DECISIONS: Final = RowTable("decisions", Decision, ("decision_id",))
CONTEXTS: Final = RowTable("contexts", ContextRow, ("context_id",))
CHANGESETS: Final = RowTable("changesets", Changeset, ("changeset_id",))
RECEIPTS: Final = RowTable("receipts", ReceiptRow, ("receipt_id",))


class _Entries:
    """The table of changeset entries. Each side of a change is a set of columns, so that a digest can be searched for.

    It has the interface of `RowTable`. Modes and ordinals came with a later version, hence their place at the end.
    """

    name = "entries"
    put = _insert("entries", 17)
    delete = "DELETE FROM entries WHERE changeset_id = ? AND seq = ?"
    select = "SELECT * FROM entries ORDER BY changeset_id, seq"

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
            raise StoreDamaged(f"table entries, changeset_id {values[1]!r}, seq {values[2]!r}: {error}") from error


def _side(content: Content | None) -> Values:
    """Return the columns of one side of a change. Its mode came with a later version and has a column at the end."""
    return (None, None, None) if content is None else (content.digest, content.size, int(content.held))


def _content(digest: Value, size: Value, held: Value, mode: Value) -> tuple[Value, Value, bool, Value] | None:
    """Return one side of a change from its columns, or None if there is no such side."""
    return None if digest is None else (digest, size, bool(held), mode)


ENTRIES: Final = _Entries()

FRAGMENT_COLUMNS: Final = len(FragmentRow.__struct_fields__)
PUT_FRAGMENT: Final = _insert("fragments", FRAGMENT_COLUMNS + 5)
DELETE_FRAGMENT: Final = "DELETE FROM fragments WHERE serial = ?"
TOUCH_FRAGMENT: Final = (
    "UPDATE fragments SET tick = ?, touched_at_ms = ?, last_accessed_ms = ?, access_count = ?, "
    "accesses_since_move = ? WHERE serial = ?"
)
SELECT_FRAGMENTS: Final = "SELECT * FROM fragments ORDER BY tick"


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
    )


def use_values(entry: FragmentEntry) -> Values:
    """Return the values that reading a fragment changes."""
    return (entry.tick, entry.touched_at_ms, entry.last_accessed_ms, entry.access_count, entry.accesses_since_move)


_metadata = msgspec.json.Decoder(dict[str, str])
_Use = tuple[int, int, int, int, int]


def fragment_entry(values: Sequence[Value]) -> FragmentEntry:
    """Return a fragment from its columns, or raise `StoreDamaged`."""
    metadata = values[FRAGMENT_COLUMNS - 1]
    try:
        row = msgspec.convert(
            (
                *values[: FRAGMENT_COLUMNS - 1],
                {} if metadata == _NO_METADATA else _metadata.decode(cast(str, metadata)),
            ),
            FragmentRow,
        )
        tick, touched, last, count, since = msgspec.convert(values[FRAGMENT_COLUMNS:], _Use)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise StoreDamaged(f"table fragments, project {values[0]!r}, fragment_id {values[1]!r}: {error}") from error
    return FragmentEntry(row, tick, touched, last, access_count=count, accesses_since_move=since)


def budget_values(budget: TierBudget) -> list[Values]:
    """Return the rows of a budget, one per field."""
    return [(name, value) for name, value in msgspec.structs.asdict(budget).items()]


def budget_of(found: Iterable[tuple[Value, ...]]) -> TierBudget:
    """Return the budget. A field that is missing, because a later version added it, has its default."""
    try:
        return msgspec.convert({each[0]: each[1] for each in found}, TierBudget)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table budget: {error}") from error


def lease_of(values: Sequence[Value]) -> tuple[str, Lease]:
    """Return the plan of a lease, and the lease."""
    plan_id, *fields = values
    try:
        return cast(str, plan_id), msgspec.convert(fields, Lease)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"table leases, plan_id {plan_id!r}: {error}") from error
