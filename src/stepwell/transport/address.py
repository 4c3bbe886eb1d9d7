"""Addresses: the path of a Unix socket that only its user can reach."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from stepwell.errors import InvalidArgument, RuntimeLost, StartFailed

_PATH_BYTES_MAX: Final = 107  # the kernel's, less the terminating NUL
_BACKLOG: Final = 128


class Credentials(NamedTuple):
    """Who is at the other end, as the kernel says."""

    pid: int
    uid: int
    gid: int


def private_directory() -> Path:
    """A new 0700 directory for a socket, where the user's runtime files belong."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(tempfile.mkdtemp(prefix="stepwell-", dir=base if base and Path(base).is_dir() else None))


def listen(address: str) -> socket.socket:
    """A listening socket, 0600, in a directory that nobody else can enter."""
    path = _checked(address)
    _secure(path.parent)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _alone(path.parent):  # of two who find a stale socket, one must not remove the other's new one
            _clear_stale(path)
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartFailed(f"cannot listen at {address!r}: {error.strerror}") from error
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003
    return listener


@contextmanager
def _alone(directory: Path) -> Generator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def dial(address: str, timeout_s: float | None = None) -> socket.socket:
    """A connected, blocking socket."""
    path = _checked(address)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise RuntimeLost(
            f"there is no manager at {address!r} ({error.strerror or error}): start one with `stepwell serve`, "
            "or take the address of a running Runtime",
            address=address,
        ) from error
    owner = credentials(connection).uid
    if owner != os.geteuid():
        connection.close()
        raise RuntimeLost(f"the manager at {address!r} is another user's ({owner}): use an address of your own")
    return connection


def credentials(connection: socket.socket) -> Credentials:
    """The process at the other end, at the time when it connected."""
    layout = struct.Struct("iII")
    return Credentials(*layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)))


def _checked(address: str) -> Path:
    if not address or "\0" in address:
        raise InvalidArgument("an address is the path of a Unix socket")
    if len(os.fsencode(address)) > _PATH_BYTES_MAX:
        raise InvalidArgument(
            f"address {address!r} has more than {_PATH_BYTES_MAX} bytes, which the kernel refuses: use a shorter path"
        )
    return Path(address)


def _secure(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise StartFailed(f"cannot use the directory {str(directory)!r}: {error.strerror}") from error
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise StartFailed(
            f"the directory {str(directory)!r} is open to other users: put the socket in one of your own "
            f"(mkdir -m 700 DIR)"
        )


def _clear_stale(path: Path) -> None:
    """Remove a socket that nobody listens at; refuse to touch anything else."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartFailed(f"{str(path)!r} exists and is no socket: give another address")
    except FileNotFoundError:
        return
    try:
        dial(str(path), timeout_s=1).close()
    except RuntimeLost as lost:
        if isinstance(lost.__cause__, ConnectionRefusedError):  # a manager that is only slow does not refuse
            path.unlink(missing_ok=True)
            return
    raise StartFailed(f"a manager already serves {str(path)!r}: connect to it, or give another address")
