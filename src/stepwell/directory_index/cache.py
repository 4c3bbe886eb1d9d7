"""The place of a directory's index in the user's cache, and the lock of those who write it.

Each source directory has one of its own, for each policy about secrets: receipts and rows have names and texts from the
files, so a cache that may have secrets is used only by commands that ask for them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from stepwell.ingest.secret_policy import SecretPolicy

_PRIVATE: Final = 0o700
_LOCK: Final = "command.lock"
_EARLIER_STATE: Final = "state"
"""The data directory that an earlier version kept here."""


class CacheDirectory(Struct, frozen=True):
    """The directory of one index: the file with it, the receipts, and the lock."""

    path: Path

    @property
    def index(self) -> Path:
        """The file with the index."""
        return self.path / "index"

    @property
    def receipts(self) -> Path:
        """The directory with the receipts."""
        return self.path / "receipts"

    def index_stamp(self) -> tuple[int, int] | None:
        """Return the inode and the time of the file with the index, which tell it from others; None without one."""
        try:
            found = self.index.stat(follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def prepare(self) -> None:
        """Make the directory, closed to other users. Raise `OSError` if it cannot be made."""
        self.path.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        self.receipts.mkdir(mode=_PRIVATE, exist_ok=True)
        for directory in (self.path, self.receipts):
            _tighten(directory)

    @contextmanager
    def locked(self, on_wait: Callable[[], None]) -> Generator[None]:
        """Hold the lock for the duration of the block; `on_wait` is called if another process has it.

        Raise `OSError` if there can be no lock, as on a read-only disk, and whatever `on_wait` raises. The lock is a
        `flock`, which the kernel releases when the process dies. The state of an earlier version goes, because nothing
        reads it any more.
        """
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            shutil.rmtree(self.path / _EARLIER_STATE, ignore_errors=True)
            yield
        finally:
            os.close(descriptor)


def cache_directory(root: Path, policy: SecretPolicy = SecretPolicy.REDACT) -> CacheDirectory:
    """Return the directory in the user's cache that belongs to one source directory and one policy about secrets.

    Its name has the last part of the path, for humans, and a hash of the whole path, because two projects can have the
    same last part.
    """
    return CacheDirectory(_cache_root() / f"{_cache_name(root)}-{policy.value}")


def delete_unredacted(root: Path) -> None:
    """Delete the cache of a source that an earlier version wrote, which redacted nothing, unless it is in use."""
    directory = _cache_root() / _cache_name(root)
    with suppress(OSError):
        descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
        finally:
            os.close(descriptor)


def _cache_name(root: Path) -> str:
    """Return the name of a source in the cache."""
    real = root.resolve()
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    name = "".join(each if each.isalnum() else "-" for each in real.name)[:40]
    return f"{name}-{digest}"


def _cache_root() -> Path:
    """Return `$XDG_CACHE_HOME/stepwell`, or `~/.cache/stepwell`. The XDG standard says to ignore a relative value."""
    given = os.environ.get("XDG_CACHE_HOME")
    cache_root = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return cache_root / "stepwell"


def _tighten(directory: Path) -> None:
    """Take the access of others away from a directory of the cache.

    The cache is stepwell's own, so that it may change a mode that an earlier version, or a copy, has made. A link, or a
    directory of another user, is refused: its owner could read what is written there, or replace it.
    """
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{str(directory)!r} is a link, or belongs to another user")
    if stat.S_IMODE(found.st_mode) != _PRIVATE:
        directory.chmod(_PRIVATE)
