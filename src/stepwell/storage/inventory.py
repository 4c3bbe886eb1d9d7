"""All that is in a database, row by row: what cannot be read is listed, and the rest is read on.

Whoever starts a manager wants the first thing that is wrong, and gets it from `loading`. Whoever examines a directory
wants all of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

import msgspec
from msgspec import Struct

from stepwell.domain.plans.model import Lease, Plan
from stepwell.domain.replies import Row
from stepwell.domain.tiers.table import FragmentEntry
from stepwell.errors import StepwellError, StoreDamaged
from stepwell.storage import rows
from stepwell.storage.load import session_of

T = TypeVar("T")
Complain = Callable[[str], None]

UNREADABLE: Final = (sqlite3.Error, UnicodeError)
"""What damaged pages make of a query: SQLite quotes them in its own messages."""

_DIGEST_BYTES: Final = 32


class StoreRow(Struct, frozen=True):
    """The one row of the table `store`."""

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


class StoredBody(Struct, frozen=True, gc=False):
    """A body as it is stored, without its bytes."""

    number: int
    digest: bytes
    size: int
    packed: bool
    takes: int | None  # when it is compressed, if that is known
    upload: int | None  # of its parts, if it is in parts


class Inventory(Struct):
    """All that could be read."""

    store: StoreRow | None
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
    "sessions",
    "replies",
    "events",
)
"""Those whose rows are worth counting."""

_BODIES: Final = (
    "SELECT number, digest, size, packed, upload, data IS NOT NULL, ifnull(packed_bytes, CASE WHEN packed THEN "
    "(SELECT sum(length(data)) FROM body_parts WHERE body_parts.upload = bodies.upload) END) FROM bodies"
)


def take_stock(db: sqlite3.Connection, complain: Complain) -> Inventory:
    """Read everything but events, replies and the bytes of bodies, which are too much to have at once."""

    def select(table: str, query: str, make: Callable[[Sequence[rows.Value]], T]) -> list[T]:
        return _select(db, table, query, make, complain)

    store = select("store", "SELECT * FROM store", _store)
    if len(store) != 1:
        complain(f"table store has {len(store)} rows that can be read, and not one")
    found: list[Row] = []
    if budget := select("budget", "SELECT * FROM budget", tuple):
        try:
            found.append(rows.budget_of(budget))
        except StoreDamaged as error:
            complain(error.message)
    found += select("actions", rows.ACTIONS.select, rows.ACTIONS.row)
    leases = dict(select("leases", "SELECT * FROM leases", rows.lease_of))
    plans: list[Plan] = select("plans", rows.PLANS.select, rows.PLANS.row)
    found += [msgspec.structs.replace(plan, lease=leases.get(plan.plan_id)) for plan in plans]
    found += select("decisions", rows.DECISIONS.select, rows.DECISIONS.row)
    found += select("contexts", rows.CONTEXTS.select, rows.CONTEXTS.row)
    found += select("changesets", rows.CHANGESETS.select, rows.CHANGESETS.row)
    found += select("entries", rows.ENTRIES.select, rows.ENTRIES.row)
    found += select("receipts", rows.RECEIPTS.select, rows.RECEIPTS.row)
    return Inventory(
        store=store[0] if store else None,
        rows=found,
        fragments=select("fragments", rows.SELECT_FRAGMENTS, lambda values: rows.entries([values])[0]),
        bodies=select("bodies", _BODIES, _body),
        leases=leases,
        sessions={each.session_id for each in select("sessions", "SELECT * FROM sessions", session_of)},
    )


def _select(
    db: sqlite3.Connection,
    table: str,
    query: str,
    make: Callable[[Sequence[rows.Value]], T],
    complain: Complain,
) -> list[T]:
    found: list[T] = []
    try:
        for values in db.execute(query):
            try:
                found.append(make(values))
            except StoreDamaged as error:
                complain(error.message)
            except (StepwellError, ValueError, TypeError) as error:
                complain(f"table {table}, {values[0]!r}: {error}")
    except UNREADABLE as error:
        complain(f"table {table} cannot be read behind its first {len(found)} rows: {error}")
    return found


def _store(values: Sequence[rows.Value]) -> StoreRow:
    return msgspec.convert(dict(zip(StoreRow.__struct_fields__, values, strict=True)), StoreRow)


def _body(values: Sequence[rows.Value]) -> StoredBody:
    number, digest, size, packed, upload, is_inline, takes = values
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
