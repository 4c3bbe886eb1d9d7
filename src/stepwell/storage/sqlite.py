"""The durable store: one SQLite database in a data directory, written by one manager, readable by anybody.

A turn is a transaction. At `disk` its commit returns when the write-ahead log is on the disk, at `process` when the
kernel has it. Nothing else is promised by it, and nothing is acknowledged before it. When it fails the manager stops:
after a failed flush nobody knows what is on the disk, and asking again would get the wrong answer.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final, cast

import msgspec
from msgspec import convert
from ulid import ULID

from stepwell import limits
from stepwell.domain.changesets.model import Changeset, ContextRow, EntryRow
from stepwell.domain.events import AnyEvent
from stepwell.domain.plans.model import Action, Decision, Plan
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import Row
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import StartFailed, StoreDamaged, StoreFailed
from stepwell.protocol.messages import ENCODING
from stepwell.storage import rows
from stepwell.storage.database import guard, may_have_lost_some, open_to_write
from stepwell.storage.directory import DataDirectory, boot_id
from stepwell.storage.load import damage, load_from
from stepwell.storage.schema import begin_anew, migrate
from stepwell.storage.store import BodyRow, CommitBatch, Durability, StoredState

_TABLES: Final[dict[type, object]] = {
    Action: rows.ACTIONS,
    Plan: rows.PLANS,
    Decision: rows.DECISIONS,
    ContextRow: rows.CONTEXTS,
    Changeset: rows.CHANGESETS,
    EntryRow: rows.ENTRIES,
    ReceiptRow: rows.RECEIPTS,
}
_PUT_BODY: Final = """
INSERT INTO bodies VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (number) DO UPDATE SET
    size = excluded.size, packed = excluded.packed, data = excluded.data, upload = excluded.upload,
    packed_bytes = ifnull(excluded.packed_bytes, packed_bytes)
