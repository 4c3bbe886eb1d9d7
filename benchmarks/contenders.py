"""Who is compared: each stores and reads the same small bodies, in its own best way of doing that."""

from __future__ import annotations

from collections.abc import Generator, MutableMapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Protocol

import stepwell as sw

BODY_BYTES = 1024


class Contender(Protocol):
    """Puts and gets, a round at a time; both end when everything has been acknowledged."""

    name: str

    def put(self, keys: Sequence[str]) -> None: ...
    def get(self, keys: Sequence[str]) -> None: ...


class SyncManagerDict:
    """The standard library's `multiprocessing.Manager().dict()`, one call at a time."""

    name = "SyncManager dict"

    def __init__(self, shared: MutableMapping[str, bytes]) -> None:
        self._shared = shared
        self._body = b"x" * BODY_BYTES

    def put(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._shared[key] = self._body

    def get(self, keys: Sequence[str]) -> None:
        for key in keys:
            assert len(self._shared[key]) == BODY_BYTES


class OneAtATime:
    """`tiers.store` and `tiers.get`, one request at a time."""

    name = "stepwell, one at a time"

    def __init__(self, tiers: sw.ContextTierService) -> None:
        self._tiers = tiers
        self._body = b"x" * BODY_BYTES

    def put(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._tiers.store(sw.Fragment(fragment_id=key, project="p", body=self._body, tokens=1))

    def get(self, keys: Sequence[str]) -> None:
        for key in keys:
            assert len(self._tiers.get(key, project="p").body) == BODY_BYTES


class Many:
    """`tiers.store_many` and `tiers.get_many`."""

    name = "stepwell, many at a time"

    def __init__(self, tiers: sw.ContextTierService) -> None:
        self._tiers = tiers
        self._body = b"x" * BODY_BYTES

    def put(self, keys: Sequence[str]) -> None:
        self._tiers.store_many(sw.Fragment(fragment_id=key, project="p", body=self._body, tokens=1) for key in keys)

    def get(self, keys: Sequence[str]) -> None:
        assert len(self._tiers.get_many(keys, project="p")) == len(keys)


@contextmanager
def contenders() -> Generator[list[Contender]]:
    """All of them, running side by side."""
    with (
        get_context("spawn").Manager() as manager,
        sw.Runtime.start(workers=0, budget=sw.TierBudget(hot_tokens=10_000_000)) as runtime,
        runtime.client() as client,
    ):
        peers: list[Contender] = [SyncManagerDict(manager.dict()), OneAtATime(client.tiers), Many(client.tiers)]
        yield peers
