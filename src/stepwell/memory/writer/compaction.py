"""Background work on bodies: conversion to the form of their tier, and compaction of segments.

The work is a generator that yields after each short step; the loop runs it for about a millisecond between two turns. A
body stays readable at its old place until the new one is complete, and each step begins by checking that the body has
not been deleted or moved meanwhile.

The target form is determined when the work is done and not when it is queued. A body that was demoted and promoted
again costs nothing.

Conversions that find no room are blocked until segments are freed, or some seconds have passed. Bytes that come back
from a disk are hashed before they are used: a damaged body is never converted, and stays as it is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from stepwell import limits
from stepwell.domain.machine import note_packed_bytes
from stepwell.domain.tiers.model import COLD, HOT
from stepwell.errors import RuntimeFault, StoreDamaged
from stepwell.memory.compression import Compressor, unpack, unpack_slices
from stepwell.memory.writer.arena import Arena, ArenaSpan, OutOfRoom
from stepwell.memory.writer.durable_bodies import DurableBodies
from stepwell.memory.writer.segments import Segment
from stepwell.protocol.handles import IN_STORE, Handle

if TYPE_CHECKING:
    from stepwell.memory.writer.body_store import BodyStore


class BackgroundWork:
    """The queue of conversions and the compaction of one body store.

    The body store owns it; only the manager's thread uses it. `on_failure` is called with errors of single bodies,
    which stop neither the work nor the manager.
    """

    def __init__(self, bodies: BodyStore) -> None:
        self._bodies = bodies
        self.on_failure: Callable[[Exception], None] | None = None
        # Bodies that wait for conversion, the longest first, and the next of them. A dict takes less than half of the
        # memory of an `OrderedDict`, but to find its first key it passes over all that were removed. So a slice is
        # taken at a time.
        self._waiting: dict[bytes, None] = {}
        self._next: Iterator[bytes] = iter(())
        self._current: bytes | None = None  # the body that is being converted
        self._victim: Segment | None = None  # the segment that is being emptied
        self._blocked: dict[bytes, None] = {}  # bodies that found no room, in order
        self._corrupt: set[bytes] = set()  # bodies whose stored bytes do not match their digest
        self._compressor = Compressor()
        self._running: Iterator[None] | None = None
        self._idle_totals: tuple[int, ...] = ()  # when there was nothing to do last

    def enqueue(self, digest: bytes) -> None:
        """Queue a body whose form does not match its tier."""
        self._blocked.pop(digest, None)
        self._waiting[digest] = None

    def forget(self, digest: bytes) -> None:
        """Forget a body that was freed."""
        self._waiting.pop(digest, None)
        self._blocked.pop(digest, None)
        self._corrupt.discard(digest)

    @property
    def waiting(self) -> int:
        """The number of bodies that do not have the form of their tier yet."""
        return len(self._waiting) + len(self._blocked) + (self._current is not None)

    def retry_blocked(self) -> None:
        """Queue the bodies again that found no room."""
        self._waiting.update(self._blocked)
        self._blocked.clear()

    def stop(self) -> None:
        """Stop the present step. Nothing is left half done but a reserved range, which ends with its segment."""
        self._running = None

    def work(self, seconds: float = limits.WORK_SECONDS_PER_TURN) -> bool:
        """Work for some time, at least one step. Return True if there may be more to do.

        Without queued bodies, compaction is tried again only if the arenas have changed since it last found nothing to
        do.
        """
        if self._running is None:
            if not self._waiting and self._idle_totals == self._totals():
                return False
            self._running = self._steps()
        until = time.perf_counter() + seconds
        try:
            for _ in self._running:
                if time.perf_counter() >= until:
                    return True
        except Exception as error:  # noqa: BLE001 - unreadable bytes concern one body only
            self._give_up(error)
            return True
        self._running = None
        self._idle_totals = self._totals()
        return False

    def _give_up(self, error: Exception) -> None:
        """Leave the present body or segment as it is, after an error, and report the error."""
        self._running = None
        if self._current is not None:
            self._blocked[self._current] = None
            self._current = None
        if self._victim is not None:
            for arena in (self._bodies.arena, self._bodies.files):
                if self._victim.number in arena.segments:
                    arena.unwalkable.add(self._victim.number)
            self._victim = None
        if self.on_failure:
            self.on_failure(error)

    def _steps(self) -> Iterator[None]:
        """Convert and compact until nothing is left to do, yielding after each short step.

        Conversions come first: they free raw copies, so that segments to compact are fewer afterwards.
        """
        arena, files = self._bodies.arena, self._bodies.files
        while True:
            if self._waiting:
                digest = self._current = self._pop_waiting()
                yield from self._convert(digest)
                self._current = None
                if not self._waiting:
                    self._waiting = {}  # an emptied dict keeps its memory
            elif not (yield from self._empty_one(arena)) and not (yield from self._empty_one(files)):
                self._victim = None
                return
            self._victim = None
            yield

    def _pop_waiting(self) -> bytes:
        """Remove a body from the queue, which is not empty: the one that has waited longest, or a little less."""
        while True:
            for digest in self._next:
                if digest in self._waiting:  # it may have been freed since its slice was taken
                    del self._waiting[digest]
                    return digest
            self._next = iter([*islice(self._waiting, limits.QUEUE_SLICE_BODIES)])

    def _totals(self) -> tuple[int, ...]:
        """Return how full the arenas are. While that does not change, there is nothing new to compact."""
        arena, files = self._bodies.arena, self._bodies.files
        return arena.bytes, arena.live, files.bytes, files.live

    def _convert(self, digest: bytes) -> Iterator[None]:
        """Give a body the form of its tier. Readers find it in the old form until the new one is complete.

        The checks before the work are cheap, because most queued bodies need none of it: the body is gone, has the
        right form already, is not committed to the durable store yet, or is known to be corrupt. After every step the
        handle is compared with the one at the beginning. If it is another one, the body was deleted or moved, and the
        conversion is given up.

        A body that turns out to be incompressible is rechecked, since its raw form may now be right. A cold body goes
        to the durable store if there is one, or to a file; a warm or hot one goes to the arena.
        """
        bodies = self._bodies
        handle, tier = bodies.handles.get(digest), bodies.refs.tier_of(digest)
        if handle is None or tier is None or bodies.fits(digest, handle, tier):
            return
        durable = bodies.durable
        if durable is not None and not durable.is_committed(digest):
            self._blocked[digest] = None
            return
        if digest in self._corrupt:
            return
        packed, slices = yield from self._source(digest, handle)
        if bodies.handles.get(digest) is not handle:
            return
        pack = tier is not HOT and not packed and not bodies.is_incompressible(digest)
        expand = tier is HOT and packed
        pieces: list[bytes] = []
        for piece in self._encoded(slices, handle.size, pack=pack, expand=expand):
            pieces.append(piece)
            yield
            if bodies.handles.get(digest) is not handle:
                return
        stored = sum(map(len, pieces))
        if pack and not self._is_worth_packing(digest, handle, stored):
            bodies.recheck(digest)
            return
        packed = pack or (packed and not expand)
        if tier is COLD and durable is not None:
            yield from self._move_to_durable(digest, handle, durable, pieces, packed=packed)
            return
        target = bodies.files if tier is COLD else bodies.arena
        if not (yield from self._place(digest, handle, target, pieces, stored=stored, packed=packed)):
            self._blocked[digest] = None

    def _is_worth_packing(self, digest: bytes, handle: Handle, stored: int) -> bool:
        """Return True if packing made a body small enough, and record its packed size for the budget.

        A body that shrinks by less than a tenth stays raw, because readers would expand it for nothing.
        """
        refs, durable = self._bodies.refs, self._bodies.durable
        is_worth = stored * 100 <= handle.size * limits.PACKED_PERCENT_MAX
        takes = stored if is_worth else handle.size
        note_packed_bytes(refs, digest, takes)
        if durable is not None:
            durable.note_packed(digest, takes)
        return is_worth

    def _source(self, digest: bytes, handle: Handle) -> Generator[None, None, tuple[bool, Iterator[bytes]]]:
        """Return a flag for packed bytes and the stored bytes of a body, in slices.

        Bytes from the durable store are expanded and hashed first, because a damaged body must not be served as a sound
        one. The slices are recorded on the way and returned, so that the store is read once. If the body is deleted
        meanwhile, the slices end early: the caller notices it by the handle, and gives up. Raise `StoreDamaged` for a
        body that does not match its digest; it is remembered as corrupt, so that the error is reported once.
        """
        if handle.segment != IN_STORE:
            return handle.is_packed, self._slices(digest, handle)
        assert self._bodies.durable is not None
        packed, slices = self._bodies.durable.read(digest)
        stored: list[bytes] = []
        recorded = _recording(slices, stored)
        found = hashlib.sha256()
        try:
            for piece in unpack_slices(recorded) if packed else recorded:
                found.update(piece)
                yield
                if self._bodies.handles.get(digest) is not handle:  # deleted meanwhile, and its bytes with it
                    return packed, iter(())
        except RuntimeFault:
            found = hashlib.sha256(b"what cannot be expanded")
        if self._bodies.handles.get(digest) is not handle:
            return packed, iter(())
        if found.digest() != digest:
            self._corrupt.add(digest)
            raise StoreDamaged(f"the body {digest.hex()} is not what was stored: see `stepwell doctor`")
        return packed, iter(stored)

    def _encoded(self, slices: Iterator[bytes], size: int, *, pack: bool, expand: bool) -> Iterator[bytes]:
        """Yield the bytes of the new form: packed, expanded or unchanged. Small bodies are converted in one step."""
        if size <= limits.WORK_BYTES_PER_SLICE:
            stored = b"".join(slices)
            yield self._compressor.pack(stored) if pack else unpack(stored, size) if expand else stored
            return
        yield from Compressor().pack_slices(slices) if pack else unpack_slices(slices) if expand else slices

    def _slices(self, digest: bytes, handle: Handle) -> Iterator[bytes]:
        """Yield the stored bytes of a body in a segment, for as long as the body is there."""
        for start in range(0, handle.stored, limits.WORK_BYTES_PER_SLICE):
            if self._bodies.handles.get(digest) is not handle:
                return
            length = min(limits.WORK_BYTES_PER_SLICE, handle.stored - start)
            yield self._bodies.segment(handle.segment).read(handle.offset + start, length)

    def _empty_one(self, arena: Arena) -> Generator[None, None, bool]:
        """Move the live bodies out of the segment that gains the most. Return True if a segment was freed.

        The segment is walked by its headers. A record is live if the body's handle still points at it; all others are
        dead copies. The segment retires by itself when the last live body has moved.
        """
        victim = arena.victim(pressed=arena.bytes * 100 > limits.PRESSED_PERCENT * arena.limit)
        if victim is None:
            return False
        self._victim = victim
        for digest, place in arena.records(victim):
            handle = self._bodies.handles.get(digest)
            if handle is not None and (handle.segment, handle.offset) == (place.segment, place.offset):
                pieces, stored, packed = self._slices(digest, handle), handle.stored, handle.is_packed
                placing = self._place(digest, handle, arena, pieces, stored=stored, packed=packed, emptying=True)
                if not (yield from placing):
                    return False
            yield
        return victim.number not in arena.segments

    def _place(
        self,
        digest: bytes,
        old: Handle,
        target: Arena,
        pieces: Iterable[bytes],
        *,
        stored: int,
        packed: bool,
        emptying: bool = False,
    ) -> Generator[None, None, bool]:
        """Write a body elsewhere, piece by piece, and then free its old place. Return True unless there was no room.

        The handle is exchanged last. If the body was deleted or moved while it was copied, the copy is given up.
        """
        place: ArenaSpan | None = None
        try:
            place = target.reserve(stored, emptying=emptying)
            while not target.prepare(place):
                yield
            offset = place.offset
            for piece in pieces:
                target.segments[place.segment].write(offset, piece)
                offset += len(piece)
                yield
            if self._bodies.handles.get(digest) is not old:
                target.abandon(place)
                return True
            target.commit(place, digest)
        except (OutOfRoom, OSError):  # a disk can fail even after the allocation
            if place is not None:
                target.abandon(place)
            return False
        self._bodies.move(digest, old, Handle(place.segment, place.offset, old.size, stored if packed else 0))
        return True

    def _move_to_durable(
        self, digest: bytes, old: Handle, durable: DurableBodies, pieces: list[bytes], *, packed: bool
    ) -> Generator[None, None, None]:
        """Leave a body to the durable store, which has it already. It is rewritten there only if it is packed now.

        A packed body of one piece is one row. A larger one is written in parts, some per turn, and replaces the raw
        form when the last part is written. The copy in shared memory is freed at the end.
        """
        if packed and len(pieces) == 1:
            durable.put(digest, old.size, pieces[0], packed=True)
        elif packed:
            number = durable.begin_upload()
            for part, piece in enumerate(_parts(pieces)):
                durable.add_part(number, part, piece)
                yield
                if self._bodies.handles.get(digest) is not old:
                    durable.abandon_upload(number)
                    return
            durable.finish_upload(number, digest, old.size, packed=True)
        packed_bytes = sum(map(len, pieces)) if packed else 0
        self._bodies.move(digest, old, Handle(IN_STORE, durable.body_number(digest), old.size, packed_bytes))


def _recording(slices: Iterable[bytes], recorded: list[bytes]) -> Iterator[bytes]:
    """Yield the slices, and collect them in a list."""
    for each in slices:
        recorded.append(each)
        yield each


def _parts(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in parts of the size in which they are written, since packed pieces can be tiny."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        if len(gathered) >= limits.BODY_PART_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)
