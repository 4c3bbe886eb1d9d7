"""The interface of a contender: a service that is started once, and a session for each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

BODY_BYTES = 1024

Item = tuple[str, bytes]


class Session(Protocol):
    """The operations of one client. Each call returns when the service has acknowledged it."""

    def put(self, key: str, body: bytes, /) -> None: ...
    def get(self, key: str, /) -> int:
        """Return the number of bytes that were read."""
        ...

    def put_many(self, items: Sequence[Item], /) -> None: ...
    def get_many(self, keys: Sequence[str], /) -> int: ...
    def forget(self, keys: Sequence[str], /) -> None:
        """Delete these keys and everything else that was put. It is not timed."""
        ...


class Unbatched:
    """A session without batches: it performs them one by one."""

    def put_many(self, items: Sequence[Item]) -> None:
        raise NotImplementedError

    def get_many(self, keys: Sequence[str]) -> int:
        raise NotImplementedError


class Place(Struct, frozen=True):
    """The address of a service for its clients, and its process id, if it is one process."""

    where: object
    pid: int | None = None


Start = Callable[[Path], AbstractContextManager[Place]]
"""Starts a service, which may write files to the directory; raises if that is impossible."""
Connect = Callable[[object], AbstractContextManager[Session]]
"""Connects to a service at its address. It runs in the client's process."""


class Contender(Struct, frozen=True, kw_only=True):
    name: str
    start: Start
    connect: Connect
    has_batches: bool = True
    is_threaded: bool = False  # its clients are threads of one process
    is_noisy: bool = False  # its processes are busy even while idle, so it has rounds of its own
