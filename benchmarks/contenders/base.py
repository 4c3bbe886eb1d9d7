"""What a contender is: a service that is started once, and what each client does with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

BODY_BYTES = 1024

Item = tuple[str, bytes]


class Session(Protocol):
    """What one client does with a service. Each call ends when the service has acknowledged it."""

    def put(self, key: str, body: bytes, /) -> None: ...
    def get(self, key: str, /) -> int:
        """How many bytes it now has in its hands."""
        ...

    def put_many(self, items: Sequence[Item], /) -> None: ...
    def get_many(self, keys: Sequence[str], /) -> int: ...
    def forget(self, keys: Sequence[str], /) -> None:
        """Nobody needs these any more, nor anything else that was put. It is not timed."""
        ...


class Unbatched:
    """Who has no way of doing many at once."""

    def put_many(self, items: Sequence[Item]) -> None:
        raise NotImplementedError

    def get_many(self, keys: Sequence[str]) -> int:
        raise NotImplementedError


class Place(Struct, frozen=True):
    """Where a service is, for its clients, and which process it is, if it is one."""

    where: object
    pid: int | None = None


Start = Callable[[Path], AbstractContextManager[Place]]
"""Start a service, which may keep files in this directory; raises if it cannot."""
Connect = Callable[[object], AbstractContextManager[Session]]
"""Given where the service is. It runs in the client's process."""


class Contender(Struct, frozen=True, kw_only=True):
    name: str
    start: Start
    connect: Connect
    has_batches: bool = True
    is_threaded: bool = False  # its clients are threads of one process
    is_noisy: bool = False  # it and its clients have threads of their own, busy or not: it shares nothing with others
