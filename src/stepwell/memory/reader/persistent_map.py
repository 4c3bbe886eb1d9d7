"""A mapping that is changed by making another one, which shares with it whatever has not changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_CHANGES_MIN: Final = 1_000
_CHANGES_SHARE: Final = 8  # of what is below them: copying more of them each time costs more than all of it once


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """What there was, and what has been stored or has gone since."""

    __slots__ = ("_base", "_gone", "_stored")

    def __init__(self, base: dict[K, V]) -> None:
        self._base = base
        self._stored: dict[K, V] = {}
        self._gone: set[K] = set()  # all of them in the base, and none stored again

    def __len__(self) -> int:
        return len(self._base) - len(self._gone) + sum(key not in self._base for key in self._stored)

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._base if key not in self._gone)
        yield from (key for key in self._stored if key not in self._base)

    def __contains__(self, key: object) -> bool:
        return key in self._stored or (key in self._base and key not in self._gone)

    def __getitem__(self, key: K) -> V:
        if key in self._stored:
            return self._stored[key]
        if key in self._gone:
            raise KeyError(key)
        return self._base[key]

    def changed(self, changes: Mapping[K, V | None]) -> PersistentMap[K, V]:
        """The same with these changes; None takes away what is there. No value is None."""
        stored = {key: value for key, value in changes.items() if value is not None}
        if not self._base and not self._stored:
            return PersistentMap(stored)
        gone = changes.keys() - stored.keys()
        other = PersistentMap(self._base)
        other._stored = {key: value for key, value in {**self._stored, **stored}.items() if key not in gone}
        other._gone = {key for key in self._gone | gone if key in self._base and key not in stored}
        is_large = len(other._stored) + len(other._gone) > _CHANGES_MIN + len(self._base) // _CHANGES_SHARE
        return other._flattened() if is_large else other

    def _flattened(self) -> PersistentMap[K, V]:
        base = {**self._base, **self._stored}
        for key in self._gone:
            del base[key]
        return PersistentMap(base)
