"""The validity file: the time up to which clients may read the index of this manager's fragments in shared memory.

Clients read committed fragments there without a request, also for a moment after the manager has died. The next manager
of the data directory must not acknowledge a write during this moment, because a client could then read what was there
before. So each manager writes the time here before it lets clients read up to it, and the next manager waits for it.

The time is that of the machine's clock since its start, in nanoseconds. After a restart of the machine it means
nothing, and costs the next manager no more than one period of validity.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from stepwell.storage.private_files import open_private

VALIDITY: Final = "stepwell.valid"
_DIGITS: Final = 20
_UNKNOWN: Final = 2**63


class ValidityFile:
    """The file of one data directory. The manager that holds the lock of the directory uses it, in its one thread.

    `found` is the time that the manager before has left: 0 if there was none, or it has ended in order. The file is
    made when it is first written, and then written over in place, so that a full disk does not matter.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / VALIDITY
        self._descriptor: int | None = None
        self.found = self._read()

    def _read(self) -> int:
        """Return the time in the file. If it cannot be read, the manager has to wait as long as it ever does."""
        try:
            self._descriptor = open_private(self._path, os.O_RDWR)
            return int(os.pread(self._descriptor, _DIGITS, 0))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            return _UNKNOWN

    def write(self, until_ns: int) -> None:
        """Replace the time. Raise `OSError` if it cannot be written: then clients must not read."""
        if self._descriptor is None:
            self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
        text = b"%0*d" % (_DIGITS, until_ns)
        if os.pwrite(self._descriptor, text, 0) != len(text):
            raise OSError("the validity could be written in part only")

    def close(self) -> None:
        """Close the file, which stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
