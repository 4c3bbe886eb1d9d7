"""The arena: bodies in append-only segments under one bound, written by one process.

A body is appended to the current segment, behind a header with its digest and length, so that a segment can be walked
without an index. Freeing a body subtracts its bytes from the live ones. A segment without live bytes is retired at
once; a segment that is mostly dead is emptied: its live bodies are copied to other segments, one by one, until it is
free. Readers that have it mapped keep it, and pin nothing else.

Emptying takes space before it gives any back. Therefore the space of two segments is kept in reserve for it: other
requests for space are refused before the reserve is touched, so that a full arena can still be compacted.

Invariants: `bytes` is the sum of the sizes of `segments`, `live` the sum of their live bytes; both are at most `limit`,
except after the limit was lowered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.memory.writer.segments import Segment
from stepwell.memory.writer.shortage import describe_shortage
from stepwell.protocol.handles import Handle

HEADER: Final = struct.Struct("<32sQ")
_HEADER_BYTES: Final = HEADER.size  # a multiple of 8, so that bodies are aligned
RECORD_OVERHEAD_MAX: Final = _HEADER_BYTES + 7
_PADDING: Final = tuple(bytes(size) for size in range(8))  # between a body and the next header, by its length
_PAGE: Final = 4096
# Up to this size a body is joined with its header and written in one step: the copy costs less than a second write.
_SMALL_BYTES: Final = 16 * limits.KIB
# Emptying one segment opens at most one shared segment, and as many bytes again in segments of large bodies.
_SPARE_SEGMENTS: Final = 2


class OutOfRoom(Exception):
    """No segment can be had: the arena has reached its limit."""


class SystemShortage(OutOfRoom):
    """No segment can be had: the operating system has no memory, disk or descriptors. The text names its limit."""

    @classmethod
    def of(cls, error: OSError | MemoryError) -> SystemShortage:
        """Return the shortage for an error of the operating system."""
        return cls(describe_shortage(error))


class ArenaSpan(Struct, frozen=True, gc=False):
    """A range of bytes in a segment that holds a body, or is reserved for one. The header lies before `offset`."""

    segment: int
    offset: int
    length: int


class Arena:
    """Segments of one kind (memory or files) under one limit.

    The body store owns two of them; only the manager's thread uses them. `raw_segments` hold catalogues and not records
    of bodies. `unwalkable` segments have headers that could not be read, and are never emptied. `retired` segments are
    out of use, and stay open until `close_retired`, because a reply of the same turn may refer to them.
    """

    def __init__(self, make: Callable[[int, int], Segment], numbers: Iterator[int], segment_bytes: int) -> None:
        self._make = make
        self._numbers = numbers
        self.segment_bytes = segment_bytes  # the size of segments that bodies share
        self._current: Segment | None = None  # the one that is being filled
        self.retired: dict[int, Segment] = {}
        self.segments: dict[int, Segment] = {}
        self.raw_segments: set[int] = set()
        self.unwalkable: set[int] = set()
        self.limit = 0  # bytes of all segments
        self.bytes = 0
        self.live = 0
        self._bodies = 0
        self._exceeds_limit = False  # the limit was lowered, and the reserve is in use
        self._emptying_limit = 0  # the limit of `bytes` while a segment is being emptied

    def resize(self, limit: int, segment_bytes: int) -> None:
        """Change the limit. Above a lowered limit nothing is added, while emptying keeps its reserve."""
        self.limit, self.segment_bytes = limit, segment_bytes
        self._exceeds_limit = self.bytes > limit - self._spare

    def append(self, digest: bytes, data: bytes | memoryview, size: int, packed: bool) -> Handle:  # noqa: FBT001
        """Write a body at once and return its handle. `size` is the size of the raw body, `data` may be packed."""
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
        return Handle(segment.number, start + _HEADER_BYTES, size, length if packed else 0)

    def extend(self, arrived: Mapping[bytes, bytes], sizes: Iterable[int]) -> dict[bytes, Handle]:
        """Write raw bodies, by digest, in one step, and return their handles. `sizes` are objects that handles share.

        The caller has checked that `room` suffices. One joined write for many bodies makes a batch of stores fast.
        """
        segment = self._current
        assert segment is not None
        number, start = segment.number, segment.used
        at = start
        parts: list[bytes] = []
        handles: dict[bytes, Handle] = {}
        for (digest, body), size in zip(arrived.items(), sizes, strict=True):
            parts += HEADER.pack(digest, size), body, _PADDING[-size & 7]
            at += _HEADER_BYTES
            handles[digest] = Handle(number, at, size)
            at += size + 7 & ~7
        segment.write(start, b"".join(parts))
        self._take_space(segment, at - start, len(handles))
        return handles

    def reserve(self, length: int, *, emptying: bool = False) -> ArenaSpan:
        """Reserve space for a body whose bytes are still to come. The segment is pinned until `commit` or `abandon`.

        With `emptying`, the reserve may be used. Raise `OutOfRoom` if there is no space.
        """
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
        """Complete a reserved range: all bytes are written, and the header gets the digest."""
        segment = self.segments[place.segment]
        segment.write(place.offset - _HEADER_BYTES, HEADER.pack(digest, place.length))
        segment.pins -= 1

    def abandon(self, place: ArenaSpan) -> None:
        """Give up a reserved range, whose bytes will not come."""
        self.segments[place.segment].pins -= 1
        self.free(place.segment, place.length)

    def free(self, number: int, length: int) -> None:
        """Count a body as dead. The last one retires its segment."""
        taken = record_bytes(length)
        segment = self.segments[number]
        segment.live -= taken
        self.live -= taken
        self._bodies -= 1
        if not segment.live:
            self._close_if_empty(segment)

    def prepare(self, place: ArenaSpan) -> bool:
        """Allocate a bounded part of a reserved range. Return True if all of it is allocated."""
        segment = self.segments[place.segment]
        return _allocate(segment, place.offset + place.length, limits.PREPARED_BYTES_PER_TURN)

    @property
    def room(self) -> int:
        """The bytes that can be written to the current segment without allocating more."""
        segment = self._current
        return segment.allocated - segment.used if segment is not None else 0

    def ensure_room(self, needed: int) -> None:
        """Ensure that records of `needed` bytes in total will find space, or raise `OutOfRoom`.

        After this, `append` cannot fail for them. That matters, because it runs when the state has changed already.
        """
        if self.room >= needed:  # nearly always
            return
        segment = self._current
        if segment is not None and segment.size - segment.used >= needed:
            _allocate(segment, segment.used + needed)
        else:  # one new segment takes all of them; the rest of the current one is given up
            self._open(max(self.segment_bytes, _aligned(needed, _PAGE)), needed)

    def add_raw_segment(self, size: int) -> Segment:
        """Return a new segment for something else than bodies, under the same limit. `drop_raw_segment` retires it."""
        segment = self._new(size, 0)
        segment.pins, segment.live = 1, size
        self.live += size
        self.raw_segments.add(segment.number)
        return segment

    def drop_raw_segment(self, number: int) -> None:
        """Retire a segment that `add_raw_segment` returned."""
        segment = self.segments[number]
        self.live -= segment.live
        self.raw_segments.discard(number)
        self._close(segment)

    def victim(self, *, pressed: bool) -> Segment | None:
        """Return the segment whose emptying gains the most, or None if no gain is worth the copying.

        Normally a share of dead bytes has to be exceeded first. If `pressed`, every gain above a small minimum is
        enough.
        """
        dead = self.bytes - self.live - self._unfilled()
        if not pressed and dead * 100 <= limits.DEAD_PERCENT_MAX * self.bytes:
            return None
        self._exceeds_limit &= self.bytes > self.limit - self._spare
        self._emptying_limit = self.bytes + self._spare if self._exceeds_limit else self.limit
        worst = max(filter(self._can_empty, self.segments.values()), key=self._gain, default=None)
        return worst if worst is not None and self._gain(worst) * 64 > worst.size else None

    def records(self, segment: Segment) -> Iterator[tuple[bytes, ArenaSpan]]:
        """Yield each body that was ever written to a segment, dead ones included, until the segment is gone."""
        at = 0
        while at < segment.used and segment.number in self.segments:
            digest, length = HEADER.unpack(segment.read(at, _HEADER_BYTES))
            yield digest, ArenaSpan(segment.number, at + _HEADER_BYTES, length)
            at += record_bytes(length)

    def close_retired(self) -> list[tuple[int, int]]:
        """Close the retired segments, and return their numbers and sizes.

        It is called at the end of a turn. Until then a reply of this turn can still send the descriptor of such a
        segment.
        """
        gone = [(segment.number, segment.size) for segment in self.retired.values()]
        for segment in self.retired.values():
            segment.close()
        self.retired.clear()
        return gone

    def close(self) -> None:
        """Close all segments."""
        for segment in list(self.segments.values()):
            self._close(segment)
        self.close_retired()

    @property
    def largest(self) -> int:
        """The size that no segment can exceed, however much is freed."""
        return self.limit - self._spare

    @property
    def overhead(self) -> int:
        """The bytes that headers and alignment of the bodies take, at most."""
        return self._bodies * RECORD_OVERHEAD_MAX

    @property
    def _spare(self) -> int:
        """The reserve for emptying. An arena of a few segments has none, because it would be most of the arena."""
        spare = _SPARE_SEGMENTS * self.segment_bytes
        return spare if self.limit >= 8 * spare else 0

    @property
    def _remainder(self) -> int:
        """The most that is given up at the end of a segment, be it shared or of one body."""
        return max(self.segment_bytes // 8, _PAGE)

    def _can_empty(self, segment: Segment) -> bool:
        """Return True if a segment's live bodies have space elsewhere."""
        if segment is self._current or segment.pins or segment.number in self.unwalkable:
            return False
        room = self._emptying_limit - self.bytes
        return segment.live <= self._unfilled() or segment.live + self.segment_bytes <= room

    def _gain(self, segment: Segment) -> int:
        """Return the bytes that emptying a segment gives back for certain.

        The moved bodies may leave as large an unused remainder in their new segment, so that much is not counted as
        gained.
        """
        return segment.size - segment.live - min(segment.size - segment.used, self._remainder)

    def _take_space(self, segment: Segment, taken: int, bodies: int = 1) -> int:
        """Count bytes of a segment as used and live, and return their offset."""
        start = segment.used
        segment.used = start + taken
        segment.live += taken
        self.live += taken
        self._bodies += bodies
        return start

    def _segment_with_room(self, taken: int, *, at_once: bool = True, emptying: bool = False) -> Segment:
        """Return a segment with `taken` free bytes: the current one, a new current one, or one for a large body alone.

        The bytes are allocated too if they are to be written `at_once`; otherwise only the header is.
        """
        now = taken if at_once else _HEADER_BYTES
        segment = self._current
        if segment is not None and segment.size - segment.used >= taken:
            _allocate(segment, segment.used + now)
            return segment
        if taken > self._remainder:
            return self._new(_aligned(taken, _PAGE), now, emptying=emptying)
        return self._open(self.segment_bytes, now, emptying=emptying)

    def _open(self, size: int, allocated: int, *, emptying: bool = False) -> Segment:
        """Make a new segment the current one. The unused rest of the one before is given up."""
        full = self._current
        if full is not None and not full.live and not full.pins:  # the limit may leave no space for both
            self._current = None
            self._close(full)
        self._current = self._new(size, allocated, emptying=emptying)
        return self._current

    def _new(self, size: int, allocated: int, *, emptying: bool = False) -> Segment:
        """Create a segment within the limit, and allocate its first bytes.

        Raise `OutOfRoom` if that is not possible.
        """
        if self.bytes + size > (self._emptying_limit if emptying else self.limit - self._spare):
            raise OutOfRoom(f"its {self.limit} bytes are taken")
        try:
            segment = self._make(next(self._numbers), size)
        except (OSError, MemoryError) as error:
            raise SystemShortage.of(error) from error
        try:
            _allocate(segment, allocated)
        except OutOfRoom:
            segment.close()
            raise
        self.segments[segment.number] = segment
        self.bytes += size
        return segment

    def _unfilled(self) -> int:
        """Return the bytes of the current segment that are not used yet. They are not dead."""
        return self._current.size - self._current.used if self._current is not None else 0

    def _close_if_empty(self, segment: Segment) -> None:
        if segment.live == 0 and segment is not self._current and not segment.pins:
            self._close(segment)

    def _close(self, segment: Segment) -> None:
        """Move a segment to the retired ones. It no longer counts against the limit."""
        del self.segments[segment.number]
        self.unwalkable.discard(segment.number)
        self.bytes -= segment.size
        self.retired[segment.number] = segment


def shared_segment_bytes(arena_bytes: int) -> int:
    """Return the size of the segments that bodies share, for an arena of a given size.

    A small arena has small segments, so that the one that is being filled is a small part of it.
    """
    share = _aligned(arena_bytes // limits.SEGMENTS_PER_ARENA, _PAGE)
    return min(limits.SEGMENT_BYTES_MAX, max(limits.SEGMENT_BYTES_MIN, share))


def record_bytes(length: int) -> int:
    """Return the bytes that a body of that length takes, with its header and alignment."""
    return _HEADER_BYTES + (length + 7 & ~7)


def _allocate(segment: Segment, end: int, at_most: int | None = None) -> bool:
    """Allocate bytes of a segment. Raise `SystemShortage` in place of `OSError`."""
    try:
        return segment.allocate(end, at_most)
    except OSError as error:
        raise SystemShortage.of(error) from error


def _aligned(length: int, to: int) -> int:
    return -(-length // to) * to
