"""Bodies in their forms: hot raw and warm compressed in shared memory, cold compressed on disk.

A move between tiers is a matter of the domain and done at once. The bytes follow, in slices that the loop can afford
between two turns (see `labour`); until then a body is where it was, as readable as before.

Cold bodies lie in files without a name, or, where there is a durable, in that: then every body is there from the moment
at which it is stored, and whatever is in shared memory is a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from stepwell import limits
from stepwell.domain.tiers.body_refs import BodyTable, Held
from stepwell.domain.tiers.tier import COLD, HOT, Tier
from stepwell.memory.writer.arena import RECORD_OVERHEAD_MAX, Arena, OutOfRoom, record_bytes, shared_segment_bytes
from stepwell.memory.writer.compaction import BackgroundWork
from stepwell.memory.writer.durable_bodies import DurableBodies
from stepwell.memory.writer.segments import FileSegment, MemorySegment, Segment
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.handles import IN_STORE, Handle


class BodyStore:
    """Where each body is, for as long as the domain refers to it or an upload holds it."""

    def __init__(
        self,
        refs: BodyTable,
        arena_bytes: int,
        *,
        durable: DurableBodies | None = None,
        first_segment: int = 1,
        make_memory: Callable[[int, int], Segment] = MemorySegment,
        make_file: Callable[[int, int], Segment] = FileSegment,
    ) -> None:
        self.numbers = itertools.count(first_segment)  # never the same twice in an epoch: clients know segments by them
        self.arena = Arena(make_memory, self.numbers, 0)
        self.files = Arena(make_file, self.numbers, limits.FILE_SEGMENT_BYTES)
        self.files.limit = limits.FILE_BYTES_MAX
        self.resize(arena_bytes)
        self.durable = durable
        self.refs = refs
        self.handles: dict[bytes, Handle] = {}
        self.on_move: Callable[[bytes, Handle], None] | None = None
        self.on_drop: Callable[[bytes], None] | None = None
        self.background = BackgroundWork(self)
        self._staged: dict[bytes, int] = {}  # uploads that no command has taken yet
        self.uploading = 0  # bytes of these, and of those that are still to come

    def __len__(self) -> int:
        return len(self.handles)

    def resize(self, arena_bytes: int) -> None:
        """Change the bound of the arena."""
        self.arena.resize(arena_bytes, shared_segment_bytes(arena_bytes))

    def require_room(self, lengths: Iterable[int]) -> None:
        """Make sure that bodies of these lengths can be kept, or raise `OutOfRoom`."""
        needed = 0
        for length in lengths:
            needed += record_bytes(length)
        self.arena.ensure_room(needed)

    def room(self, bodies: int) -> int:
        """How many bytes so many bodies can have together without further ado."""
        return self.arena.room - bodies * RECORD_OVERHEAD_MAX

    def restore(self, digest: bytes, size: int, packed_bytes: int | None, *, packed: bool) -> None:
        """A body that is in the durable from an earlier time; it comes into memory as it is needed there."""
        if packed_bytes is not None:
            self.refs.note_packed(digest, packed_bytes)
            if packed_bytes >= size:
                self.background.incompressible.add(digest)
        assert self.durable is not None
        self.handles[digest] = Handle(IN_STORE, self.durable.body_number(digest), size, size, packed)
        self.recheck(digest)

    def add_referenced(self, arrived: Mapping[bytes, bytes]) -> None:
        """Take in those of the bodies that came with a command which something refers to now."""
        for digest, body in arrived.items():
            if digest in self.handles:
                self.recheck(digest)
            elif tier := self.refs.tier_of(digest):
                self.add(digest, body)
                if tier is not HOT:
                    self.background.enqueue(digest)

    def add(self, digest: bytes, body: bytes) -> None:
        """A body that was not there, in the form of hot."""
        size = self.refs.counts[digest].size  # the same number for all who keep it
        self.handles[digest] = self.arena.append(digest, body, size, packed=False)
        if self.durable is not None:
            self.durable.put(digest, size, body, packed=False)

    def add_all(self, arrived: Mapping[bytes, bytes]) -> None:
        """Bodies that were not there, for which there is `room`."""
        self.handles.update(self.arena.extend(arrived))
        if self.durable is not None:
            for digest, body in arrived.items():
                self.durable.put(digest, len(body), body, packed=False)

    def recheck(self, digest: bytes) -> None:
        """Something that referred to a body has changed: it may have to go, or to take another form."""
        handle = self.handles.get(digest)
        if handle is None:
            return
        tier = self.refs.tier_of(digest)
        if tier is None:
            if digest not in self._staged:
                self._drop(digest, handle)
        elif not self.fits(digest, handle, tier):
            self.background.enqueue(digest)

    def fits(self, digest: bytes, handle: Handle, tier: Tier) -> bool:
        """Whether a body has the form of its tier."""
        if tier is COLD:
            if self.durable is None:
                return handle.segment in self.files.segments
            return handle.segment == IN_STORE and (handle.packed or digest in self.background.incompressible)
        if handle.segment not in self.arena.segments:
            return False
        return not handle.packed if tier is HOT else handle.packed or digest in self.background.incompressible

    def locate(self, digests: Iterable[bytes]) -> dict[bytes, Handle]:
        """Where bodies are now."""
        return {digest: self.handles[digest] for digest in digests}

    def find(self, digest: bytes) -> Handle | None:
        """Where a body is now, if it is kept."""
        return self.handles.get(digest)

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
        return Upload(self.arena, place, segment.view[place.offset : place.offset + size], self.durable)

    def stage(self, upload: Upload) -> Held:
        """An upload is complete: it stays until it is unstaged."""
        digest, place = upload.finish(is_new=lambda found: found not in self.handles), upload.place
        self._staged[digest] = self._staged.get(digest, 0) + 1
        if digest in self.handles:
            self.arena.abandon(place)
        else:
            self.arena.commit(place, digest)
            self.handles[digest] = Handle(place.segment, place.offset, place.length, place.length, packed=False)
        return digest, place.length

    def abandon(self, upload: Upload) -> None:
        """The rest of an upload will not come."""
        self.uploading -= upload.place.length
        upload.abandon()

    def unstage(self, digest: bytes) -> None:
        """Whoever uploaded it has done what they wanted with it."""
        self.uploading -= self.handles[digest].size
        self._staged[digest] -= 1
        if not self._staged[digest]:
            del self._staged[digest]
            self.recheck(digest)

    @property
    def is_pressed(self) -> bool:
        """Whether the arena is so full that making room should not wait for an idle moment."""
        return self.arena.bytes * 100 > limits.PRESSED_PERCENT * self.arena.limit

    def close_retired(self) -> list[tuple[int, int]]:
        """Close the segments that are out of use, and give their numbers and sizes."""
        if not (self.arena.retired or self.files.retired):
            return []
        self.background.retry_blocked()
        return [*self.arena.close_retired(), *self.files.close_retired()]

    def close(self) -> None:
        self.background.stop()
        self.arena.close()
        self.files.close()

    def move(self, digest: bytes, old: Handle, moved: Handle) -> None:
        """A body is elsewhere now, or in another form."""
        self.handles[digest] = moved
        self._free(old)
        if self.on_move:
            self.on_move(digest, moved)
        self.recheck(digest)

    def segment(self, number: int) -> Segment:
        """A segment that is in use, or was until a moment ago."""
        for arena in (self.arena, self.files):
            if found := arena.segments.get(number) or arena.retired.get(number):
                return found
        raise KeyError(number)

    def _drop(self, digest: bytes, handle: Handle) -> None:
        del self.handles[digest]
        self.background.forget(digest)
        self._free(handle)
        if self.durable is not None:
            self.durable.drop(digest)
        if self.on_drop:
            self.on_drop(digest)

    def _free(self, handle: Handle) -> None:
        if handle.segment == IN_STORE:
            return
        arena = self.arena if handle.segment in self.arena.segments else self.files
        arena.free(handle.segment, handle.stored)
