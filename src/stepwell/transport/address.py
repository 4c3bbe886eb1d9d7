"""Addresses: paths of Unix sockets that only their own user can reach.

An address is a path. Its security is that of the file system: the socket has mode 0600 and its directory must belong to
the user and be closed to all others. A client also asks the kernel who listens, so that it does not send its context to
another user's process.

A manager that was killed leaves its socket file behind. The next manager removes the file if connecting is refused,
under a lock on the directory, because two managers may start at the same time. It also removes the directories that
`private_directory` has made for managers that are gone.

Programs and commands that are given no address use `default_address`. So `stepwell serve` and `stepwell.connect()` meet
at the same one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shlex
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from stepwell import limits
from stepwell.errors import InvalidArgument, RuntimeLost, StartFailed
from stepwell.transport import restart_lock

ADDRESS_VARIABLE: Final = "STEPWELL_ADDRESS"
"""The environment variable with the address for programs that are given none. An empty one counts as not set."""

_PRIVATE_PREFIX: Final = "stepwell-"
_PRIVATE_NAME: Final = re.compile(rf"{_PRIVATE_PREFIX}[a-z0-9_]{{8}}")
"""The names that `tempfile.mkdtemp` gives to private directories."""


class Credentials(NamedTuple):
    """The process at the other end of a connection, as the kernel reports it."""

    pid: int
    uid: int
    gid: int


def default_address() -> str:
    """Return the address that is used when none is given, as an absolute path.

    It is the value of `STEPWELL_ADDRESS`, or `$XDG_RUNTIME_DIR/stepwell/manager.sock`, or a path in this user's own
    directory below the temporary directory. Raise `InvalidArgument` if that directory belongs to another user, or
    there is no temporary directory.
    """
    if named := os.environ.get(ADDRESS_VARIABLE):
        return str(Path(named).absolute())
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return str(Path(runtime).absolute() / "stepwell" / "manager.sock")
    try:
        directory = Path(tempfile.gettempdir()) / f"{_PRIVATE_PREFIX}{os.getuid()}"
    except OSError as error:  # no temporary directory has room
        raise InvalidArgument(
            f"there is no default address ({error.strerror or error}): give one, or set {ADDRESS_VARIABLE}"
        ) from None
    # Every user can create this name in a shared temporary directory. Serving there would show our socket to its owner;
    # connecting would trust a manager that is not ours.
    if directory.exists() and directory.stat().st_uid != os.getuid():
        raise InvalidArgument(
            f"the directory {str(directory)!r} belongs to another user: give an address, or set {ADDRESS_VARIABLE}"
        )
    return str(directory / "manager.sock")


def private_directory() -> Path:
    """Return a new directory of mode 0700 for a socket, below `XDG_RUNTIME_DIR` if there is one."""
    return Path(tempfile.mkdtemp(prefix=_PRIVATE_PREFIX, dir=_runtime_directory()))


def _runtime_directory() -> str:
    """Return the directory in which private directories are made."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return base if base and Path(base).is_dir() else tempfile.gettempdir()


