"""A manager and workers for one command, where nobody runs any.

What they know of a directory is kept in the user's cache, so that the next command on the same directory only has to
look at what has changed. It is a cache: what is damaged there, or was written by another version, is made anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from stepwell.cli.common.output import print_error
from stepwell.client.client import Client
from stepwell.errors import StartFailed, StoreDamaged
from stepwell.runtime import Runtime
from stepwell.storage.store import Durability
from stepwell.telemetry import LogLevel

_LOCK: Final = "command.lock"
_STATE: Final = "state"


def cache_directory(root: Path) -> Path:
    """The directory in the user's cache that is for one directory of theirs."""
    real = root.resolve()
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    name = "".join(each if each.isalnum() else "-" for each in real.name)[:40]
    return _cache_root() / f"{name}-{digest}"


def _cache_root() -> Path:
    given = os.environ.get("XDG_CACHE_HOME")
    cache_root = Path(given) if given and Path(given).is_absolute() else Path.home() / ".cache"
    return cache_root / "stepwell"


@contextmanager
def embedded_client(
    root: Path, project: str, *, workers: int | None = None, use_cache: bool = True
) -> Generator[Client]:
    """A client of a runtime that knows of a directory what it knew the last time, and ends with the block."""
    with ExitStack() as stack:
        found = _start_with_cache(cache_directory(root), workers, stack) if use_cache else _start(None, workers)
        runtime = stack.enter_context(found)
        yield stack.enter_context(runtime.client([project]))


def _start_with_cache(directory: Path, workers: int | None, stack: ExitStack) -> Runtime:
    """With what was kept; or with nothing, where it cannot be used; or, where nothing can be kept, without."""
    state = directory / _STATE
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        stack.enter_context(_exclusive_lock(directory))
        try:
            return _start(state, workers)
        except (StartFailed, StoreDamaged) as error:
            if not state.exists():
                raise
            print_error(f"what was kept cannot be used, and is made anew: {error.message}")
            shutil.rmtree(state)
            return _start(state, workers)
    except (OSError, StartFailed) as error:
        print_error(f"nothing is kept for the next time: {error}")
        return _start(None, workers)


@contextmanager
def _exclusive_lock(directory: Path) -> Generator[None]:
    """One command at a time: another one on the same directory waits."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
    durability = None if state is None else Durability.PROCESS.value
    return Runtime.start(workers=workers, data_dir=state, durability=durability, log_level=LogLevel.ERROR)
