"""Values by number, in the order of their numbers, which nearly always come in that order.

A list to which each new number is appended is sorted by itself: no tree is needed, and no dict. A number that goes
leaves its place empty, so that undoing that is nothing; the places are cleared away when there are as many of them as
numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_EMPTY_MIN: Final = 64  # before it is worth the trouble


class SerialIndex(Generic[T]):
    """A mapping of which any stretch can be walked in order."""

    __slots__ = ("_count", "_numbers", "_values")

    def __init__(self, values: dict[int, T] | None = None) -> None:
        self._numbers: list[int] = sorted(values or {})  # and those that are gone
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
        at = bisect_left(numbers, number)
        if numbers[at] != number:
            numbers.insert(at, number)
            values.insert(at, None)
        self._count += values[at] is None
        values[at] = value

    def extend(self, numbers: Sequence[int], values: Iterable[T]) -> None:
        """Take values with numbers that are beyond all that ever were, in order."""
        self._numbers.extend(numbers)
        self._values.extend(values)
        self._count += len(numbers)

    def __delitem__(self, number: int) -> None:
        numbers, values = self._numbers, self._values
        self._count -= 1
        if numbers[-1] == number:
            numbers.pop()
            values.pop()
        else:
            values[bisect_left(numbers, number)] = None
        if len(numbers) > 2 * self._count + _EMPTY_MIN:
            self._numbers = [*self]
            self._values = [value for value in values if value is not None]

    def after(self, number: int) -> Iterator[T]:
        """The values behind a number. Not to be changed meanwhile."""
        values = self._values
        for at in range(bisect_right(self._numbers, number), len(values)):
            if (value := values[at]) is not None:
                yield value
