"""Lost commits: the comparison of a database with its mark, and the decision of an operator to go on without them.

    mark                 database                   then
    damaged              any                        refused: nothing can be said about it
    none                 says that there is one     refused: the mark was removed, or the database copied without it
    none                 says that there is none    accepted: new, of an older version, or a backup
    any                  empty                      refused: the database or its log was removed
    of the same epoch    behind the mark            refused: its log is damaged, truncated or was removed
    of the same epoch    at the mark, or ahead      accepted
    of another epoch     says that there is one     refused: the commit that began an epoch is lost
    of another epoch     says that there is none    accepted: a backup was put here, or an epoch has begun

A database says that there is a mark (`has_mark`) from the first commit after the mark of its epoch was written. A kill
in between leaves a database that says nothing, with any mark.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from stepwell.errors import StartFailed, StoreDamaged
from stepwell.storage.database import may_have_lost_commits, open_to_write, translated_errors
from stepwell.storage.files.directory import DATABASE, DataDirectory
from stepwell.storage.files.mark import MARK, Mark, MarkFile, read_mark, remove_mark
from stepwell.storage.load import read_store_row
from stepwell.storage.redo_log import latest_store_row
from stepwell.storage.rows import StoreRow, verify
from stepwell.storage.schema import LOGGED_SINCE, migrate, start_new_epoch, version_of
from stepwell.storage.sql import Database

MARKED_SINCE: Final = 6
"""The first version of the tables with a number of commits."""


class MarkedFiles(Protocol):
    """The files of a store, as far as a loss of commits is found by them."""

    @property
    def path(self) -> str: ...
    def find_mark(self) -> Mark | StoreDamaged | None: ...
    def boot_id(self) -> str: ...


def require_no_loss(files: MarkedFiles, db: Database | None) -> None:
    """Raise `StoreDamaged` if commits of a database are lost, by its mark. `db` is None if there is no database yet.

    Raise `StartFailed` if the mark cannot be read, or is not this user's own file.
    """
    try:
        mark = files.find_mark()
    except OSError as error:
        raise StartFailed(f"the data directory {files.path!r} cannot be used: {error.strerror}") from error
    if problem := loss(Path(files.path), db, mark, files.boot_id()):
        raise StoreDamaged(problem)


def find_mark(directory: Path) -> Mark | StoreDamaged | None:
    """Return the mark of a directory, None if there is none, or the problem if it is damaged.

    A caller that examines the database of a running manager calls this before it begins to read the database: otherwise
    commits in between would look like lost ones.
    """
    try:
        return read_mark(directory)
    except StoreDamaged as error:
        return error


def loss(directory: Path, db: Database | None, mark: Mark | StoreDamaged | None, boot: str) -> str | None:
    """Return the problem if a database has lost commits, with what and where, or None.

    A database whose commits were not synced before the machine restarted has no problem: the next manager begins a new
    epoch. Raise `StoreDamaged` if the database cannot be read.
    """
    found = _stored_row(db)
    if found is not None and may_have_lost_commits(found, boot):
        return None
    problem = _problem(str(directory / DATABASE), str(directory / MARK), found, mark)
    return f"{problem}; {_remedy(directory)}" if problem else None


def accept_loss(directory: Path) -> str | None:
    """Begin a new epoch on a database that has lost commits, so that a manager starts there. Return the epoch.

    Return None if the database was empty: the next manager begins there. Raise `StartFailed` if a manager is running,
    and `StoreDamaged` if the database cannot be read or one of its rows is damaged. The lost commits stay lost; clients
    of the old epoch are told that their history is gone.
    """
    held = DataDirectory(directory, "stepwell doctor", must_exist=True)
    try:
        with closing(open_to_write(held.database)) as db, translated_errors("the database"):
            db.execute("BEGIN IMMEDIATE")
            if not version_of(db):  # nothing is left of the commits that the mark counts
                db.execute("ROLLBACK")
                remove_mark(held.path)
                return None
            migrate(db)
            verify(db)
            epoch = start_new_epoch(db)
            row = read_store_row(db)
            db.execute("COMMIT")
            MarkFile(held.path, Mark(epoch, row.commits, row.revision)).close()
            held.sync()
            return epoch
    finally:
        held.close()


def _stored_row(db: Database | None) -> StoreRow | None:
    """Return the row of the store, or None for an empty database. Older versions did not count their commits."""
    version = version_of(db) if db is not None else 0
    if db is None or not version:
        return None
    if version >= MARKED_SINCE:
        return (latest_store_row(db) if version >= LOGGED_SINCE else None) or read_store_row(db)
    with translated_errors("table store"):
        row = db.execute("SELECT epoch, revision FROM store").fetchone()
    return StoreRow(str(row[0]), "", 0, int(row[1]), 0, 0, 0, 0, "", "") if row else None


def _problem(database: str, mark_path: str, found: StoreRow | None, mark: Mark | StoreDamaged | None) -> str | None:
    """Return the problem by the table of this module, or None."""
    if isinstance(mark, StoreDamaged):
        return mark.message
    if mark is None:
        if found is not None and found.has_mark:
            return (
                f"the mark {mark_path!r} is missing, so that a loss of commits cannot be excluded: it was removed, or "
                "the database was copied without it"
            )
        return None
    marked = f"the mark {mark_path!r} has revision {mark.revision} (commit {mark.commits} of epoch {mark.epoch})"
    if found is None:
        return f"the database {database!r} is empty, and {marked}: the database or its log was removed or truncated"
    here = f"the database {database!r} is at revision {found.revision} (commit {found.commits} of epoch {found.epoch})"
    if mark.epoch == found.epoch:
        if mark.commits > found.commits:
            return (
                f"acknowledged writes are lost: {here}, and {marked}; the log {f'{database}-wal'!r} is damaged, "
                "truncated or was removed"
            )
        return None
    if found.has_mark:
        return (
            f"the mark is of another history: {here}, and {marked}; the log {f'{database}-wal'!r} is damaged, or one "
            "of the files was exchanged"
        )
    return None


def _remedy(directory: Path) -> str:
    return (
        "nothing was changed: put the missing files back, or restore a backup, or go on without the lost writes with "
        f"`stepwell doctor --data-dir {directory} --accept-loss`"
    )
