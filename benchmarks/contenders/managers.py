"""Contenders from the standard library: proxies to an object in a manager process, and pipes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Protocol, cast

import multiprocess

from benchmarks.contenders.base import BODY_BYTES, Item, Place, Unbatched

_spawn = get_context("spawn")


class SharedDict(Unbatched):
    """`multiprocessing.Manager().dict()`."""

    def __init__(self, shared: MutableMapping[str, bytes]) -> None:
        self._shared = shared

    def put(self, key: str, body: bytes) -> None:
        self._shared[key] = body

    def get(self, key: str) -> int:
        return len(self._shared[key])

    def forget(self, _keys: Sequence[str]) -> None:
        self._shared.clear()


@contextmanager
def start_dict(_directory: Path) -> Generator[Place]:
    others = active_children()
    with _spawn.Manager() as manager:
        yield Place(manager.dict(), _started_since(others))


@contextmanager
def connect_dict(where: object) -> Generator[SharedDict]:
    yield SharedDict(cast("MutableMapping[str, bytes]", where))


def _started_since(others: Sequence[object]) -> int | None:
    return next((each.pid for each in active_children() if each not in others), None)


class LockedStore:
    """A store with a lock, because the manager serves each client in a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bodies: dict[str, bytes] = {}

    def put(self, key: str, body: bytes) -> None:
        with self._lock:
            self._bodies[key] = body

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._bodies[key]

    def put_many(self, items: Sequence[Item]) -> None:
        with self._lock:
            self._bodies.update(items)

    def get_many(self, keys: Sequence[str]) -> list[bytes]:
        with self._lock:
            return [self._bodies[key] for key in keys]

    def clear(self) -> None:
        with self._lock:
            self._bodies.clear()


class _Stores(BaseManager):
    store: Callable[[], object]


_Stores.register("store", LockedStore)


class StoreLike(Protocol):
    """The methods of a `LockedStore`, wherever it is."""

    def put(self, key: str, body: bytes) -> None: ...
    def get(self, key: str) -> bytes: ...
    def put_many(self, items: Sequence[Item]) -> None: ...
    def get_many(self, keys: Sequence[str]) -> list[bytes]: ...
    def clear(self) -> None: ...


class Proxied:
    """A session that uses a store in another process through its proxy."""

    def __init__(self, store: StoreLike) -> None:
        self._store = store
        self.put = store.put
        self.put_many = store.put_many

    def get(self, key: str) -> int:
        return len(self._store.get(key))

    def get_many(self, keys: Sequence[str]) -> int:
        return sum(map(len, self._store.get_many(keys)))

    def forget(self, _keys: Sequence[str]) -> None:
        self._store.clear()


@contextmanager
def start_store(_directory: Path) -> Generator[Place]:
    others = active_children()
    with _Stores(ctx=_spawn) as manager:
        yield Place(manager.store(), _started_since(others))


@contextmanager
def connect_store(where: object) -> Generator[Proxied]:
    yield Proxied(cast("StoreLike", where))


class PingPong:
    """Sends and receives as many bytes as a service would, to a process that stores nothing and has one client.

    No service with a process of its own can be faster, if it is reached by pipes and sleeps between two calls.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def put(self, _key: str, body: bytes) -> None:
        self._pipe.send_bytes(body)
        self._pipe.recv_bytes()

    def get(self, key: str) -> int:
        self._pipe.send_bytes(b"\n" + key.encode())
        return len(self._pipe.recv_bytes())

    def put_many(self, items: Sequence[Item]) -> None:
        self._pipe.send_bytes(b"".join([body for _, body in items]))
        self._pipe.recv_bytes()

    def get_many(self, keys: Sequence[str]) -> int:
        self._pipe.send_bytes("\n".join(["", *keys]).encode())
        return len(self._pipe.recv_bytes())

    def forget(self, _keys: Sequence[str]) -> None:
        """Do nothing: the process stores nothing."""


@contextmanager
def connect_pipe(_where: object) -> Generator[PingPong]:
    context = multiprocess.get_context("spawn")
    ours, theirs = context.Pipe()
    echo = context.Process(target=_echo, args=(theirs,), daemon=True)
    echo.start()
    theirs.close()
    try:
        yield PingPong(ours)
    finally:
        ours.close()
        echo.join()


def _echo(pipe: Connection) -> None:
    """Answer each message: with one body for each newline if it begins with one (these are keys), else with nothing."""
    body = b"." * BODY_BYTES
    while True:
        try:
            said = pipe.recv_bytes()
        except EOFError:
            return
        pipe.send_bytes(body * said.count(b"\n") if said.startswith(b"\n") else b"")
