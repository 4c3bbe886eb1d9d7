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

from benchmarks.contenders.base import BODY_BYTES, METADATA, Item, Place, Session

_spawn = get_context("spawn")


class SharedDict(Session):
    """`multiprocessing.Manager().dict()`."""

    def __init__(self, shared: MutableMapping[str, object]) -> None:
        self._shared = shared

    def put(self, key: str, body: bytes) -> None:
        self._shared[key] = body

    def get(self, key: str) -> int:
        body = self._shared[key]
        assert isinstance(body, bytes)
        return len(body)

    def get_absent(self, key: str) -> None:
        assert self._shared.get(key) is None

    def put_with_metadata(self, key: str, body: bytes) -> None:
        self._shared[key] = body, METADATA

    def load(self, items: Sequence[Item], *, is_warm: bool) -> None:
        del is_warm
        self._shared.update(items)

    def forget(self, keys: Sequence[str]) -> None:
        del keys
        self._shared.clear()


@contextmanager
def start_dict(_directory: Path) -> Generator[Place]:
    others = active_children()
    with _spawn.Manager() as manager:
        yield Place(manager.dict(), _started_since(others))


@contextmanager
def connect_dict(where: object) -> Generator[SharedDict]:
    yield SharedDict(cast("MutableMapping[str, object]", where))


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


class Proxied(Session):
    """A session that uses a store in another process through its proxy."""

    def __init__(self, store: StoreLike) -> None:
        self._store = store

    def put(self, key: str, body: bytes) -> None:
        self._store.put(key, body)

    def get(self, key: str) -> int:
        return len(self._store.get(key))

    def put_many(self, items: Sequence[Item]) -> None:
        self._store.put_many(items)

    def get_many(self, keys: Sequence[str]) -> int:
        return sum(map(len, self._store.get_many(keys)))

    def forget(self, keys: Sequence[str]) -> None:
        del keys
        self._store.clear()


@contextmanager
def start_store(_directory: Path) -> Generator[Place]:
    others = active_children()
    with _Stores(ctx=_spawn) as manager:
        yield Place(manager.store(), _started_since(others))


@contextmanager
def connect_store(where: object) -> Generator[Proxied]:
    yield Proxied(cast("StoreLike", where))


class PingPong(Session):
    """Sends and receives as many bytes as a service would, to a process that stores nothing and has one client.

    No service with a process of its own can be faster, if it is reached by pipes and sleeps between two calls.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def put(self, key: str, body: bytes) -> None:
        del key
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

    def forget(self, keys: Sequence[str]) -> None:
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
