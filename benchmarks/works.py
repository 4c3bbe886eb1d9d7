"""The works of a client: which calls it makes, with which keys, and how a run of calls is prepared.

A run is prepared before it is timed, and then is a loop around the calls. So the measuring loop costs a few nanoseconds
a call, which matters where a `get` is a lookup in shared memory.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import Final, Literal, TypeVar

from msgspec import Struct

from benchmarks.contenders.base import BODY_BYTES, Item, Session

_T = TypeVar("_T")

Work = Literal["store", "get", "replacing store", "mix", "store with metadata", "get of an absent id"]
Run = Callable[[], None]
"""Makes calls, and raises if an answer is wrong."""

ZIPF_EXPONENT: Final = 0.99  # as the generator of the Yahoo Cloud Serving Benchmark
ZIPF_SAMPLE: Final = 100_000  # keys that a client uses over and over
SPREAD: Final = 7_919  # a prime: the popular keys are not neighbours

_bodies = count()


class Keys(Struct, frozen=True):
    """The keys of a client: those that it numbers itself, or a choice of loaded ones.

    `seed` makes the order of two clients different.
    """

    owner: str
    count: int = 0
    seed: int | None = None
    is_zipf: bool = False

    def names(self) -> Sequence[str]:
        return _names(self)

    def name(self, number: int) -> str:
        return f"{self.owner}-{number}"


@lru_cache(maxsize=16)
def _names(keys: Keys) -> Sequence[str]:
    """Return the keys in the order in which the client uses them. Drawing many takes longer than a cell."""
    chance = random.Random(keys.seed)
    numbers: Sequence[int] = range(keys.count)
    if keys.is_zipf:
        weights = [*accumulate((rank + 1) ** -ZIPF_EXPONENT for rank in numbers)]
        ranks = chance.choices(numbers, cum_weights=weights, k=ZIPF_SAMPLE)
        numbers = [rank * SPREAD % keys.count for rank in ranks]
    elif keys.seed is not None:
        numbers = chance.sample(numbers, keys.count)
    return [*map(keys.name, numbers)]


def new_body(key: str) -> bytes:
    """Return a body that no other call has stored, because equal bodies may be stored once."""
    return f"{key} {next(_bodies)} ".encode().ljust(BODY_BYTES, b".")


class Calls(ABC):
    """The calls of one client in one work, in an endless series.

    `batch` is the number of operations in a call.
    """

    def __init__(self, session: Session, keys: Keys, batch: int) -> None:
        self._session = session
        self._keys = keys
        self._batch = batch
        self._place = 0

    @abstractmethod
    def prepared(self, calls: int) -> Run:
        """Return the next calls as one run."""

    def _next(self, calls: int) -> Sequence[str]:
        """Return the next keys; after the last one comes the first."""
        names, wanted = self._keys.names(), calls * self._batch
        found = names[self._place : self._place + wanted]
        self._place += len(found)
        while len(found) < wanted:
            some = names[: wanted - len(found)]
            found = [*found, *some]
            self._place = len(some)
        return found


class Gets(Calls):
    """Reads of existing keys."""

    def prepared(self, calls: int) -> Run:
        keys = self._next(calls)
        if self._batch == 1:
            return partial(_read_each, self._session, keys)
        return partial(_read_batches, self._session, _in_batches(keys, self._batch))


class Puts(Calls):
    """Stores in place of existing keys."""

    def prepared(self, calls: int) -> Run:
        items = [(key, new_body(key)) for key in self._next(calls)]
        if self._batch == 1:
            return partial(_put_each, self._session.put, items)
        return partial(_put_batches, self._session, _in_batches(items, self._batch))


class NewPuts(Puts):
    """Stores of new keys."""

    def _next(self, calls: int) -> Sequence[str]:
        first = self._place
        self._place += calls * self._batch
        return [self._keys.name(number) for number in range(first, self._place)]


class NewPutsWithMetadata(NewPuts):
    """Stores of new keys with metadata, singly."""

    def prepared(self, calls: int) -> Run:
        return partial(_put_each, self._session.put_with_metadata, [(key, new_body(key)) for key in self._next(calls)])


class AbsentGets(NewPuts):
    """Reads of keys that do not exist, singly."""

    def prepared(self, calls: int) -> Run:
        return partial(_read_absent, self._session, self._next(calls))


class Mix(Calls):
    """Nine reads and a store in place of an existing key, singly, over and over."""

    def __init__(self, session: Session, keys: Keys, batch: int) -> None:
        super().__init__(session, keys, batch)
        self._done_of_ten = 0

    def prepared(self, calls: int) -> Run:
        names, at = self._next(calls), 0
        groups: list[tuple[Sequence[str], Item | None]] = []
        while at < calls:
            end = min(at + 10 - self._done_of_ten, calls)
            self._done_of_ten = (self._done_of_ten + end - at) % 10
            if self._done_of_ten:
                groups.append((names[at:end], None))
            else:
                key = names[end - 1]
                groups.append((names[at : end - 1], (key, new_body(key))))
            at = end
        return partial(_mix, self._session, groups)


KINDS: Final[dict[Work, type[Calls]]] = {
    "store": NewPuts,
    "get": Gets,
    "replacing store": Puts,
    "mix": Mix,
    "store with metadata": NewPutsWithMetadata,
    "get of an absent id": AbsentGets,
}


def _in_batches(given: Sequence[_T], size: int) -> list[Sequence[_T]]:
    return [given[first : first + size] for first in range(0, len(given), size)]


def _read_each(session: Session, keys: Sequence[str]) -> None:
    size = session.get_each(keys)
    assert size == BODY_BYTES, size


def _read_batches(session: Session, batches: Sequence[Sequence[str]]) -> None:
    for keys in batches:
        size = session.get_many(keys)
        assert size == BODY_BYTES * len(keys), size


def _read_absent(session: Session, keys: Sequence[str]) -> None:
    for key in keys:
        session.get_absent(key)


def _put_each(put: Callable[[str, bytes], object], items: Sequence[Item]) -> None:
    for key, body in items:
        put(key, body)


def _put_batches(session: Session, batches: Sequence[Sequence[Item]]) -> None:
    for items in batches:
        session.put_many(items)


def _mix(session: Session, groups: Sequence[tuple[Sequence[str], Item | None]]) -> None:
    for keys, item in groups:
        if keys:
            _read_each(session, keys)
        if item:
            session.put(*item)