def listen(address: str) -> socket.socket:
    """Return a non-blocking listening socket of mode 0600, in a directory that no other user can enter.

    It raises `StartFailed` if another manager serves the address, if the path is no socket, or if the directory is open
    to other users.
    """
    path = _socket_path(address)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Of two managers that find the same stale socket, the second must not remove the new socket of the first.
        with _locked_private(path.parent):
            _remove_stale_socket(path)
            if not restart_lock.is_restarting(address):
                restart_lock.remove(address)
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(limits.LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise StartFailed(f"cannot listen at {address!r}: {error.strerror}") from error
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003
    return listener


@contextmanager
def _locked_private(directory: Path) -> Generator[None]:
    """Hold an exclusive lock on a directory that no other user can enter; other managers that start there wait.

    The directory is made if it is missing. Another manager that starts may take it for a dead one and remove it before
    it is locked: then it is made again.
    """
    for _ in range(limits.SOCKET_DIRECTORY_ATTEMPTS_MAX):
        _require_private(directory)
        is_locked = False
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(FileNotFoundError):
                descriptor = stack.enter_context(_opened(directory))
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                is_locked = os.path.samestat(os.fstat(descriptor), directory.stat())
            if is_locked:
                yield
                return
    raise StartFailed(f"the directory {str(directory)!r} is removed again and again: give another address")


@contextmanager
def _opened(path: str | Path, flags: int = 0, directory: int | None = None) -> Generator[int]:
    """Yield a descriptor of a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_dead_directories() -> int:
    """Remove the socket directories of managers that were killed, and return their number.

    Only directories are removed that `private_directory` can have made: of this user, with mode 0700, and with nothing
    in them but a socket that refuses connections and a restart lock that no program holds. Without a socket the
    directory must be old, because a program may be starting a manager in it; and so it must if the lock has a cause,
    because clients may still ask for it. Everything else, and every symbolic link, is left alone.
    """
    removed = 0
    for base in {_runtime_directory(), tempfile.gettempdir()}:
        with contextlib.suppress(OSError), _opened(base) as parent:
            for name in filter(_PRIVATE_NAME.fullmatch, os.listdir(parent)):  # noqa: PTH208 - of a descriptor
                if removed == limits.SOCKET_DIRECTORIES_MAX:
                    return removed
                with contextlib.suppress(OSError):
                    removed += _remove_if_dead(parent, name)
    return removed


def _remove_if_dead(parent: int, name: str) -> bool:
    """Remove one socket directory if no manager uses it. Return True if it was removed.

    The lock is the one that `listen` holds while it binds the socket and begins to listen.
    """
    with _opened(name, os.O_NOFOLLOW, parent) as directory:
        status = os.fstat(directory)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != stat.S_IRWXU:
            return False
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        entries = os.listdir(directory)  # noqa: PTH208 - of a descriptor
        locks = [each for each in entries if restart_lock.is_released(directory, each)]
        sockets = [each for each in entries if each not in locks and _is_dead_socket(directory, each)]
        is_explained = any(restart_lock.read_cause(f"/proc/self/fd/{directory}/{each}") for each in sockets)
        is_old = time.time() - status.st_mtime >= limits.SOCKET_DIRECTORY_SECONDS
        if len(locks) + len(sockets) < len(entries) or not (is_old or (sockets and not is_explained)):
            return False
        for entry in entries:
            os.unlink(entry, dir_fd=directory)
        os.rmdir(name, dir_fd=parent)
        return True


def _is_dead_socket(directory: int, name: str) -> bool:
    """Return True if a directory's entry is a socket of this user at which no process listens."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # noqa: FBT003 - a manager that is busy does not refuse
        return probe.connect_ex(f"/proc/self/fd/{directory}/{name}") == errno.ECONNREFUSED


def dial(address: str, timeout_s: float | None = None) -> socket.socket:
    """Return a connected socket, which blocks for at most `timeout_s` (None: without limit).

    It raises `RuntimeLost` if no manager accepts there, or if the listening process belongs to another user.
    """
    path = _socket_path(address)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise RuntimeLost(
            f"there is no manager at {address!r} ({error.strerror or error}): start one with "
            f"`{_serve_command(address)}`, or give the address of a running one, as an argument or in "
            f"{ADDRESS_VARIABLE}",
            address=address,
        ) from error
    owner = credentials(connection).uid
    if owner != os.geteuid():
        connection.close()
        raise RuntimeLost(f"the manager at {address!r} is another user's ({owner}): use an address of your own")
    return connection


def _serve_command(address: str) -> str:
    """Return the command that starts a manager at an address."""
    with contextlib.suppress(InvalidArgument):  # there is no default address, so this is another one
        if address == default_address():
            return "stepwell serve"
    return f"stepwell serve --address {shlex.quote(address)}"


def credentials(connection: socket.socket) -> Credentials:
    """Return the process at the other end, as it was when it connected."""
    layout = struct.Struct("iII")
    return Credentials(*layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)))


def _socket_path(address: str) -> Path:
    """Return an address as a path, or raise `InvalidArgument` if the kernel could not bind it."""
    if not address or "\0" in address:
        raise InvalidArgument("an address is the path of a Unix socket")
    if len(os.fsencode(address)) > limits.ADDRESS_BYTES_MAX:
        raise InvalidArgument(
            f"address {address!r} has more than {limits.ADDRESS_BYTES_MAX} bytes, which the kernel refuses: "
            "use a shorter path"
        )
    return Path(address)


def _require_private(directory: Path) -> None:
    """Create the directory if it is missing, and raise `StartFailed` if other users could enter it."""
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


def _remove_stale_socket(path: Path) -> None:
    """Remove a socket file at which no process listens. Raise `StartFailed` for anything else that is there.

    Only a refused connection proves that no process listens. A timeout does not: the manager may be busy.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise StartFailed(f"{str(path)!r} exists and is no socket: give another address")
    except FileNotFoundError:
        return
    try:
        dial(str(path), timeout_s=limits.STALE_SOCKET_SECONDS).close()
    except RuntimeLost as lost:
        if isinstance(lost.__cause__, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            return
    raise StartFailed(f"a manager already serves {str(path)!r}: connect to it, or give another address")
