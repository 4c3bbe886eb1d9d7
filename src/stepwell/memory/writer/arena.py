"""The arena: bodies in append-only segments, written by one process. Space comes back by moving what is left.

Each body is preceded by a header with its digest and length, so that a segment can be walked without an index of its
own. Freeing a body is a subtraction. A segment that holds nothing live any more is let go of: whoever has it
mapped keeps it, and pins nothing but that mapping. One that is mostly dead is emptied by its owner, body by body.

Emptying takes room before it gives any back. Two segments' worth is therefore kept for it: whatever else wants room
is refused before that is touched, so that a full arena can still be put in order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.memory.writer.segments import Segment
from stepwell.protocol.handles import Handle

HEADER: Final = struct.Struct("<32sQ")
_HEADER_BYTES: Final = HEADER.size  # a multiple of 8, so that bodies are aligned
RECORD_OVERHEAD_MAX: Final = _HEADER_BYTES + 7
_PADDING: Final = tuple(bytes(size) for size in range(8))  # up to where the next header begins
_PAGE: Final = 4096
_SMALL_BYTES: Final = 16 * limits.KIB  # of a body that is copied once more, to be written in one step with its header
_SPARE_SEGMENTS: Final = 2  # emptying one opens at most one to share, and as much again for large bodies


class OutOfRoom(Exception):
    """No segment can be had: the arena has reached its bound, or the system has no memory, disk or descriptors."""


class ArenaSpan(Struct, frozen=True, gc=False):
    """Where bytes are, or will be."""

    segment: int
    offset: int
    length: int


class Arena:
    """Segments of one kind, under one bound."""

    def __init__(self, make: Callable[[int, int], Segment], numbers: Iterator[int], segment_bytes: int) -> None:
        self._make = make
        self._numbers = numbers
        self.segment_bytes = segment_bytes  # of those that bodies share
        self._current: Segment | None = None  # the one that is being filled
        self.retired: dict[int, Segment] = {}  # out of use, and open until `let_go`
        self.segments: dict[int, Segment] = {}
        self.raw_segments: set[int] = set()  # those of them that hold something else than bodies
        self.unwalkable: set[int] = set()  # those that could not be walked: they are not emptied
        self.limit = 0  # bytes of all segments
        self.bytes = 0
        self.live = 0
        self._bodies = 0
        self._exceeds_limit = False  # the bound was lowered, and what is kept for emptying is taken
        self._emptying_limit = 0  # of `bytes`, while a segment is being emptied

    def resize(self, limit: int, segment_bytes: int) -> None:
        """Change the bound. Past a lower one nothing is taken in, and emptying has as much room as always."""
        self.limit, self.segment_bytes = limit, segment_bytes
        self._exceeds_limit = self.bytes > limit - self._spare

    def append(self, digest: bytes, data: bytes | memoryview, size: int, packed: bool) -> Handle:  # noqa: FBT001
        """Write a body of that size, packed or not, at once."""
        length = len(data) if packed else size
        taken = record_bytes(length)
        segment = self._current
        if segment is None or segment.allocated - segment.used < taken:
            segment = self._segment_with_room(taken)
        start = self._take_space(segment, taken)
        header = HEADER.pack(digest, length)
        if length <= _SMALL_BYTES:
            segment.write(start, b"".join((header, data)))
        else:
            segment.write(start, header)
            segment.write(start + _HEADER_BYTES, data)
        return Handle(segment.number, start + _HEADER_BYTES, length, size, packed)

    def extend(self, arrived: Mapping[bytes, bytes]) -> dict[bytes, Handle]:
        """Write bodies, by digest, for which there is `room`, in one step; where each is."""
        segment = self._current
        assert segment is not None
        number, start = segment.number, segment.used
        at = start
        parts: list[bytes] = []
        handles: dict[bytes, Handle] = {}
        for digest, body in arrived.items():
            size = len(body)
            parts += HEADER.pack(digest, size), body, _PADDING[-size & 7]
            at += _HEADER_BYTES
            handles[digest] = Handle(number, at, size, size, False)  # noqa: FBT003 - by keyword it takes twice as long
            at += size + 7 & ~7
        segment.write(start, b"".join(parts))
        self._take_space(segment, at - start, len(handles))
        return handles

    def reserve(self, length: int, *, emptying: bool = False) -> ArenaSpan:
        """Room for a body whose bytes are still to come. It is pinned until it is settled or abandoned."""
        taken = record_bytes(length)
        segment = self._segment_with_room(taken, at_once=False, emptying=emptying)
        try:
            segment.write(segment.used, HEADER.pack(bytes(32), length))
        except OSError:
            self._close_if_empty(segment)
            raise
        segment.pins += 1
        return ArenaSpan(segment.number, self._take_space(segment, taken) + _HEADER_BYTES, length)

    def commit(self, place: ArenaSpan, digest: bytes) -> None:
        """The bytes of a reserved place are all there."""
        segment = self.segments[place.segment]
        segment.write(place.offset - _HEADER_BYTES, HEADER.pack(digest, place.length))
        segment.pins -= 1

    def abandon(self, place: ArenaSpan) -> None:
        """The bytes of a reserved place will not come."""
        self.segments[place.segment].pins -= 1
        self.free(place.segment, place.length)

    def free(self, number: int, length: int) -> None:
        """A body does not count any more."""
        taken = record_bytes(length)
        segment = self.segments[number]
        segment.live -= taken
        self.live -= taken
        self._bodies -= 1
        self._close_if_empty(segment)

    def prepare(self, place: ArenaSpan) -> bool:
        """Allocate a little more of a reserved place; whether all of it is."""
        segment = self.segments[place.segment]
        return _allocate(segment, place.offset + place.length, limits.PREPARED_BYTES_PER_TURN)

    @property
    def room(self) -> int:
        """How many bytes can be written as it is."""
        segment = self._current
        return segment.allocated - segment.used if segment is not None else 0

    def ensure_room(self, needed: int) -> None:
        """Make sure that bodies that need so many bytes together will find room, or raise `OutOfRoom`.

        `append` cannot fail after this: it comes when the state has changed already.
        """
        if self.room >= needed:  # as nearly always
            return
        segment = self._current
        if segment is not None and segment.size - segment.used >= needed:
            _allocate(segment, segment.used + needed)
        else:  # what is left of the current one is given up, and one new one takes them all
            self._open(max(self.segment_bytes, _aligned(needed, _PAGE)), needed)

    def add_raw_segment(self, size: int) -> Segment:
        """A segment for something else than bodies, under the same bound. `drop` ends it."""
        segment = self._new(size, 0)
        segment.pins, segment.live = 1, size
        self.live += size
        self.raw_segments.add(segment.number)
        return segment

    def drop_raw_segment(self, number: int) -> None:
        """End a segment that `add` gave."""
        segment = self.segments[number]
        self.live -= segment.live
        self.raw_segments.discard(number)
        self._close(segment)

    def victim(self, *, pressed: bool) -> Segment | None:
        """The segment with the most to gain by emptying it, if that is enough. Pressed, anything is enough."""
        dead = self.bytes - self.live - self._unfilled()
        if not pressed and dead * 100 <= limits.DEAD_PERCENT_MAX * self.bytes:
            return None
        self._exceeds_limit &= self.bytes > self.limit - self._spare
        self._emptying_limit = self.bytes + self._spare if self._exceeds_limit else self.limit
        worst = max(filter(self._can_empty, self.segments.values()), key=self._gain, default=None)
        return worst if worst is not None and self._gain(worst) * 64 > worst.size else None

    def records(self, segment: Segment) -> Iterator[tuple[bytes, ArenaSpan]]:
        """Walk a segment for as long as it is there: every body that was ever written to it, by its digest."""
        at = 0
        while at < segment.used and segment.number in self.segments:
            digest, length = HEADER.unpack(segment.read(at, _HEADER_BYTES))
            yield digest, ArenaSpan(segment.number, at + _HEADER_BYTES, length)
            at += record_bytes(length)

    def close_retired(self) -> list[tuple[int, int]]:
        """Close the segments that are out of use, and give their numbers and sizes.

        Until then whoever was answered with a handle into one, earlier in the same turn, can still be given it.
        """
        gone = [(segment.number, segment.size) for segment in self.retired.values()]
        for segment in self.retired.values():
            segment.close()
        self.retired.clear()
        return gone

    def close(self) -> None:
        for segment in list(self.segments.values()):
            self._close(segment)
        self.close_retired()

    @property
    def largest(self) -> int:
        """No segment can be larger, whatever is let go of."""
        return self.limit - self._spare

    @property
    def overhead(self) -> int:
        """What the headers of the bodies take, and their alignment at the most."""
        return self._bodies * RECORD_OVERHEAD_MAX

    @property
    def _spare(self) -> int:
        """What is kept for emptying. An arena of a few segments has none to keep."""
        spare = _SPARE_SEGMENTS * self.segment_bytes
        return spare if self.limit >= 8 * spare else 0

    @property
    def _remainder(self) -> int:
        """At most this is given up at the end of a segment, be it shared or of one body."""
        return max(self.segment_bytes // 8, _PAGE)

    def _can_empty(self, segment: Segment) -> bool:
        if segment is self._current or segment.pins or segment.number in self.unwalkable:
            return False
        room = self._emptying_limit - self.bytes
        return segment.live <= self._unfilled() or segment.live + self.segment_bytes <= room

    def _gain(self, segment: Segment) -> int:
        """What emptying a segment is sure to give back: the same bodies may leave as large a remainder elsewhere."""
        return segment.size - segment.live - min(segment.size - segment.used, self._remainder)

    def _take_space(self, segment: Segment, taken: int, bodies: int = 1) -> int:
        """Give out bytes of a segment; where they begin."""
        start = segment.used
        segment.used = start + taken
        segment.live += taken
        self.live += taken
        self._bodies += bodies
        return start

    def _segment_with_room(self, taken: int, *, at_once: bool = True, emptying: bool = False) -> Segment:
        """A segment with so many bytes left, all of them allocated if it is to be at once."""
        now = taken if at_once else _HEADER_BYTES
        segment = self._current
        if segment is not None and segment.size - segment.used >= taken:
            _allocate(segment, segment.used + now)
            return segment
        if taken > self._remainder:
            return self._new(_aligned(taken, _PAGE), now, emptying=emptying)
        return self._open(self.segment_bytes, now, emptying=emptying)

    def _open(self, size: int, allocated: int, *, emptying: bool = False) -> Segment:
        """A new segment to fill. What is left of the one before is given up."""
        full = self._current
        if full is not None and not full.live and not full.pins:  # the bound may be too near for both
            self._current = None
            self._close(full)
        self._current = self._new(size, allocated, emptying=emptying)
        return self._current

    def _new(self, size: int, allocated: int, *, emptying: bool = False) -> Segment:
        if self.bytes + size > (self._emptying_limit if emptying else self.limit - self._spare):
            raise OutOfRoom(f"its {self.limit} bytes are taken")
        try:
            segment = self._make(next(self._numbers), size)
        except OSError as error:
            raise OutOfRoom(error.strerror) from error
        try:
            _allocate(segment, allocated)
        except OutOfRoom:
            segment.close()
            raise
        self.segments[segment.number] = segment
        self.bytes += size
        return segment

    def _unfilled(self) -> int:
        return self._current.size - self._current.used if self._current is not None else 0

    def _close_if_empty(self, segment: Segment) -> None:
        if segment.live == 0 and segment is not self._current and not segment.pins:
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        del self.segments[segment.number]
        self.unwalkable.discard(segment.number)
        self.bytes -= segment.size
        self.retired[segment.number] = segment


def shared_segment_bytes(arena_bytes: int) -> int:
    """How large the segments of an arena are."""
    share = _aligned(arena_bytes // limits.SEGMENTS_PER_ARENA, _PAGE)
    return min(limits.SEGMENT_BYTES_MAX, max(limits.SEGMENT_BYTES_MIN, share))


def record_bytes(length: int) -> int:
    """What a body of that length takes, its header included."""
    return _HEADER_BYTES + (length + 7 & ~7)


def _allocate(segment: Segment, end: int, at_most: int | None = None) -> bool:
    try:
        return segment.allocate(end, at_most)
    except OSError as error:
        raise OutOfRoom(error.strerror) from error


def _aligned(length: int, to: int) -> int:
    return -(-length // to) * to
