"""The interface of a contender: a service that is started once, and a session for each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from msgspec import Struct

BODY_BYTES: Final = 1024

Item = tuple[str, bytes]

METADATA: Final = {"author": "local/coder", "language": "python"}


class Session:
    """The operations of one client. Each call returns when the service has acknowledged it.

    A contender that cannot do one of them leaves it out, and takes no part in the works that need it.
    """

    def put(self, key: str, body: bytes) -> None:
        raise NotImplementedError

    def get(self, key: str) -> int:
        """Return the number of bytes that were read."""
        raise NotImplementedError

    def get_each(self, keys: Sequence[str]) -> int:
        """Read one key after the other and return the bytes of the last.

        A contender whose calls take less than a microsecond overrides it, because a method call more would show.
        """
        size = 0
        for key in keys:
            size = self.get(key)
        return size

    def get_absent(self, key: str) -> None:
        """Try to read a key that does not exist."""
        raise NotImplementedError

    def put_with_metadata(self, key: str, body: bytes) -> None:
        """Store a body together with `METADATA`."""
        raise NotImplementedError

    def put_many(self, items: Sequence[Item]) -> None:
        raise NotImplementedError

    def get_many(self, keys: Sequence[str]) -> int:
        raise NotImplementedError

    def load(self, items: Sequence[Item], *, is_warm: bool) -> None:
        """Store bodies before a measurement, below the fastest tier if `is_warm` and if there are tiers."""
        del is_warm
        self.put_many(items)

    def finish_load(self, key: str) -> None:
        """Wait until the service has done what it does in the background after a load. `key` was loaded."""

    def forget(self, keys: Sequence[str]) -> None:
        """Delete these keys and everything else that was put. It is not timed."""
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
    variant: str = ""  # distinguishes sessions that are connected in another way to the same service
    start: Start
    connect: Connect
    has_batches: bool = True
    is_threaded: bool = False  # its clients are threads of one process
    is_noisy: bool = False  # its processes are busy even while idle, so it has rounds of its own

    @property
    def session_name(self) -> str:
        return f"{self.name} {self.variant}"
