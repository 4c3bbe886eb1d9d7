"""A dict in a `SyncManager` of `multiprocess`: a server process that all other processes ask by proxies.

The server runs in a process that stepwell starts, because a manager that `multiprocess` starts itself would run the
user's `__main__` again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec import Struct
from multiprocess import managers

from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.process import ChildProcess

_MODULE: Final = "stepwell.prove.dict_server"
_AUTHKEY: Final = b"stepwell prove"
_READY: Final = b"ready"


class DictProxy(Protocol):
    """The calls of a dict's proxy that are used here."""

    def get(self, key: str) -> str | None:
        """Return a value; None if there is none."""
        ...

    def update(self, values: Mapping[str, str], /) -> None:
        """Store values."""
        ...

    def pop(self, key: str, default: None) -> object:
        """Delete a value."""
        ...


class DictServerSettings(Struct, frozen=True):
    """The address of a server, and the descriptor of the socket to the program that started it."""

    address: str
    socket_fd: int


class _Manager(managers.SyncManager):
    """A manager with one dict that all of its clients share."""


_shared: Final[dict[str, str]] = {}
_Manager.register("shared", callable=lambda: _shared, proxytype=managers.DictProxy)


def main(encoded: str) -> int:
    """Serve until the program that started this process has ended, or ends the socket to it."""
    settings = msgspec.json.decode(encoded, type=DictServerSettings)
    server = _Manager(address=settings.address, authkey=_AUTHKEY).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with socket(fileno=settings.socket_fd) as owner, suppress(BrokenPipeError, ConnectionResetError):
        owner.sendall(_READY)
        owner.recv(1)
    return 0


@contextmanager
def served(directory: Path) -> Generator[str]:
    """Yield the address of a server, which lives as long as the block."""
    address = str(directory / "dict.sock")
    process = ChildProcess(_MODULE, lambda fd: msgspec.json.encode(DictServerSettings(address, fd)).decode())
    try:
        process.socket.settimeout(limits.PROVE_START_SECONDS_MAX)
        if process.socket.recv(len(_READY)) != _READY:
            raise StartFailed("the server of the dict did not start; see its output above")
        yield address
    finally:
        process.disconnect()
        process.end(time.monotonic() + limits.MANAGER_END_SECONDS_MAX)
        process.close()


def connected(address: str) -> DictProxy:
    """Return a proxy of the dict of a server."""
    manager: Any = _Manager(address=address, authkey=_AUTHKEY)
    manager.connect()
    return cast("DictProxy", manager.shared())
