"""Handles: the places of bodies in shared memory, and the records of the catalogues there.

Frames carry handles, and never the bytes of stored bodies. A client maps the segment and reads the bytes in place. A
catalogue is a log in shared memory that lists the fragments of one project: its blocks contain records that clients
replay, so that listing a project needs no request for each fragment.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow

IN_STORE: Final = 0
"""The segment number of a body that is in the database. The offset is the number of its row there."""


class Handle(Struct, frozen=True, array_like=True, gc=False):
    """A range of bytes in a segment. Bytes that were written there never change, so that a handle never becomes wrong.

    `size` is the number of bytes of the body. `packed_bytes` is the number of bytes there if the body is compressed
    (with zstd), and 0 if it is raw. A peer's own mapping keeps the bytes readable, even after the manager has retired
    the segment. The manager has a handle of each body, so that there are as few fields as possible.
    """

    segment: int
    offset: int
    size: int
    packed_bytes: int = 0

    @property
    def is_packed(self) -> bool:
        """True if the bytes there are compressed."""
        return self.packed_bytes > 0

    @property
    def stored(self) -> int:
        """The number of bytes there."""
        return self.packed_bytes or self.size


class CatalogueEnd(Struct, frozen=True, array_like=True):
    """The end of a project's catalogue at one revision: its segments in order, each with the bytes used of it.

    A catalogue that is rewritten gets another `generation`. It has no records of changes up to `base_revision`, only
    their result; every later change is in it with its revision.
    """

    project: str
    generation: int
    base_revision: int
    segments: tuple[tuple[int, int], ...]


BLOCK: Final = struct.Struct("<IQ")
"""The header of a block of a catalogue: the length of its payload, and the revision up to which it goes."""


class Record(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of the records in a catalogue. The tag is the name of the class."""


class Put(Record, frozen=True):
    """A fragment was created or has changed: its row, and the place of its body."""

    revision: int
    row: FragmentRow
    handle: Handle


class Gone(Record, frozen=True):
    """A fragment was deleted, at this revision."""

    revision: int
    fragment_id: str


class Moved(Record, frozen=True):
    """A body has another place or form now. No fragment has changed, so that there is no revision."""

    digest: bytes
    handle: Handle


AnyRecord = Put | Gone | Moved
