"""Snapshots of indexes: all that an index keeps, as arrays and encoded values that a file can hold.

A snapshot names fragments by their places in a list of rows, which is stored once for all indexes. An index that is
restored from it goes on as the one that made it: it answers the same, and follows the next view by its changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
