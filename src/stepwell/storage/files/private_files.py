"""The rules for a data directory and its files: they belong to this user, and no link leads elsewhere.

A directory that others may write is not trusted: a `lock` that is a symbolic link would have its target overwritten,
and a database that is one would be another program's. So the directory has to be the user's own, without access for
others. The path that the user gives may contain links. Inside the directory no link is followed, and each file must be
a regular file of this user with one name.

SQLite opens its files by path, and no option of its URIs keeps it from following a link. They are examined before,
which is enough: in a directory that only this user can write, no other user can exchange them afterwards.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
"""SQLite's files: the database, its log, the index of the log, and the journal of its creation."""

_OTHERS: Final = 0o077


class NotPrivateError(OSError):
    """A directory, or a file in it, is not this user's alone. `strerror` says what to do."""

    def __init__(self, problem: str) -> None:
        super().__init__(0, problem)


def require_private_directory(path: Path) -> None:
    """Raise `NotPrivateError` unless a directory is this user's own, without access for others."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise NotPrivateError(
            f"it belongs to user {found.st_uid}, and you are {os.geteuid()}: give a directory of yours"
        )
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivateError(f"other users have access to it (mode {mode:04o}): run `chmod 700 {path}`")


def require_private_file(path: Path) -> None:
    """Raise `NotPrivateError` unless a file is a regular file of this user. A missing file is none of the problems."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    _require_private(path, found)


def require_private_database(database: Path) -> None:
    """Raise `NotPrivateError` unless the directory of a database and all of SQLite's files are this user's alone."""
    require_private_directory(database.parent)
    for suffix in _SUFFIXES:
        require_private_file(database.with_name(f"{database.name}{suffix}"))


def open_private(path: Path, flags: int) -> int:
    """Open a file of a data directory without following a link, and return its descriptor.

    A new file gets access for this user only. Raise `NotPrivateError` unless it is a regular file of this user, and
    other `OSError`s as `os.open` does.
    """
    require_private_file(path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        _require_private(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_private(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise NotPrivateError(f"{path.name!r} in it is a symbolic link, which is not followed: remove the link")
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivateError(f"{path.name!r} in it is no regular file: remove it")
    if found.st_uid != os.geteuid():
        raise NotPrivateError(f"{path.name!r} in it belongs to user {found.st_uid}: remove it")
    if found.st_nlink > 1:
        raise NotPrivateError(
            f"{path.name!r} in it has {found.st_nlink} names (hard links): copy it, and remove the link"
        )
