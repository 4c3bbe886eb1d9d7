"""Bodies in their forms: hot raw and warm compressed in shared memory, cold compressed on disk.

A move between tiers is a matter of the domain and done at once. The bytes follow here, in slices that the loop can
afford between two turns; until then a body is where it was, as readable as before. What is wanted is asked when the
work is done, not when it is ordered: what went down and came back costs nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

from stepwell import limits
from stepwell.domain.content import Bodies, Held
from stepwell.domain.tier import COLD, HOT, Tier
from stepwell.memory.arena import Arena, OutOfRoom, Place, record_bytes, shared_segment_bytes
from stepwell.memory.packing import Packer, unpack, unpack_slices
from stepwell.memory.segments import FileSegment, MemorySegment, Segment
from stepwell.memory.upload import Upload
from stepwell.protocol.handles import Handle


class BodyStore:
    """Where each body is, for as long as the domain refers to it or an upload holds it."""

    def __init__(
        self,
        counted: Bodies,
        arena_bytes: int,
        *,
        make_memory: Callable[[int, int], Segment] = MemorySegment,
        make_file: Callable[[int, int], Segment] = FileSegment,
    ) -> None:
        numbers = itertools.count(1)
        self.arena = Arena(make_memory, numbers, 0)
        self.files = Arena(make_file, numbers, limits.FILE_SEGMENT_BYTES)
        self.files.limit = limits.FILE_BYTES_MAX
        self.resize(arena_bytes)
        self.on_move: Callable[[bytes, Handle], None] | None = None
        self.on_drop: Callable[[bytes], None] | None = None
        self._counted = counted
        self._handles: dict[bytes, Handle] = {}
        self._staged: dict[bytes, int] = {}  # uploads that no command has taken yet
        self.uploading = 0  # bytes of these, and of those that are still to come
        self._waiting: dict[bytes, None] = {}  # for another form, the longest first
        self._in_hand: bytes | None = None  # the one that is being given it
        self._victim: Segment | None = None  # the segment that is being emptied
        self.on_failure: Callable[[Exception], None] | None = None
        self._stuck: dict[bytes, None] = {}  # for want of room
        self._incompressible: set[bytes] = set()
        self._packer = Packer()
        self._labour: Iterator[None] | None = None
        self._settled: tuple[int, ...] = ()  # how full the arenas were when there was nothing more to do

    def __len__(self) -> int:
        return len(self._handles)

    def resize(self, arena_bytes: int) -> None:
        """Change the bound of the arena."""
        self.arena.resize(arena_bytes, shared_segment_bytes(arena_bytes))

    def require_room(self, lengths: Iterable[int]) -> None:
        """Make sure that bodies of these lengths can be kept, or raise `OutOfRoom`."""
        needed = 0
        for length in lengths:
            needed += record_bytes(length)
        self.arena.ensure(needed)

    def keep(self, arrived: Mapping[bytes, bytes]) -> None:
        """Take in those of the bodies that came with a command which something refers to now."""
        for digest, body in arrived.items():
            if digest in self._handles:
                self.follow(digest)
            elif tier := self._counted.tier_of(digest):
                self._handles[digest] = self.arena.append(digest, body, len(body), packed=False)
                if tier is not HOT:
                    self._waiting[digest] = None

    def follow(self, digest: bytes) -> None:
        """Something that referred to a body has changed: it may have to go, or to take another form."""
        handle = self._handles.get(digest)
        if handle is None:
            return
        tier = self._counted.tier_of(digest)
        if tier is None:
            if digest not in self._staged:
                self._drop(digest, handle)
        elif not self._fits(digest, handle, tier):
            self._stuck.pop(digest, None)
            self._waiting[digest] = None

    def locate(self, digests: Iterable[bytes]) -> dict[bytes, Handle]:
        """Where bodies are now."""
        return {digest: self._handles[digest] for digest in digests}

    def find(self, digest: bytes) -> Handle | None:
        """Where a body is now, if it is kept."""
        return self._handles.get(digest)

    def reserve(self, size: int, own: int = 0) -> Upload:
        """Room for an upload, or `OutOfRoom`. All that are under way may have half of the arena, so that stores go on.

        `own` are the bytes that the same peer has uploaded for the same request: it does not wait for itself.
        """
        if self.uploading > own and (self.uploading + size) * 100 > limits.UPLOADS_PERCENT_MAX * self.arena.limit:
            raise OutOfRoom("uploads that are under way take it")
        place = self.arena.reserve(size)
        segment = self.arena.segments[place.segment]
        assert isinstance(segment, MemorySegment)
        self.uploading += size
        return Upload(self.arena, place, segment.view[place.offset : place.offset + size])

    def stage(self, upload: Upload) -> Held:
        """An upload is complete: it stays until it is unstaged."""
        digest, place = upload.finish(), upload.place
        self._staged[digest] = self._staged.get(digest, 0) + 1
        if digest in self._handles:
            self.arena.abandon(place)
        else:
            self.arena.settle(place, digest)
            self._handles[digest] = Handle(place.segment, place.offset, place.length, place.length, packed=False)
        return digest, place.length

    def abandon(self, upload: Upload) -> None:
        """The rest of an upload will not come."""
        self.uploading -= upload.place.length
        upload.abandon()

    def unstage(self, digest: bytes) -> None:
        """Whoever uploaded it has done what they wanted with it."""
        self.uploading -= self._handles[digest].size
        self._staged[digest] -= 1
        if not self._staged[digest]:
            del self._staged[digest]
            self.follow(digest)

    @property
    def is_pressed(self) -> bool:
        """Whether the arena is so full that making room should not wait for an idle moment."""
        return self.arena.bytes * 100 > limits.PRESSED_PERCENT * self.arena.limit

    @property
    def waiting(self) -> int:
        """How many bodies do not have the form of their tier yet."""
        return len(self._waiting) + len(self._stuck) + (self._in_hand is not None)

    def work(self, seconds: float = limits.WORK_SECONDS_PER_TURN) -> bool:
        """Do some of what has to be done; whether there may be more."""
        if self._labour is None:
            if not self._waiting and self._settled == self._sums():
                return False
            self._labour = self._labours()
        until = time.perf_counter() + seconds
        try:
            for _ in self._labour:
                if time.perf_counter() >= until:
                    return True
        except Exception as error:  # noqa: BLE001 - of bytes that cannot be read: nobody else is the worse for it
            self._give_up(error)
            return True
        self._labour = None
        self._settled = self._sums()
        return False

    def _give_up(self, error: Exception) -> None:
        """What was in hand stays as it is."""
        self._labour = None
        if self._in_hand is not None:
            self._stuck[self._in_hand] = None
            self._in_hand = None
        if self._victim is not None:
            for arena in (self.arena, self.files):
                if self._victim.number in arena.segments:
                    arena.spoiled.add(self._victim.number)
            self._victim = None
        if self.on_failure:
            self.on_failure(error)

    def let_go(self) -> list[tuple[int, int]]:
        """Close the segments that are out of use, and give their numbers and sizes."""
        if not (self.arena.leaving or self.files.leaving):
            return []
        self.try_again()
        return [*self.arena.let_go(), *self.files.let_go()]

    def try_again(self) -> None:
        """What found no room may find some now."""
        self._waiting.update(self._stuck)
        self._stuck.clear()

    def close(self) -> None:
        self._labour = None
        self.arena.close()
        self.files.close()

    def _labours(self) -> Iterator[None]:
        """All that has to be done, in steps that are short."""
        while True:
            if self._waiting:
                digest = next(iter(self._waiting))
                del self._waiting[digest]
                self._in_hand = digest
                yield from self._reform(digest)
                self._in_hand = None
            elif not (yield from self._empty_one(self.arena)) and not (yield from self._empty_one(self.files)):
                self._victim = None
                return
            self._victim = None
            yield

    def _sums(self) -> tuple[int, ...]:
        return self.arena.bytes, self.arena.live, self.files.bytes, self.files.live

    def _fits(self, digest: bytes, handle: Handle, tier: Tier) -> bool:
        """Whether a body has the form of its tier."""
        if tier is COLD:
            return handle.segment in self.files.segments
        if handle.segment not in self.arena.segments:
            return False
        return not handle.packed if tier is HOT else handle.packed or digest in self._incompressible

    def _reform(self, digest: bytes) -> Iterator[None]:
        """Give a body the form of its tier. Whoever looks meanwhile finds it as it was."""
        handle, tier = self._handles.get(digest), self._counted.tier_of(digest)
        if handle is None or tier is None or self._fits(digest, handle, tier):
            return
        pack = tier is not HOT and not handle.packed and digest not in self._incompressible
        expand = tier is HOT and handle.packed
        pieces: list[bytes] = []
        stored = 0
        for piece in self._converted(digest, handle, pack=pack, expand=expand):
            pieces.append(piece)
            stored += len(piece)
            yield
            if self._handles.get(digest) is not handle:
                return
        if pack:
            if stored * 100 > handle.size * limits.PACKED_PERCENT_MAX:
                self._incompressible.add(digest)
                self._counted.note_packed(digest, handle.size)
                self.follow(digest)
                return
            self._counted.note_packed(digest, stored)
        target = self.files if tier is COLD else self.arena
        packed = pack or (handle.packed and not expand)
        if not (yield from self._place(digest, handle, target, pieces, stored=stored, packed=packed)):
            self._stuck[digest] = None

    def _converted(self, digest: bytes, handle: Handle, *, pack: bool, expand: bool) -> Iterator[bytes]:
        if handle.size <= limits.WORK_BYTES_PER_SLICE:
            stored = self.segment(handle.segment).read(handle.offset, handle.stored)
            yield self._packer.pack(stored) if pack else unpack(stored, handle.size) if expand else stored
            return
        slices = self._slices(digest, handle)
        yield from Packer().pack_slices(slices) if pack else unpack_slices(slices) if expand else slices

    def _slices(self, digest: bytes, handle: Handle) -> Iterator[bytes]:
        """What is stored of a body, for as long as it is there."""
        for start in range(0, handle.stored, limits.WORK_BYTES_PER_SLICE):
            if self._handles.get(digest) is not handle:
                return
            length = min(limits.WORK_BYTES_PER_SLICE, handle.stored - start)
            yield self.segment(handle.segment).read(handle.offset + start, length)

    def _empty_one(self, arena: Arena) -> Generator[None, None, bool]:
        """Move what is live out of the segment that is most worth it; whether one went."""
        victim = arena.victim(pressed=arena.bytes * 100 > limits.PRESSED_PERCENT * arena.limit)
        if victim is None:
            return False
        self._victim = victim
        for digest, place in arena.records(victim):
            handle = self._handles.get(digest)
            if handle is not None and (handle.segment, handle.offset) == (place.segment, place.offset):
                pieces, stored, packed = self._slices(digest, handle), handle.stored, handle.packed
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
        """Write a body elsewhere, piece by piece, and only then let go of its old place; whether there was room."""
        place: Place | None = None
        try:
            place = target.reserve(stored, emptying=emptying)
            while not target.prepare(place):
                yield
            offset = place.offset
            for piece in pieces:
                target.segments[place.segment].write(offset, piece)
                offset += len(piece)
                yield
            if self._handles.get(digest) is not old:
                target.abandon(place)
                return True
            target.settle(place, digest)
        except (OutOfRoom, OSError):  # a disk can fail even where it has given room
            if place is not None:
                target.abandon(place)
            return False
        self._move(digest, old, Handle(place.segment, place.offset, stored, old.size, packed))
        return True

    def _move(self, digest: bytes, old: Handle, moved: Handle) -> None:
        self._handles[digest] = moved
        self._free(old)
        if self.on_move:
            self.on_move(digest, moved)
        self.follow(digest)

    def _drop(self, digest: bytes, handle: Handle) -> None:
        del self._handles[digest]
        self._waiting.pop(digest, None)
        self._stuck.pop(digest, None)
        self._incompressible.discard(digest)
        self._free(handle)
        if self.on_drop:
            self.on_drop(digest)

    def _free(self, handle: Handle) -> None:
        arena = self.arena if handle.segment in self.arena.segments else self.files
        arena.free(handle.segment, handle.stored)

    def segment(self, number: int) -> Segment:
        """A segment that is in use, or was until a moment ago."""
        for arena in (self.arena, self.files):
            if found := arena.segments.get(number) or arena.leaving.get(number):
                return found
        raise KeyError(number)
