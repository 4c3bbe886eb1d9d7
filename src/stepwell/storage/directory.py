"""A data directory: the files in it, and the lock by which one manager at a time has it."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from stepwell.errors import StartFailed

DATABASE: Final = "stepwell.sqlite"
LOCK: Final = "lock"


class DataDirectory:
    """A directory of ours alone. The kernel takes back the lock when its holder ends, however that happens."""

    def __init__(self, path: str | os.PathLike[str], holder: str) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StartFailed(f"the data directory {str(self.path)!r} cannot be used: {reason}") from error
        try:
            self._claim(holder)
        except BaseException:
            os.close(self._lock)
            raise

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    def sync(self) -> None:
        """What was made in the directory is there after a loss of power, too."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        os.close(self._lock)

    def _claim(self, holder: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(
                f"the data directory {str(self.path)!r} is in use by {self._holder()}: "
                "connect to that manager, stop it, or give another directory"
            ) from None
        except OSError as error:
            raise StartFailed(f"the data directory {str(self.path)!r} cannot be locked: {error.strerror}") from error
        with suppress(OSError):  # on a full disk the lock holds all the same, and only says less
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, json.dumps({"pid": os.getpid(), "address": holder}).encode(), 0)

    def _holder(self) -> str:
        try:
            found = json.loads(os.pread(self._lock, 4096, 0))
            return f"process {found['pid']}, which listens at {found['address']!r}"
        except (ValueError, KeyError, TypeError):
            return "another manager"
