"""A persistent map: a mapping that is changed by making another one, which shares the unchanged part.

A map is a base dict plus the changes since. A changed map copies the changes and shares the base. Once the changes are
a large part of the base, they are merged into a new base, so that copying stays cheap on average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_CHANGES_MIN: Final = 1_000
# Changes may be an eighth of the base: copying more of them with each change costs more than one merge.
_CHANGES_SHARE: Final = 8


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """An immutable mapping. Any thread may read it.

    Invariant: `_gone` is a subset of the base's keys and disjoint from `_stored`.
    """

    __slots__ = ("_base", "_gone", "_stored")

    def __init__(self, base: dict[K, V]) -> None:
        self._base = base
        self._stored: dict[K, V] = {}
        self._gone: set[K] = set()

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

    def changed(self, stored: dict[K, V], gone: AbstractSet[K] = frozenset()) -> PersistentMap[K, V]:
        """Return a map with these changes: values that are stored, and keys that are gone. No key is in both.

        The cost is in proportion to all changes since the base was made, not to the size of the map. A map that was
        empty takes the stored values as its base, so that the caller must not change them afterwards.
        """
        if not self._base and not self._stored:
            return PersistentMap(stored)
        other = PersistentMap(self._base)
        other._stored = {key: value for key, value in {**self._stored, **stored}.items() if key not in gone}
        other._gone = {key for key in self._gone | gone if key in self._base and key not in stored}
        is_large = len(other._stored) + len(other._gone) > _CHANGES_MIN + len(self._base) // _CHANGES_SHARE
        return other._flattened() if is_large else other

    def _flattened(self) -> PersistentMap[K, V]:
        """Return the same mapping with all changes merged into a new base."""
        base = {**self._base, **self._stored}
        for key in self._gone:
            del base[key]
        return PersistentMap(base)
