"""An index of values by serial number, in the order of the numbers, which nearly always arrive in that order.

A list to which each new number is appended is sorted by itself, so that neither a tree nor a dict is needed. A number
that is deleted leaves an empty place, so that undoing the deletion moves nothing. The list is compacted when it has
more empty places than numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_EMPTY_MIN: Final = 64  # empty places that a small index may have before it is compacted


class SerialIndex(Generic[T]):
    """A mapping from serial numbers to values, of which any range can be walked in order. None is not a value."""

    __slots__ = ("_count", "_numbers", "_values")

    def __init__(self, values: dict[int, T] | None = None) -> None:
        # `_numbers` also has the deleted ones; the value at the same position is None then.
        self._numbers: list[int] = sorted(values or {})
        self._values: list[T | None] = [values[number] for number in self._numbers] if values else []
        self._count = len(self._numbers)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (number for number, value in zip(self._numbers, self._values, strict=True) if value is not None)

    def __setitem__(self, number: int, value: T) -> None:
        numbers, values = self._numbers, self._values
        if not numbers or number > numbers[-1]:
            numbers.append(number)
            values.append(value)
            self._count += 1
            return
        # A number that was deleted comes back, when a deletion is undone: its empty place is still there, mostly.
        at = bisect_left(numbers, number)
        if numbers[at] != number:
            numbers.insert(at, number)
            values.insert(at, None)
        self._count += values[at] is None
        values[at] = value

    def extend(self, numbers: Sequence[int], values: Iterable[T]) -> None:
        """Append values. Their numbers are in order and larger than every number that was ever in the index."""
        self._numbers.extend(numbers)
        self._values.extend(values)
        self._count += len(numbers)

    def __delitem__(self, number: int) -> None:
        numbers, values = self._numbers, self._values
        self._count -= 1
        # The last number leaves no empty place: undoing an insertion makes the index what it was.
        if numbers[-1] == number:
            numbers.pop()
            values.pop()
        else:
            values[bisect_left(numbers, number)] = None
        if len(numbers) > 2 * self._count + _EMPTY_MIN:
            self._numbers = [*self]
            self._values = [value for value in values if value is not None]

    def after(self, number: int) -> Iterator[T]:
        """Iterate over the values with larger numbers. The index must not change meanwhile."""
        values = self._values
        for at in range(bisect_right(self._numbers, number), len(values)):
            if (value := values[at]) is not None:
                yield value
