"""A copy of a data directory, made while its manager goes on writing.

The copy is a history of its own from there on, with an epoch of its own: nobody who was connected to the original may
take it for that. So it has no sessions and no remembered replies, and its leases are over: the first manager that
serves it gives their plans back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepwell.errors import InvalidArgument, StartFailed, StoreDamaged, StoreFailed
from stepwell.storage.directory import DATABASE
from stepwell.storage.readonly import find_database, inspect, number_of, schema_of
from stepwell.storage.schema import VERSION, begin_anew

_PARTIAL: Final = "copy.partial"
_DAMAGED: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT}
_STEPS_PER_LOOK: Final = 1_000  # of SQLite's machine: so often a Ctrl-C is seen


class Copied(Struct, frozen=True):
    """What a backup has."""

    revision: int
    epoch: str
    bytes: int


def back_up(source: Path, target: Path) -> Copied:
    """Copy a data directory to a new one, which is there entirely or not at all."""
    database = find_database(source)
    target = _new_directory(source, target)
    with _workshop(target) as workshop:
        partial = workshop / _PARTIAL
        with _explained(target):
            inspect(database, lambda db: _copy(db, partial))
            copied = _begin_anew(partial)
            _sync(partial)
            partial.rename(workshop / DATABASE)
            _sync(workshop)
            try:
                workshop.rename(target)  # an empty directory makes way, nothing else does
            except OSError as error:
                raise InvalidArgument(f"{str(target)!r} cannot be made ({error.strerror}): give another one") from error
            _sync(target.parent)
    return copied


def _new_directory(source: Path, target: Path) -> Path:
    """Where the backup goes, or why not there."""
    target, source = target.resolve(), source.resolve()
    if target == source or source in target.parents:
        raise InvalidArgument(f"{str(target)!r} is in the data directory itself: give a place outside of it")
    if not target.parent.is_dir():
        raise InvalidArgument(f"there is no directory {str(target.parent)!r}: make it first")
    try:
        is_free = not target.exists() or not any(target.iterdir())
    except OSError:  # it is no directory, or not ours
        is_free = False
    if not is_free:
        raise InvalidArgument(f"{str(target)!r} is there already, and not empty: give a new directory")
    return target


@contextlib.contextmanager
def _workshop(target: Path) -> Generator[Path]:
    """A directory beside the target, of ours alone. What is in it when we are done goes with it."""
    try:
        workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise InvalidArgument(
            f"nothing can be written in {str(target.parent)!r} ({error.strerror}): give another place"
        ) from error
    try:
        yield workshop
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


@contextlib.contextmanager
def _explained(target: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from error
        if code in _DAMAGED:
            raise StoreDamaged(f"the data directory cannot be copied: {error}; see `stepwell doctor`") from error
        raise _unwritable(target, error) from error
    except OSError as error:
        raise _unwritable(target, error) from error


def _unwritable(target: Path, error: Exception) -> StoreFailed:
    return StoreFailed(
        f"the backup {str(target)!r} cannot be written ({error}): make room; nothing of it was left there"
    )


def _copy(db: sqlite3.Connection, partial: Path) -> None:
    """In one read, so that it is one revision; rows alone, without the room that deleted ones have left."""
    schema = schema_of(db)
    if schema is None:
        raise InvalidArgument("there is nothing in the data directory yet: start a manager on it first")
    if schema != VERSION:
        raise StartFailed(
            f"the data directory has schema {schema}, and this stepwell {VERSION}: use the one that serves it"
        )
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    db.set_progress_handler(_go_on, _STEPS_PER_LOOK)
    db.execute("VACUUM INTO ?", (str(partial),))


def _go_on() -> int:
    """Called so that Python runs at all while SQLite copies: only there is a Ctrl-C seen."""
    return 0


def _begin_anew(partial: Path) -> Copied:
    with closing(sqlite3.connect(partial, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")  # as a manager wants it, so that none has to change it
        db.execute("BEGIN IMMEDIATE")
        epoch = begin_anew(db)
        db.execute("COMMIT")
        found = [str(line) for (line,) in db.execute("PRAGMA quick_check")]
        if found != ["ok"]:
            raise StoreDamaged(f"the copy is not whole ({found[0]}): see `stepwell doctor`")
        revision = number_of(db, "SELECT revision FROM store")
    return Copied(revision, epoch, partial.stat().st_size)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
