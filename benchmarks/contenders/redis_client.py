"""Redis in memory, by a Unix socket."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import redis_server
from benchmarks.contenders.base import METADATA, Item, Place, Session

if TYPE_CHECKING:
    from redis import Redis


_METADATA: Final = [*chain.from_iterable(METADATA.items())]


class Commands(Session):
    """A Redis session: SET and GET, one at a time or in pipelines; a hash of fields for a body with metadata."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def put(self, key: str, body: bytes) -> None:
        self._redis.set(key, body)

    def get(self, key: str) -> int:
        body = self._redis.get(key)
        assert isinstance(body, bytes)
        return len(body)

    def get_absent(self, key: str) -> None:
        assert self._redis.get(key) is None

    def put_with_metadata(self, key: str, body: bytes) -> None:
        self._redis.hset(key, items=["body", body, *_METADATA])

    def put_many(self, items: Sequence[Item]) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for key, body in items:
            pipeline.set(key, body)
        pipeline.execute()

    def get_many(self, keys: Sequence[str]) -> int:
        pipeline = self._redis.pipeline(transaction=False)
        for key in keys:
            pipeline.get(key)
        return sum(map(len, pipeline.execute()))

    def forget(self, keys: Sequence[str]) -> None:
        del keys
        self._redis.flushdb()


@contextmanager
def start(directory: Path) -> Generator[Place]:
    with redis_server.running(directory, "--appendonly", "no") as (address, pid):
        yield Place(address, pid)


@contextmanager
def connect(where: object) -> Generator[Commands]:
    with redis_server.connected(str(where)) as connection:
        yield Commands(connection)
