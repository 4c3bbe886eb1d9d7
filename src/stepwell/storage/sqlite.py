"""The durable store: one SQLite database in a data directory, written by one manager and readable by other tools.

A turn is one transaction: one row in the redo log (see `redo_log`), and the bytes of new bodies. The other tables
follow later, in slices. At `disk` durability the commit returns when the write-ahead log is on the disk, at `process`
when the kernel has it. Then the commit is noted in the mark (see `mark`). Nothing is acknowledged before. When a commit
fails the manager stops, because after a failed flush the contents of the disk are unknown, and a second attempt could
succeed without having written them.

Opening happens in one open transaction: migration, reading and counting of this start become durable by `start_writing`
only, after the manager has checked the state. A start that fails changes nothing.

Large bodies are deleted in small steps, a few parts with each commit, because SQLite has to read every page that it
frees.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec.structs import astuple, replace

from stepwell import limits
from stepwell.domain.events import AnyEvent
from stepwell.domain.tiers.model import ENCODING
from stepwell.errors import StartFailed, StoreDamaged, StoreFailed
from stepwell.identifiers import new_id
from stepwell.storage import redo_log, rows
from stepwell.storage.changes import changes_of
from stepwell.storage.database import (
    may_have_lost_commits,
    set_durability,
    translated_errors,
)
from stepwell.storage.files.mark import Mark
from stepwell.storage.files.store_files import StoreFiles
from stepwell.storage.load import load_from, read_store_row
from stepwell.storage.loss import require_no_loss
from stepwell.storage.rows import StoreRow
from stepwell.storage.schema import migrate, start_new_epoch
from stepwell.storage.sql import Database
from stepwell.storage.store import CommitBatch, Durability, StoredState
from stepwell.storage.table import Values

_events = msgspec.json.Decoder(AnyEvent)


class SqliteStore:
    """The database, and the one connection that writes it. Implements `Store`.

    The store owns its files, and closes them. Only the manager's thread uses it. `_numbers` has the
    number of each body by digest, so that the table needs no index; `_uploads` the upload of each body in parts;
    `_garbage` the uploads whose parts are to be deleted. `_row` is the row of the store after the latest commit, and
    `_table_row` the one that the tables have; the records in between are in the redo log. The tables follow as long as
    they are behind commit `_follow_to`.
    """

    def __init__(self, files: StoreFiles, durability: Durability, encoding: str | None = None) -> None:
        self.durability = durability
        self._files = files
        self._row: StoreRow
        self._table_row: StoreRow
        self._follow_to = self._log_bytes = 0
        self._guard = files.open_guard()
        try:
            with translated_errors("the database"):
                require_no_loss(files, self._guard)
            self._db = files.open_database()
            try:
                self._stored = self._prepare(encoding)
            except BaseException:
                self._db.close()
                raise
        except BaseException:
            self._close_guard()
            raise

    @property
    def database(self) -> str:
        """The path of the database."""
        return self._files.database

    @property
    def has_garbage(self) -> bool:
        """True if parts of uploads are to be deleted."""
        return bool(self._garbage)

    def load(self) -> StoredState | None:
        """Return the state that was there when the directory was opened.

        A second call returns None, so that it can be freed.
        """
        stored, self._stored = self._stored, None
        return stored

    @property
    def predecessor_valid_until_ns(self) -> int:
        """The time up to which clients may read what the manager before has published."""
        return self._files.read_validity()

    def note_validity(self, until_ns: int) -> None:
        """Write down up to when clients may read what this manager publishes. Raise `OSError` if it fails."""
        self._files.write_validity(until_ns)

    def start_writing(self) -> None:
        """Commit the transaction of the start, release the read-only guard, write the mark and sync the directory.

        The commit is flushed at any durability, because the next manager has to see how this one commits. From here on
        this manager owns the history: the number of starts is durable, so that no later manager uses its range of
        segment numbers.
        """
        try:
            self._db.execute("COMMIT")
            set_durability(self._db, self.durability)
            self._close_guard()
            self._files.create_mark(self._latest())
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        self._row = replace(self._row, has_mark=1)  # the next commit says so

    def check_present(self) -> None:
        """Raise `StoreFailed` if the database or the mark at its path is not the one that was opened.

        Writes to a deleted file succeed, so that without this check a manager would acknowledge commits that nothing
        can read. It runs at intervals and not with each commit, because each one costs a system call.
        """
        if not self._files.are_present():
            raise StoreFailed(
                f"the database {self.database!r} or its mark was removed, or another one put in its place: what is "
                "acknowledged would be lost"
            )

    def sync_mark(self) -> None:
        """Flush the mark to the disk. Raise `StoreFailed` if that fails."""
        try:
            self._files.sync_mark()
        except OSError as error:
            raise self._failed(error) from error

    def commit(self, batch: CommitBatch) -> None:
        """Write a batch in one transaction, and then the mark. Raise `StoreFailed` if one of them fails.

        While the tables follow the log, the same transaction has a slice of it, larger than what the batch has added.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
            added = self._write(batch)
            if self._log_bytes > limits.REDO_BYTES_MAX:
                self.follow()
            if self._is_following:
                self._apply_slice(max(limits.REDO_SLICE_BYTES, 2 * added))
            self._db.execute("COMMIT")
            self._files.write_mark(self._latest())
        except (sqlite3.Error, OSError, StoreDamaged) as error:
            raise self._failed(error) from error

    def follow(self) -> None:
        """Let the tables follow up to the latest commit: a slice of the log with each commit, and with each `work`."""
        self._follow_to = self._row.commits

    def work(self) -> bool:
        """Move a slice of the log into the tables, if they are to follow. Return True if there is more.

        Raise `StoreFailed` if that fails.
        """
        if not self._is_following:
            return False
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._apply_slice(limits.REDO_SLICE_BYTES)
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError, StoreDamaged) as error:
            raise self._failed(error) from error
        return self._is_following

    @property
    def _is_following(self) -> bool:
        return self._table_row.commits < self._follow_to

    def _apply_slice(self, bytes_max: int) -> None:
        """Move a slice of the log into the tables, inside the open transaction, and trim the events in them."""
        applied = redo_log.apply_slice(self._db, bytes_max, self._is_unanswered)
        assert applied is not None
        self._table_row = applied.store
        self._log_bytes -= applied.bytes
        self._events += applied.events
        if self._events > limits.EVENTS_KEPT + limits.EVENTS_TRIMMED_PER_TURN:
            self._trim_events(applied.events + limits.EVENTS_TRIMMED_PER_TURN)

    def _is_unanswered(self, reply: Values) -> bool:
        """Return False for a reply that has reached its caller: a logged change deletes it."""
        session_id, request_id, *_ = reply
        session = self._sessions.get(cast(str, session_id))
        return session is None or cast(int, request_id) >= session.answered

    def _latest(self) -> Mark:
        """Return the latest commit, for the mark."""
        return Mark(self._row.epoch, self._row.commits, self._row.revision)

    def _failed(self, error: sqlite3.Error | OSError | StoreDamaged) -> StoreFailed:
        """Return the error for a failed write."""
        return StoreFailed(
            f"the data directory {self._files.path!r} cannot be written ({error}): "
            "nothing of this turn was acknowledged; make room or mend the disk, then start again"
        )

    def read(self, digest: bytes) -> tuple[bool, Iterator[bytes]] | None:
        """Return a flag for packed bytes and the bytes of a body in slices, or None if it is not stored."""
        number = self._numbers.get(digest)
        found = self._db.execute("SELECT packed, data, upload FROM bodies WHERE number = ?", (number,)).fetchone()
        if found is None:
            return None
        packed, data, upload = found
        return bool(packed), iter((data,)) if data is not None else self._parts(upload)

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        """Return the events behind a revision: whole revisions, at least `limit` events if there are as many.

        The first query finds the revision at which `limit` events are reached; the second one reads up to its end.
        Raise `StoreDamaged` if an event is not the one that was written.
        """
        with translated_errors("table events"):
            bound = self._db.execute(
                "SELECT max(revision) FROM "
                "(SELECT revision FROM events WHERE revision > ? ORDER BY revision, ordinal LIMIT ?)",
                (revision, limit),
            ).fetchone()[0]
            upto = bound if bound is not None else revision
            found = self._db.execute(rows.SELECT_EVENTS, (revision, upto)).fetchall()
            texts = [rows.EVENTS.opened(each)[-1] for each in found]
            if len(texts) < limit:
                texts += redo_log.events_after(self._db, revision, limit - len(texts))
        return [_events.decode(cast(str, each)) for each in texts]

    def oldest_event(self) -> int:
        """Return the revision behind which no event is missing."""
        return self._row.events_after

    def close(self) -> None:
        """Close the connections and release the lock of the directory."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._close_guard()
        self._files.close()

    def _close_guard(self) -> None:
        """Close the read-only connection that protected the database during the start."""
        if self._guard is not None:
            with contextlib.suppress(sqlite3.Error):
                self._guard.close()
            self._guard = None

    def _prepare(self, encoding: str | None) -> StoredState | None:
        """Migrate and read the tables, and count this start, in a transaction that only `start_writing` commits.

        Return the stored state, or None for a new database. If commits may have been lost with the machine, a new epoch
        begins.
        """
        db = self._db
        with translated_errors("the database"):
            db.execute("BEGIN IMMEDIATE")
            if is_new := migrate(db) == 0:
                first = StoreRow(new_id(), encoding or ENCODING, 0, 0, 0, 1, 0, 0, "", self.durability.value)
                db.execute(rows.STORE.put, rows.store_values(first))
            elif may_have_lost_commits(read_store_row(db), self._files.boot_id()):
                rows.verify(db)
                start_new_epoch(db)
            stored = None if is_new else load_from(db)
            found = read_store_row(db)
            self._sessions = {each.session_id: each for each in stored.sessions} if stored else {}
            self._row = replace(
                found,
                starts=found.starts + 1,
                boot=self._files.boot_id(),
                durability=self.durability.value,
                commits=found.commits + 1,
            )
            self._table_row = self._row
            redo_log.write_store_row(db, astuple(self._row))
            self.epoch, self.encoding, self.starts = found.epoch, found.encoding, self._row.starts
            if encoding not in {None, self.encoding}:
                raise StartFailed(
                    f"the data directory counts tokens in {self.encoding!r}, not in {encoding!r}: leave encoding out"
                )
            self._events = _number(db, "SELECT count(*) FROM events")
            self._next_upload = _number(db, "SELECT ifnull(max(upload), 0) + 1 FROM body_parts")
            self._numbers: dict[bytes, int] = dict(db.execute("SELECT digest, number FROM bodies"))
            if stored is not None:  # with the digests of the bodies that were loaded, and not with objects of its own
                self._numbers = {body.digest: self._numbers[body.digest] for body, _ in stored.bodies}
            self._next_number = max(self._numbers.values(), default=0) + 1
            self._uploads = dict(db.execute("SELECT digest, upload FROM bodies WHERE upload IS NOT NULL"))
            parts = {upload for (upload,) in db.execute("SELECT DISTINCT upload FROM body_parts")}
            self._garbage = sorted(parts - set(self._uploads.values()))
        return stored

    def _write(self, batch: CommitBatch) -> int:
        """Write a batch inside the open transaction, and return the bytes of its record in the log."""
        changes = changes_of(batch, self._sessions)
        self._write_bodies(batch)
        self._delete_garbage()
        self._row = replace(
            self._row,
            revision=batch.revision,
            clock_ms=max(self._row.clock_ms, batch.now_ms),
            next_serial=batch.next_serial,
            tick=batch.tick,
            row_count=batch.row_count,
            commits=self._row.commits + 1,
        )
        added = redo_log.append(self._db, self._row, changes)
        self._log_bytes += added
        return added

    def _write_bodies(self, batch: CommitBatch) -> None:
        """Write new and changed bodies, and delete those without a reference.

        A body keeps its number when it is written anew in another form, because clients have the number in their
        handles. Parts of uploads are inserted as they arrive, before a body claims them; parts that no body needs
        become garbage.
        """
        db = self._db
        if batch.parts:
            db.executemany("INSERT INTO body_parts VALUES (?, ?, ?)", batch.parts)
        self._garbage += batch.abandoned
        if batch.bodies:
            for digest, body in batch.bodies.items():
                if digest in self._uploads:
                    self._garbage.append(self._uploads.pop(digest))
                if body is not None and body.upload is not None:
                    self._uploads[digest] = body.upload
            gone = [digest for digest, body in batch.bodies.items() if body is None and digest in self._numbers]
            if gone:
                db.executemany("DELETE FROM bodies WHERE number = ?", [(self._numbers.pop(each),) for each in gone])
            present = [body for body in batch.bodies.values() if body is not None]
            db.executemany(rows.PUT_BODY, [rows.body_values(self._number(body.digest), body) for body in present])
        if batch.packed_bytes:
            noted = [(size, size, self._numbers.get(digest)) for digest, size in batch.packed_bytes.items()]
            db.executemany(rows.NOTE_PACKED_BYTES, noted)

    def _number(self, digest: bytes) -> int:
        """Return the number of a body, and assign one to a new body.

        Numbers grow, so that new bodies are appended to the table. They are not reused while the manager runs.
        """
        number = self._numbers.get(digest)
        if number is None:
            number = self._numbers[digest] = self._next_number
            self._next_number += 1
        return number

    def _trim_events(self, count_max: int) -> None:
        """Delete the oldest events in the table, at most that many, down to the bound and by whole revisions.

        `events_after` records up to where events are missing, so that a watcher that resumes earlier is told that it
        lagged.
        """
        (bound,) = self._db.execute(
            "SELECT revision FROM events ORDER BY revision, ordinal LIMIT 1 OFFSET ?",
            (min(self._events - limits.EVENTS_KEPT, count_max),),
        ).fetchone()
        self._events -= self._db.execute("DELETE FROM events WHERE revision < ?", (bound,)).rowcount
        self._row = replace(self._row, events_after=bound - 1)
        self._table_row = replace(self._table_row, events_after=bound - 1)
        redo_log.write_store_row(self._db, astuple(self._table_row))

    def _delete_garbage(self) -> None:
        """Delete a few parts. SQLite has to read what it frees, so a large body is deleted over several commits."""
        left = limits.PARTS_TRIMMED_PER_TURN
        while self._garbage and left > 0:
            gone = self._db.execute(
                "DELETE FROM body_parts WHERE upload = ? AND part IN "
                "(SELECT part FROM body_parts WHERE upload = ? LIMIT ?)",
                (self._garbage[0], self._garbage[0], left),
            ).rowcount
            if gone < left:
                self._garbage.pop(0)
            left -= max(gone, 1)

    def body_number(self, digest: bytes) -> int:
        """Return the number of a stored body."""
        return self._numbers[digest]

    def next_upload(self) -> int:
        """Return a number that no upload has had."""
        self._next_upload += 1
        return self._next_upload - 1

    def _parts(self, upload: int) -> Iterator[bytes]:
        """Yield the parts of a body, each by a short read of its own.

        The consumer takes its time between two parts, and a read that stays open would prevent checkpoints of the log.
        """
        part = 0
        while found := self._db.execute(
            "SELECT data FROM body_parts WHERE upload = ? AND part = ?", (upload, part)
        ).fetchone():
            yield found[0]
            part += 1


def _number(db: Database, query: str) -> int:
    """Return the result of a query that gives one number."""
    (number,) = db.execute(query).fetchone()
    assert isinstance(number, int)
    return number
