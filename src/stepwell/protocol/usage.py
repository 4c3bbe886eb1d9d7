"""The use of memory, as `stepwell status` shows it."""

from __future__ import annotations

from msgspec import Struct


class MemoryUsage(Struct, frozen=True, array_like=True):
    """The use of shared memory and disk by bodies."""

    arena_bytes: int  # in segments, dead space included
    arena_limit: int
    live_bytes: int
    segments: int
    file_bytes: int  # of cold bodies, on disk
    waiting: int  # bodies that do not have the form of their tier yet
    retired_segments: int  # out of use, and still mapped by a peer
    retired_bytes: int
    catalogues: int


class IndexUsage(Struct, frozen=True, array_like=True):
    """The index of hot fragments, and how many reads of the clients it has answered."""

    fragments: int
    bytes: int
    hits: int
    misses: int
