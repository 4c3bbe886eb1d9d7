"""An index of ids by serial number, in the order of the numbers, which nearly always arrive in that order.

A list to which each new id is appended is sorted by itself, so that neither a tree nor a dict is needed. The list has
no numbers: the owner of the index knows the number of each id. An id that is deleted leaves its number in its place, so
that undoing the deletion moves nothing. The list is compacted when it has more such numbers than ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final

_DELETED_MIN: Final = 64  # places of deleted ids that a small index may have before it is compacted


class SerialIndex:
    """Ids in the order of their serial numbers, of which any range can be walked.

    `number_of` returns the number of an id. It is asked for ids that are in the index, and for those only.
    """

    __slots__ = ("_count", "_number_of", "_places")

    def __init__(self, number_of: Callable[[str], int], ids: Iterable[str] = ()) -> None:
        self._number_of = number_of
        self._places: list[str | int] = [*sorted(ids, key=number_of)]  # an int is the number of a deleted id
        self._count = len(self._places)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return (place for place in self._places if isinstance(place, str))

    def add(self, number: int, new: str) -> None:
        """Insert an id whose number may be smaller than others, or leave the index as it is if the id is there."""
        places = self._places
        if not places or number > self._number(places[-1]):
            places.append(new)
            self._count += 1
            return
        # A number that was deleted comes back, when a deletion is undone: its place is still there, mostly.
        at = bisect_left(places, number, key=self._number)
        if self._number(places[at]) != number:
            places.insert(at, number)
        self._count += not isinstance(places[at], str)
        places[at] = new

    def extend(self, ids: list[str]) -> None:
        """Append ids. Their numbers are in order and larger than every number that was ever in the index."""
        self._places.extend(ids)
        self._count += len(ids)

    def remove(self, number: int) -> None:
        """Delete the id with this number."""
        places = self._places
        self._count -= 1
        # The last id leaves no number: undoing an insertion makes the index what it was.
        if self._number(places[-1]) == number:
            places.pop()
        else:
            places[bisect_left(places, number, key=self._number)] = number
        if len(places) > 2 * self._count + _DELETED_MIN:
            self._places = [*self]

    def after(self, number: int) -> Iterator[str]:
        """Iterate over the ids with larger numbers. The index must not change meanwhile."""
        places = self._places
        for at in range(bisect_right(places, number, key=self._number), len(places)):
            if isinstance(place := places[at], str):
                yield place

    def _number(self, place: str | int) -> int:
        return place if isinstance(place, int) else self._number_of(place)
