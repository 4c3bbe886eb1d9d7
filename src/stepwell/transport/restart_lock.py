"""The restart lock: it tells clients that a program starts the manager of an address again whenever it dies.

A client that has been connected knows from its manager whether to wait for a restart. A client that connects for the
first time finds only a socket at which no process listens, or no socket at all, because the manager was killed a moment
ago, or because there never was one. The difference is this lock: a file beside the socket that the supervising program
holds locked for as long as it restarts the manager. The kernel releases the lock when that program ends, however that
happens, so a lock that is left behind makes no client wait.

When the program gives up, it writes the reason into the file, and every client stops waiting. The file has its full
size from the beginning, because the usual reason is a full disk.

The lock is an open file description lock. It can be queried without being taken, so clients do not disturb each other
or the supervisor.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import weakref
from pathlib import Path
from typing import Final

import msgspec

from stepwell import limits
from stepwell.errors import StartFailed, StepwellError
from stepwell.protocol.messages import Refusal

_SUFFIX: Final = ".restarts"
_FLOCK: Final = struct.Struct("hhqqi4x")  # `struct flock` of fcntl.h: type, whence, start, length, pid
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in its place blocks no client
_WRITE_LOCK: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class RestartLock:
    """The lock of an address, held from its creation to `release`.

    The supervisor of a manager owns it and uses it from one thread at a time. Raise `StartFailed` if another program
    holds the lock, or if the file cannot be made.
    """

    def __init__(self, address: str) -> None:
        self._path = _path(address)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartFailed(f"the lock {str(self._path)!r} cannot be made: {error.strerror}") from error
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _WRITE_LOCK)
        except OSError as error:
            os.close(self._descriptor)
            raise StartFailed(f"another program restarts the manager at {address!r}: give another address") from error
        self._is_held = True
        self._write(b"")
        _held.add(self)

    def write_cause(self, error: StepwellError) -> None:
        """Write why the manager is not started again, for `read_cause`, before the lock is released."""
        encoded = msgspec.json.encode(Refusal.of(error, 0))
        if len(encoded) > limits.RESTART_LOCK_BYTES:  # without its details it fits
            encoded = msgspec.json.encode(Refusal(0, error.kind, error.message[: limits.ERROR_CHARS_MAX]))
        self._write(encoded)

    def _write(self, content: bytes) -> None:
        """Replace the content of the file, in its full size."""
        with contextlib.suppress(OSError):  # a disk without room for the file: then the reason is in the log only
            os.pwrite(self._descriptor, content.ljust(limits.RESTART_LOCK_BYTES), 0)

    def release(self) -> None:
        """Release the lock. The file stays, with the cause; a second call does nothing."""
        if self._is_held:
            self._is_held = False
            os.close(self._descriptor)


def is_restarting(address: str) -> bool:
    """Return True if a program is there that starts the manager of this address again when it dies."""
    try:
        descriptor = os.open(_path(address), _READ)
    except OSError:
        return False
    try:
        return _is_locked(descriptor)
    finally:
        os.close(descriptor)


def is_released(directory: int, name: str) -> bool:
    """Return True if an entry of an open directory is the restart lock of an address, and no program holds it."""
    if not name.endswith(_SUFFIX):
        return False
    descriptor = os.open(name, _READ, dir_fd=directory)
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode) and not _is_locked(descriptor)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Return True if a program holds the lock of an open file."""
    found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _WRITE_LOCK))
    return bool(found[0] != fcntl.F_UNLCK)


def read_cause(address: str) -> StepwellError | None:
    """Return why the manager of this address is not started again; None if no program has given it up."""
    try:
        descriptor = os.open(_path(address), _READ)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(descriptor, limits.RESTART_LOCK_BYTES), type=Refusal).error()
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None
    finally:
        os.close(descriptor)


def remove(address: str) -> None:
    """Remove the file of the lock, held or not."""
    with contextlib.suppress(OSError):
        _path(address).unlink()


def _path(address: str) -> Path:
    """Return the path of the lock's file."""
    return Path(f"{address}{_SUFFIX}")


_held: weakref.WeakSet[RestartLock] = weakref.WeakSet()


def _release_in_child() -> None:
    """Close the descriptors that a forked child has inherited; otherwise the lock would outlive its holder."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
