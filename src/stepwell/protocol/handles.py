"""Handles: where a body is, for whoever maps its segment. They travel in frames; the bytes do not."""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow

IN_STORE: Final = 0
"""In place of a segment's number: the body is in the database, and the offset is its number there."""


class Handle(Struct, frozen=True, array_like=True, gc=False):
    """A stretch of a segment. What was written there never changes: a handle is right for as long as it is held."""

    segment: int
    offset: int
    stored: int  # bytes there
    size: int  # bytes of the body
    packed: bool  # compressed, with zstd


class CatalogueEnd(Struct, frozen=True, array_like=True):
    """How far a project's catalogue went at one revision: its segments in order, each with the bytes used of it."""

    project: str
    generation: int
    base_revision: int  # the catalogue says of every later change when it was
    segments: tuple[tuple[int, int], ...]


BLOCK: Final = struct.Struct("<IQ")
"""Heads each block of a catalogue: the length of its payload, and the revision up to which it goes."""


class Record(Struct, frozen=True, array_like=True, gc=False, tag=True):
    """The root of a catalogue's records."""


class Put(Record, frozen=True):
    """A fragment is there, or has changed."""

    revision: int
    row: FragmentRow
    handle: Handle


class Gone(Record, frozen=True):
    """A fragment is not there any more."""

    revision: int
    fragment_id: str


class Moved(Record, frozen=True):
    """A body is elsewhere now, or in another form: no change of any fragment."""

    digest: bytes
    handle: Handle


AnyRecord = Put | Gone | Moved
