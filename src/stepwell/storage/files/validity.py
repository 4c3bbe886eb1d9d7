"""The validity file: the time up to which clients may read the index of this manager's fragments in shared memory.

Clients read committed fragments there without a request, also for a moment after the manager has died. The next manager
of the data directory must not acknowledge a write during this moment, because a client could then read what was there
before. So each manager writes the time here before it lets clients read up to it, and the next manager waits for it.

The time is that of the machine's clock since its start, in nanoseconds, beside the id of the time namespace in which it
was read. After a restart of the machine it means
nothing, and costs the next manager no more than one period of validity.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from stepwell.boot import clock_namespace
from stepwell.storage.files.private_files import open_private

VALIDITY: Final = "stepwell.valid"
_DIGITS: Final = 20
_BYTES_MAX: Final = 100
_UNKNOWN: Final = 2**63


class ValidityFile:
    """The file of one data directory. The manager that holds the lock of the directory uses it, in its one thread.

    `found` is the time that the manager before has left: 0 if there was none, or it has ended in order. The file is
    opened when it is first written, and then written over in place, so that a full disk does not matter.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / VALIDITY
        self._descriptor: int | None = None
        self._clock = clock_namespace().encode()
        self.found = self._read()

    def _read(self) -> int:
        """Return the time in the file. If it means nothing here, the manager has to wait as long as it ever does."""
        try:
            descriptor = open_private(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        except OSError:
            return _UNKNOWN
        try:
            until_ns, _, clock = os.pread(descriptor, _BYTES_MAX, 0).rstrip().partition(b" ")
        finally:
            os.close(descriptor)
        return int(until_ns) if until_ns.isdigit() and (clock == self._clock or not int(until_ns)) else _UNKNOWN

    def write(self, until_ns: int) -> None:
        """Replace the time. Raise `OSError` if it cannot be written: then clients must not read."""
        if self._descriptor is None:
            self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
            os.ftruncate(self._descriptor, 0)
        text = b"%0*d %b\n" % (_DIGITS, until_ns, self._clock)
        if os.pwrite(self._descriptor, text, 0) != len(text):
            raise OSError("the validity could be written in part only")

    def close(self) -> None:
        """Close the file, which stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
