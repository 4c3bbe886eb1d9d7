"""Bugs of the durable store: commits that are torn, not flushed or incomplete."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from stepwell.domain.replies import Row
from stepwell.domain.state import State
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.manager.journal import Journal
from stepwell.storage import redo_log, schema, sqlite
from stepwell.storage.files.mark import Mark
from stepwell.storage.sql import Database
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import CommitBatch, Durability
from tests.simulator.bugs.registry import bug, patched


@bug("A batch is written without a transaction, so that a crash leaves a part of it.")
def commit_without_transaction() -> AbstractContextManager[None]:
    def commit(self: SqliteStore, batch: CommitBatch) -> None:
        try:
            self._write(batch)
            self._files.write_mark(self._latest())
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    return patched((SqliteStore, "commit", commit))


def _with_synchronous(mode: str) -> AbstractContextManager[None]:
    def set_durability(db: Database, _durability: Durability) -> None:
        db.execute(f"PRAGMA synchronous = {mode}")

    return patched((sqlite, "set_durability", set_durability))


@bug("Commits at durability `disk` are not flushed at all (synchronous = OFF).")
def synchronous_off() -> AbstractContextManager[None]:
    return _with_synchronous("OFF")


@bug("Commits at durability `disk` are flushed at checkpoints only (synchronous = NORMAL).")
def synchronous_normal() -> AbstractContextManager[None]:
    return _with_synchronous("NORMAL")


@bug("A slice of the redo log is deleted without having been moved into the tables.")
def slice_not_applied() -> AbstractContextManager[None]:
    return patched((redo_log, "_execute", lambda *_: None))


@bug("The records that a killed manager has left in the redo log are thrown away by the next one.")
def log_left_behind_is_deleted() -> AbstractContextManager[None]:
    def delete(db: Database) -> None:
        db.execute("DELETE FROM redo_log")

    return patched((schema, "apply_all", delete))


@bug("The mark is written before the commit that it reports.")
def mark_before_commit() -> AbstractContextManager[None]:
    def commit(self: SqliteStore, batch: CommitBatch) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._write(batch)
            self._files.write_mark(Mark(self._row.epoch, self._row.commits, self._row.revision))
            self._db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    return patched((SqliteStore, "commit", commit))


@bug("A commit that fails is taken for a success, and the manager goes on.")
def failed_commit_ignored() -> AbstractContextManager[None]:
    def commit(self: SqliteStore, batch: CommitBatch) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._write(batch)
            self._db.execute("COMMIT")
            self._files.write_mark(self._latest())
        except (sqlite3.Error, OSError):
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                return

    return patched((SqliteStore, "commit", commit))


@bug("The recovered revision is that of the latest fragment, so that revisions are given twice after a restart.")
def revision_given_twice() -> AbstractContextManager[None]:
    restore = State.restore

    def restore_from_fragments(
        self: State, revision: int, rows: Iterable[Row], fragments: Sequence[FragmentEntry], *counters: int
    ) -> None:
        latest = max((entry.row.revision for entry in fragments), default=0)
        restore(self, min(revision, latest), rows, fragments, *counters)

    return patched((State, "restore", restore_from_fragments))


@bug("Recovery forgets the order of use: fragments are restored in the order of their creation.")
def order_of_use_forgotten() -> AbstractContextManager[None]:
    restore = State.restore

    def restore_by_serial(
        self: State, revision: int, rows: Iterable[Row], fragments: Sequence[FragmentEntry], *counters: int
    ) -> None:
        restore(self, revision, rows, sorted(fragments, key=lambda entry: entry.row.serial), *counters)

    return patched((State, "restore", restore_by_serial))


@bug("A body is not written to the store with the row that refers to it, but later, when it becomes cold.")
def body_not_stored_with_row() -> AbstractContextManager[None]:
    put = Journal.put

    def put_packed(self: Journal, digest: bytes, size: int, data: bytes, *, packed: bool) -> None:
        if packed:
            put(self, digest, size, data, packed=packed)

    return patched((Journal, "put", put_packed))


@bug("The deletion of a fragment is not journaled, so that a restart brings the fragment back.")
def deletion_not_journaled() -> AbstractContextManager[None]:
    commit = SqliteStore.commit

    def commit_without_deletions(self: SqliteStore, batch: CommitBatch) -> None:
        back = len(batch.removed)
        batch.removed.clear()
        batch.row_count += back
        commit(self, batch)

    return patched((SqliteStore, "commit", commit_without_deletions))


@bug("The stored revision is that of the commit before.")
def stored_revision_is_late() -> AbstractContextManager[None]:
    write = SqliteStore._write

    def write_late(self: SqliteStore, batch: CommitBatch) -> int:
        latest = batch.revision
        batch.revision = self._row.revision
        added = write(self, batch)
        self._row = replace(self._row, revision=latest)
        return added

    return patched((SqliteStore, "_write", write_late))
