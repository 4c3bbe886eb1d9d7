"""stepwell through requests to its manager, and the same rules called by threads under a lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import stepwell as sw
from benchmarks.contenders.base import METADATA, Item, Place, Session
from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.replies import FragmentFound
from stepwell.domain.state import State
from stepwell.domain.tiers.commands import DeleteFragment, GetFragment, StoreFragment
from stepwell.domain.verdict import Origin

PROJECT = "p"
ROOM = sw.TierBudget(hot_tokens=100_000_000, arena_bytes=4 * 1024 * limits.MIB, promotion_threshold=1_000_000_000)
"""A budget so large that nothing is evicted. A fragment that is loaded as a warm one stays warm."""

INDEX_PAUSE_SECONDS = 0.5
"""An index that has not grown for this long is complete."""


def _fragment(key: str, body: bytes) -> sw.Fragment:
    return sw.Fragment(fragment_id=key, project=PROJECT, body=body, tokens=1)


class Requests(Session):
    """`client.tiers`."""

    def __init__(self, client: sw.Client) -> None:
        self._client = client
        self._tiers = client.tiers

    def put(self, key: str, body: bytes) -> None:
        self._tiers.store(_fragment(key, body))

    def get(self, key: str) -> int:
        return len(self._tiers.get(key, project=PROJECT).body)

    def get_each(self, keys: Sequence[str]) -> int:
        get, body = self._tiers.get, memoryview(b"")
        for key in keys:
            body = get(key, project=PROJECT).body
        return len(body)

    def get_absent(self, key: str) -> None:
        try:
            self._tiers.get(key, project=PROJECT)
        except sw.NotFound:
            return
        raise AssertionError(key)

    def put_with_metadata(self, key: str, body: bytes) -> None:
        self._tiers.store(sw.Fragment(fragment_id=key, project=PROJECT, body=body, tokens=1, metadata=METADATA))

    def put_many(self, items: Sequence[Item]) -> None:
        self._tiers.store_many([_fragment(key, body) for key, body in items])

    def get_many(self, keys: Sequence[str]) -> int:
        return sum(len(found.body) for found in self._tiers.get_many(keys, project=PROJECT).values())

    def load(self, items: Sequence[Item], *, is_warm: bool) -> None:
        tier = sw.Tier.WARM if is_warm else sw.Tier.HOT
        self._tiers.store_many([_fragment(key, body) for key, body in items], tier=tier)

    def finish_load(self, key: str) -> None:
        """Read once, which opens the index of reads, and wait until it has all fragments."""
        self._tiers.get(key, project=PROJECT)
        status, before = self._client.status(), -1
        while status.index.fragments > before:
            before = status.index.fragments
            time.sleep(INDEX_PAUSE_SECONDS)
            status = self._client.status()

    def forget(self, keys: Sequence[str]) -> None:
        left = iter(keys)
        while some := [*islice(left, limits.BATCH_COMMANDS_MAX)]:
            with self._client.batch() as batch:
                for key in some:
                    batch.tiers.delete(key, project=PROJECT)


@contextmanager
def start(_directory: Path) -> Generator[Place]:
    with sw.Runtime.start(workers=0, budget=ROOM) as runtime:
        yield Place(runtime.address, runtime.pid)


@contextmanager
def connect(where: object) -> Generator[Requests]:
    with sw.connect(str(where)) as client:
        yield Requests(client)


@contextmanager
def connect_with_scope(where: object) -> Generator[Requests]:
    """Connect with a session that sees one project only."""
    with sw.connect(str(where), projects=[PROJECT]) as client:
        yield Requests(client)


class LockedServices(Session):
    """The manager's own rules, `machine.apply` on a `State` of dicts, behind an RLock; bodies are in one more dict.

    A call does what the same call to the manager does, without the transport. So a contender that is faster than this
    does less.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = State(ROOM)
        self._bodies: dict[bytes, bytes] = {}

    def put(self, key: str, body: bytes) -> None:
        fragment = _fragment(key, body)
        command = StoreFragment(PROJECT, fragment.fragment_id, body, fragment.tokens or 0)
        with self._lock:
            outcome = machine.apply(self._state, command, _origin())
            self._bodies.update(outcome.bodies)

    def get(self, key: str) -> int:
        command = GetFragment(PROJECT, key)
        with self._lock:
            reply = machine.apply(self._state, command, _origin()).reply
            assert isinstance(reply, FragmentFound)
            return len(self._bodies[reply.row.digest])

    def forget(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                machine.apply(self._state, DeleteFragment(PROJECT, key), _origin())
            self._bodies.clear()


def _origin() -> Origin:
    return Origin("threads", time.time_ns() // 1_000_000)


@contextmanager
def start_nothing(_directory: Path) -> Generator[Place]:
    """Start no service, because everything is in the client's process."""
    yield Place(None)


@contextmanager
def lock_services(_where: object) -> Generator[LockedServices]:
    yield LockedServices()
