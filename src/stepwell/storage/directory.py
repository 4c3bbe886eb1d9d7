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


def boot_id() -> str:
    """Which start of the machine this is: what no disk had is gone with the last one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class DataDirectory:
    """A directory of ours alone. The kernel takes back the lock when its holder ends, however that happens."""

    def __init__(self, path: str | os.PathLike[str], holder: str, *, must_exist: bool = False) -> None:
        self.path = Path(path).absolute()
        self._made: list[Path] = []  # the directory itself and those above it, the lowest first
        try:
            if must_exist and not self.database.exists():
                raise StartFailed(f"the data directory {str(self.path)!r} is gone: nothing was put in its place")
            self._make(self.path)
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
        """What was made in the directory, and the directory itself, are there after a loss of power, too."""
        for path in (self.path, *(each.parent for each in self._made)):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _make(self, path: Path) -> None:
        if not path.is_dir():
            self._make(path.parent)
            path.mkdir(mode=0o700, exist_ok=True)
            self._made.insert(0, path)

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