"""
_json = msgspec.json.Encoder(order="deterministic")
_events = msgspec.json.Decoder(AnyEvent)


class SqliteStore:
    """The database, and the one connection that writes it."""

    def __init__(self, directory: DataDirectory, durability: Durability, encoding: str | None = None) -> None:
        self.durability = durability
        self._directory = directory
        self._guard = guard(directory.database)
        try:
            self._db = open_to_write(directory.database, durability)
            try:
                self._kept = self._prepare(encoding)
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            self._let_go_of_guard()
            raise

    @property
    def database(self) -> str:
        return str(self._directory.database)

    @property
    def is_untidy(self) -> bool:
        """Whether there is something to be thrown away, a little with each turn."""
        return bool(self._trash)

    def load(self) -> StoredState | None:
        """What there was when the directory was opened; it is given away, once."""
        kept, self._kept = self._kept, None
        return kept

    def begin(self) -> None:
        try:
            self._db.execute("COMMIT")
            self._let_go_of_guard()
            self._directory.sync()
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        self._place = self._find()

    def look(self) -> None:
        if self._find() != self._place:
            raise StoreFailed(
                f"the database {self.database!r} was removed, or another one put in its place: what is acknowledged "
                "would be lost"
            )

    def _find(self) -> tuple[int, int] | None:
        try:
            found = self._directory.database.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def commit(self, turn: CommitBatch) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(turn)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error | OSError) -> StoreFailed:
        return StoreFailed(
            f"the data directory {str(self._directory.path)!r} cannot be written ({error}): "
            "nothing of this turn was acknowledged; make room or mend the disk, then start again"
        )

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]] | None:
        number = self._numbers.get(digest)
        found = self._db.execute("SELECT packed, data, upload FROM bodies WHERE number = ?", (number,)).fetchone()
        if found is None:
            return None
        packed, data, upload = found
        return bool(packed), iter((data,)) if data is not None else self._parts(upload)

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        bound = self._db.execute(
            "SELECT max(revision) FROM "
            "(SELECT revision FROM events WHERE revision > ? ORDER BY revision, ordinal LIMIT ?)",
            (revision, limit),
        ).fetchone()[0]
        found = self._db.execute(
            "SELECT event FROM events WHERE revision > ? AND revision <= ? ORDER BY revision, ordinal",
            (revision, bound if bound is not None else revision),
        ).fetchall()
        return [_events.decode(event) for (event,) in found]

    def oldest_event(self) -> int:
        return self._events_after

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._let_go_of_guard()
        self._directory.close()

    def _let_go_of_guard(self) -> None:
        if self._guard is not None:
            with contextlib.suppress(sqlite3.Error):
                self._guard.close()
            self._guard = None

    def _prepare(self, encoding: str | None) -> StoredState | None:
        """Bring the tables up to date, read them, and count this manager; all of it is kept only by `begin`."""
        db = self._db
        with damage("the database"):
            db.execute("BEGIN IMMEDIATE")
            if is_new := migrate(db) == 0:
                db.execute(
                    "INSERT INTO store (epoch, encoding, starts, revision, clock_ms, next_serial, tick, events_after) "
                    "VALUES (?, ?, 0, 0, 0, 1, 0, 0)",
                    (str(ULID()), encoding or ENCODING),
                )
            elif may_have_lost_some(db):
                begin_anew(db)
            kept = None if is_new else load_from(db)
            db.execute("UPDATE store SET starts = starts + 1, boot = ?, durability = ?", (boot_id(), self.durability))
            with damage("table store"):
                found = db.execute("SELECT epoch, encoding, starts, events_after FROM store").fetchone()
            try:
                self.epoch, self.encoding, self.starts, self._events_after = convert(found, tuple[str, str, int, int])
            except msgspec.MsgspecError as error:
                raise StoreDamaged(f"table store: {error}") from error
            if encoding not in {None, self.encoding}:
                raise StartFailed(
                    f"the data directory counts tokens in {self.encoding!r}, not in {encoding!r}: leave encoding out"
                )
            self._events = _number(db, "SELECT count(*) FROM events")
            self._next_upload = _number(db, "SELECT ifnull(max(upload), 0) + 1 FROM body_parts")
            self._numbers: dict[bytes, int] = dict(db.execute("SELECT digest, number FROM bodies"))
            self._next_number = max(self._numbers.values(), default=0) + 1
            self._uploads = dict(db.execute("SELECT digest, upload FROM bodies WHERE upload IS NOT NULL"))
            parts = {upload for (upload,) in db.execute("SELECT DISTINCT upload FROM body_parts")}
            self._trash = sorted(parts - set(self._uploads.values()))  # uploads whose parts no body needs
        return kept

    def _write(self, turn: CommitBatch) -> None:
        db = self._db
        if turn.touched:  # some may have moved since, and are among the fragments
            db.executemany(rows.TOUCH_FRAGMENT, [(*rows.use_values(each), each.row.serial) for each in turn.touched])
        if turn.removed:
            db.executemany(rows.DELETE_FRAGMENT, [(serial,) for serial in turn.removed])
        if turn.fragments:
            db.executemany(
                rows.PUT_FRAGMENT, [rows.fragment_values(entry) for entry in turn.fragments.values() if entry]
            )
        for kind, changed in turn.rows.items():
            self._write_rows(kind, changed)
        self._write_bodies(turn)
        if turn.events:
            self._write_events(turn.events)
        self._write_sessions(turn)
        db.execute(
            "UPDATE store SET revision = ?, clock_ms = max(clock_ms, ?), next_serial = ?, tick = ?",
            (turn.revision, turn.now_ms, turn.next_serial, turn.tick),
        )
        self._throw_away()

    def _write_rows(self, kind: type, changed: dict[object, Row | None]) -> None:
        db = self._db
        if kind is TierBudget:
            budget = cast(TierBudget, changed["budget"])
            db.executemany("INSERT OR REPLACE INTO budget VALUES (?, ?)", rows.budget_values(budget))
            return
        table = cast("rows.RowTable[msgspec.Struct]", _TABLES[kind])
        gone = [_key(key) for key, row in changed.items() if row is None]
        kept = [cast(msgspec.Struct, row) for row in changed.values() if row is not None]
        if gone:
            db.executemany(table.delete, gone)
        db.executemany(table.put, [table.values(row) for row in kept])
        if kind is Plan:
            db.executemany("DELETE FROM leases WHERE plan_id = ?", [(key,) for key in changed])
            leased = [(plan.plan_id, plan.lease) for plan in cast("list[Plan]", kept)]
            db.executemany(
                "INSERT INTO leases VALUES (?, ?, ?, ?)",
                [(plan_id, *msgspec.structs.astuple(lease)) for plan_id, lease in leased if lease],
            )

    def _write_bodies(self, turn: CommitBatch) -> None:
        db = self._db
        if turn.parts:
            db.executemany("INSERT INTO body_parts VALUES (?, ?, ?)", turn.parts)
        self._trash += turn.abandoned
        if turn.bodies:
            for digest, body in turn.bodies.items():
                if digest in self._uploads:
                    self._trash.append(self._uploads.pop(digest))
                if body is not None and body.upload is not None:
                    self._uploads[digest] = body.upload
            gone = [digest for digest, body in turn.bodies.items() if body is None and digest in self._numbers]
            if gone:
                db.executemany("DELETE FROM bodies WHERE number = ?", [(self._numbers.pop(each),) for each in gone])
            kept = [body for body in turn.bodies.values() if body is not None]
            db.executemany(_PUT_BODY, [(self._number(body.digest), *_body_values(body)) for body in kept])
        if turn.packed_bytes:
            noted = [(size, self._numbers.get(digest)) for digest, size in turn.packed_bytes.items()]
            db.executemany("UPDATE bodies SET packed_bytes = ? WHERE number = ?", noted)

    def _number(self, digest: bytes) -> int:
        """The number that a body has, or gets."""
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = self._next_number
            self._next_number += 1
        return number

    def _write_events(self, events: list[AnyEvent]) -> None:
        """Numbered within their revision. The oldest make way, by whole revisions."""
        values: list[rows.Values] = []
        revision = ordinal = 0
        for event in events:
            ordinal = ordinal + 1 if event.revision == revision else 0
            revision = event.revision
            kind = type(event).__name__
            values.append((revision, ordinal, event.at_ms, kind, _json.encode(event).decode()))
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", values)
        self._events += len(values)
        if self._events > limits.EVENTS_KEPT + limits.EVENTS_TRIMMED_PER_TURN:
            self._trim_events()

    def _trim_events(self) -> None:
        (bound,) = self._db.execute(
            "SELECT revision FROM events ORDER BY revision, ordinal LIMIT 1 OFFSET ?",
            (self._events - limits.EVENTS_KEPT,),
        ).fetchone()
        self._events -= self._db.execute("DELETE FROM events WHERE revision < ?", (bound,)).rowcount
        self._events_after = bound - 1
        self._db.execute("UPDATE store SET events_after = ?", (self._events_after,))

    def _write_sessions(self, turn: CommitBatch) -> None:
        db = self._db
        for session_id, session in turn.sessions.items():
            db.execute("DELETE FROM replies WHERE session_id = ?", (session_id,))
            if session is None:
                db.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
            else:
                projects = None if session.projects is None else _json.encode(session.projects).decode()
                db.execute(
                    "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?)",
                    (session_id, projects, session.pid, session.process, session.answered, session.generation),
                )
        if turn.replies:
            db.executemany("INSERT OR REPLACE INTO replies VALUES (?, ?, ?)", turn.replies)
        if turn.answered:
            answered = [(number, session_id) for session_id, number in turn.answered.items()]
            db.executemany("UPDATE sessions SET answered = ? WHERE session_id = ?", answered)
            db.executemany("DELETE FROM replies WHERE request_id < ? AND session_id = ?", answered)

    def _throw_away(self) -> None:
        """Large bodies are freed a little at a time: that has to read what it frees."""
        left = limits.PARTS_TRIMMED_PER_TURN
        while self._trash and left > 0:
            gone = self._db.execute(
                "DELETE FROM body_parts WHERE upload = ?1 AND part IN "
                "(SELECT part FROM body_parts WHERE upload = ?1 LIMIT ?2)",
                (self._trash[0], left),
            ).rowcount
            if gone < left:
                self._trash.pop(0)
            left -= max(gone, 1)

    def place(self, digest: bytes) -> int:
        return self._numbers[digest]

    def next_upload(self) -> int:
        """A number that no upload has had."""
        self._next_upload += 1
        return self._next_upload - 1

    def _parts(self, upload: int) -> Iterator[bytes]:
        """One short read each: an open one would keep the log from being written back."""
        part = 0
        while found := self._db.execute(
            "SELECT data FROM body_parts WHERE upload = ? AND part = ?", (upload, part)
        ).fetchone():
            yield found[0]
            part += 1


def _key(key: object) -> rows.Values:
    """What a row is found by: one column, or several."""
    return cast("rows.Values", key if isinstance(key, tuple) else (key,))


def _number(db: sqlite3.Connection, query: str) -> int:
    (number,) = db.execute(query).fetchone()
    assert isinstance(number, int)
    return number


def _body_values(body: BodyRow) -> rows.Values:
    packed_bytes = len(body.data) if body.packed and body.data is not None else None
    return (body.digest, body.size, int(body.packed), packed_bytes, body.data, body.upload)
