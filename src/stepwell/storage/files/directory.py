"""A data directory: its files, and the lock that gives it to one manager at a time.

The lock is an flock on a file, which the kernel releases when its holder ends, however that happens. There is no stale
lock to clean up. The file also names the holder, for the error message of the second manager.

A directory with other files, and without a database, is refused: it is more likely a mistake, such as a home directory
or the directory of a project, than the place for a new database.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.storage.files.mark import MARK
from stepwell.storage.files.private_files import open_private, require_private_database, sync_directory
from stepwell.storage.files.validity import VALIDITY
from stepwell.text import quoted

DATABASE: Final = "stepwell.sqlite"
LOCK: Final = "lock"

_NEUTRAL: Final = frozenset(
    {
        LOCK,
        *(f"{DATABASE}{suffix}" for suffix in ("-wal", "-shm", "-journal")),
        *(f"{MARK}{suffix}" for suffix in ("", ".new")),
        VALIDITY,
        "lost+found",
        ".gitignore",
        ".gitkeep",
    }
)
"""Names that an empty directory may have: of the first start that was interrupted, a new file system, a repository."""


def _make_private(path: Path) -> None:
    """Create a directory with access for its user only, whatever the umask is.

    One that another process has made meanwhile is left as it is, and examined like any other.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(0o700)


def _is_foreign(entry: os.DirEntry[str], beside_socket: str) -> bool:
    """Return True if an entry is neither one of ours, nor neutral, nor a socket or a file that belongs to ours."""
    if entry.name in _NEUTRAL or entry.name.startswith(beside_socket):
        return False
    return not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)


class DataDirectory:
    """A locked data directory. It is created with access for its user only, unless it exists.

    An existing one must have that access already (see `private_files`): its mode is not changed behind the user's back.
    Raise `StartFailed` if the directory cannot be used, is locked by another manager, has other files and no database,
    or must exist and does not.
    """

    def __init__(self, path: str | os.PathLike[str], holder: str, *, must_exist: bool = False) -> None:
        self.path = Path(path).absolute()
        self._made: list[Path] = []  # created directories, the lowest first
        try:
            if must_exist and not self.database.exists():
                raise StartFailed(f"the data directory {str(self.path)!r} is gone: nothing was put in its place")
            self._refuse_other_files(holder)
            self._make(self.path)
            require_private_database(self.database)
            self._lock = open_private(self.path / LOCK, os.O_RDWR | os.O_CREAT)
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
        """The path of the database."""
        return self.path / DATABASE

    def sync(self) -> None:
        """Make the directory entries durable.

        SQLite syncs the contents of its files. The entry of the database in its directory, and that of each created
        directory in its parent, would otherwise be lost with the power.
        """
        for path in (self.path, *(each.parent for each in self._made)):
            sync_directory(path)

    def _refuse_other_files(self, holder: str) -> None:
        """Raise `StartFailed` if the directory has no database and files that are not ours.

        The manager's socket may be in the directory, and the file that belongs to it; so may the socket of an earlier
        one.
        """
        if self.database.exists() or not self.path.is_dir():
            return
        address = Path(holder).absolute()
        beside_socket = f"{address.name if address.parent == self.path else DATABASE}."
        with os.scandir(self.path) as entries:
            others = (each.name for each in entries if _is_foreign(each, beside_socket))
            found = sorted(islice(others, limits.OTHER_FILES_SHOWN + 1))
        if found:
            shown = ", ".join(map(quoted, found[: limits.OTHER_FILES_SHOWN]))
            more = " and others" if len(found) > limits.OTHER_FILES_SHOWN else ""
            raise StartFailed(
                f"the data directory {str(self.path)!r} has no database of stepwell, but other files ({shown}{more}): "
                "give a new or an empty directory; nothing was changed"
            )

    def _make(self, path: Path) -> None:
        """Create a directory and its missing parents, with access for this user only. Remember them for `sync`."""
        if not path.is_dir():
            self._make(path.parent)
            _make_private(path)
            self._made.insert(0, path)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _claim(self, holder: str) -> None:
        """Take the lock, and write the holder's pid and address into the lock file.

        The file is never deleted: a process that has opened it but not locked it yet would otherwise lock a file that
        no longer has a name.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(
                f"the data directory {str(self.path)!r} is in use by {self._holder()}: "
                "connect to that manager, stop it, or give another directory"
            ) from None
        except OSError as error:
            raise StartFailed(f"the data directory {str(self.path)!r} cannot be locked: {error.strerror}") from error
        with suppress(OSError):  # on a full disk the lock is valid, and only the description is missing
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, json.dumps({"pid": os.getpid(), "address": holder}).encode(), 0)

    def _holder(self) -> str:
        """Return a description of the manager that holds the lock."""
        try:
            found = json.loads(os.pread(self._lock, limits.LOCK_FILE_BYTES_MAX, 0))
            return f"process {found['pid']}, which listens at {found['address']!r}"
        except (ValueError, KeyError, TypeError):
            return "another manager"
