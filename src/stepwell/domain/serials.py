"""Values by number, in the order of their numbers, which nearly always come in that order.

A list to which each new number is appended is sorted by itself: no tree is needed, and a store takes a tenth of the
time. A number that goes leaves its place in the list, so that undoing that is nothing; the places are cleared away
when there are as many of them as numbers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_GONE_MIN: Final = 64  # before it is worth the trouble


class Serials(Generic[T]):
    """A mapping of which any stretch can be walked in order."""

    __slots__ = ("_numbers", "_values")

    def __init__(self, values: dict[int, T] | None = None) -> None:
        self._values: dict[int, T] = values or {}
        self._numbers: list[int] = sorted(self._values)  # and those that are gone

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[int]:
        return (number for number in self._numbers if number in self._values)

    def __getitem__(self, number: int) -> T:
        return self._values[number]

    def __setitem__(self, number: int, value: T) -> None:
        if number not in self._values:
            numbers = self._numbers
            if not numbers or number > numbers[-1]:
                numbers.append(number)
            elif numbers[bisect_left(numbers, number)] != number:
                insort(numbers, number)
        self._values[number] = value

    def __delitem__(self, number: int) -> None:
        del self._values[number]
        numbers = self._numbers
        if numbers[-1] == number:
            numbers.pop()
        elif len(numbers) > 2 * len(self._values) + _GONE_MIN:
            self._numbers = [each for each in numbers if each in self._values]

    def after(self, number: int) -> Iterator[T]:
        """The values behind a number. Not to be changed meanwhile."""
        numbers = self._numbers
        for at in range(bisect_right(numbers, number), len(numbers)):
            if numbers[at] in self._values:
                yield self._values[numbers[at]]
