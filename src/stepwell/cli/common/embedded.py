"""A manager and workers for one command, for users who do not run a manager.

The runtime starts with the command and ends with it. Its state is kept in the user's cache directory, one directory for
each source, so that the next command on the same source only reads files that have changed. It is a cache: if it is
damaged or was written by another version, it is deleted and built again; if nothing can be written, the command works
without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from stepwell.cli.common.output import print_error
from stepwell.client.client import Client
from stepwell.errors import StartFailed, StoreDamaged
from stepwell.ingest.secret_policy import SecretPolicy
from stepwell.runtime import Runtime
from stepwell.storage.store import Durability
from stepwell.telemetry import LogLevel

_LOCK: Final = "command.lock"
_STATE: Final = "state"


def cache_directory(root: Path, policy: SecretPolicy = SecretPolicy.REDACT) -> Path:
    """Return the directory in the user's cache that belongs to one source directory and one policy about secrets.

    Its name has the last part of the path, for humans, and a hash of the whole path, because two projects can have the
    same last part. A cache with secrets has another name than one without, because receipts and free pages of a
    database keep texts that were deleted.
    """
    return _cache_root() / f"{_cache_name(root)}-{policy.value}"


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


@contextmanager
def embedded_client(directory: Path | None, project: str, *, workers: int | None = None) -> Generator[Client]:
    """Yield a client of a runtime that lives as long as the block. With a directory for a cache, its state survives
    until the next time.
    """
    with ExitStack() as stack:
        found = _start(None, workers) if directory is None else _start_with_cache(directory, workers, stack)
        runtime = stack.enter_context(found)
        yield stack.enter_context(runtime.client([project]))


def _start_with_cache(directory: Path, workers: int | None, stack: ExitStack) -> Runtime:
    """Start a runtime on the cached state. If the state cannot be used, start on an empty one; if nothing can be kept,
    on none.

    A data directory belongs to one manager at a time, so the lock is held until `stack` is closed.
    """
    state = directory / _STATE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _tighten(directory, state)
        stack.enter_context(_exclusive_lock(directory))
        try:
            return _start(state, workers)
        # A damaged database, or one of a later version. The state can be built again, so it is deleted instead of
        # repaired.
        except (StartFailed, StoreDamaged) as error:
            if not state.exists():
                raise
            print_error(f"the cache cannot be used, and is built again: {error.message}")
            shutil.rmtree(state)
            return _start(state, workers)
    except (OSError, StartFailed) as error:
        print_error(f"nothing is cached for the next time: {error}")
        return _start(None, workers)


def _tighten(*directories: Path) -> None:
    """Take the access of others away from directories of the cache.

    A manager refuses a data directory that others can enter. The cache is stepwell's own, so that it may change the
    mode of one that an earlier version, or a copy, has made with another mode. A link, or a directory of another user,
    is left as it is.
    """
    for directory in directories:
        with suppress(FileNotFoundError):
            found = directory.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                directory.chmod(0o700)


@contextmanager
def _exclusive_lock(directory: Path) -> Generator[None]:
    """Hold an exclusive lock on the cache directory for the duration of the block. A second command waits, and says so.

    The lock is a `flock`, which the kernel releases when the process dies.
    """
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_error(f"another command is at work with {str(directory)!r}: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _start(state: Path | None, workers: int | None) -> Runtime:
    """Start a runtime that logs errors only. Its writes survive the process, not a loss of power: a cache needs no
    more.
    """
    durability = None if state is None else Durability.PROCESS.value
    return Runtime.start(workers=workers, data_dir=state, durability=durability, log_level=LogLevel.ERROR)
