"""Snapshots of indexes: all that an index keeps, as arrays and encoded values that a file can hold.

A snapshot names fragments by their places in a list of rows, which is stored once for all indexes. An index that is
restored from it goes on as the one that made it: it answers the same, and follows the next view by its changes.

A snapshot may come from a file. So an index checks the sizes and numbers on which it relies, and raises `ValueError`
instead of answering from what does not fit together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell.domain.tiers.model import FragmentRow

Arrays = Mapping[str, NDArray[Any]]

NO_PLACE = -1
"""The place of a slot that has no fragment."""


class IndexSnapshot(Struct, frozen=True):
    """The arrays of an index by name, and everything else that it keeps, encoded.

    An index that is restored may write to the arrays, so they are copies or private mappings of a file.
    """

    arrays: Arrays
    values: bytes


class RowPlaces(Struct, frozen=True):
    """The rows of one project in a view, in its order, and the epoch and revision of the view."""

    rows: Sequence[FragmentRow]
    at: tuple[str, int]

    def rows_of(self, slots: NDArray[np.int32]) -> list[FragmentRow | None]:
        """Return the row of each slot, by its place; None for `NO_PLACE`. Raise `ValueError` for wrong places."""
        require(is_within(slots, NO_PLACE, len(self.rows)), "each place is that of a row")
        used = slots[slots != NO_PLACE]
        require(len(np.unique(used)) == len(used), "each row has one slot")
        return [None if place == NO_PLACE else self.rows[place] for place in slots.tolist()]


def require(is_right: bool, rule: str) -> None:  # noqa: FBT001 - as in `assert`
    """Raise `ValueError` if a snapshot breaks a rule on which its index relies."""
    if not is_right:
        raise ValueError(f"the rule does not hold that {rule}")


def is_within(numbers: NDArray[Any], low: int, high: int) -> bool:
    """Return True if all numbers are from `low` to before `high`. An array of none is."""
    return not len(numbers) or (int(numbers.min()) >= low and int(numbers.max()) < high)
