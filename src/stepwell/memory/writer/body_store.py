"""The body store: where each body is, and in which form.

A hot body is raw and a warm one packed, both in shared memory. A cold body is packed on disk. A move between tiers is a
change of rows in the domain and takes effect at once; the bytes follow later, in slices of background work (see
`compaction`). Until then a body stays where it was, as readable as before.

Cold bodies are kept in unnamed files, or in the durable store if there is one. With a durable store every body is
written there when it is stored, and its bytes in shared memory are a copy.

The store does not count references. `refs`, the domain's table, says which tier needs a body, or that none does.
Whenever a row that refers to a body changes, the owner calls `recheck`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from stepwell import limits
from stepwell.domain.machine import note_packed_bytes
from stepwell.domain.tiers.body_refs import BodyTable
from stepwell.domain.tiers.model import COLD, HOT, BodyRef, Tier
from stepwell.memory.writer.arena import RECORD_OVERHEAD_MAX, Arena, OutOfRoom, record_bytes, shared_segment_bytes
from stepwell.memory.writer.compaction import BackgroundWork
from stepwell.memory.writer.durable_bodies import DurableBodies
from stepwell.memory.writer.segments import FileSegment, MemorySegment, Segment
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.handles import IN_STORE, Handle


class BodyStore:
    """The place of each body, for as long as the domain refers to it or an upload holds it.

    The state owner creates it; only the manager's thread uses it. `handles` is the index: every body has exactly one
    handle, which changes when the body moves. `on_move` and `on_drop` tell the catalogues. `uploading` counts the bytes
    of uploads that are under way, or complete and not yet used by a request.
    """

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
        # Segment numbers never repeat within an epoch, because clients know segments by their numbers.
        self.numbers = itertools.count(first_segment)
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
        self._staged: dict[bytes, int] = {}  # the number of unreleased uploads of each body
        self.uploading = 0

    def __len__(self) -> int:
        return len(self.handles)

    def resize(self, arena_bytes: int) -> None:
        """Change the limit of the arena."""
        self.arena.resize(arena_bytes, shared_segment_bytes(arena_bytes))

    def require_room(self, lengths: Iterable[int]) -> None:
        """Ensure that bodies of these lengths can be stored, or raise `OutOfRoom`."""
        needed = 0
        for length in lengths:
            needed += record_bytes(length)
        self.arena.ensure_room(needed)

    def room(self, bodies: int) -> int:
        """Return how many bytes that number of bodies may have in total, without a new segment or allocation."""
        return self.arena.room - bodies * RECORD_OVERHEAD_MAX

    def restore(self, digest: bytes, size: int, packed_bytes: int | None, *, packed: bool) -> None:
        """Register a body of the durable store, after a restart.

        Its bytes come into memory when its tier needs them there.
        """
        if packed_bytes is not None:
            note_packed_bytes(self.refs, digest, packed_bytes)
        assert self.durable is not None
        stored = packed_bytes or size if packed else 0
        self.handles[digest] = Handle(IN_STORE, self.durable.body_number(digest), size, stored)
        self.recheck(digest)

    def add_referenced(self, arrived: Mapping[bytes, bytes]) -> None:
        """Store the bodies of a command that something refers to now.

        The others were superseded in the same transaction.
        """
        for digest, body in arrived.items():
            if digest in self.handles:
                self.recheck(digest)
            elif tier := self.refs.tier_of(digest):
                self.add(digest, body)
                if tier is not HOT:
                    self.background.enqueue(digest)

    def add(self, digest: bytes, body: bytes) -> None:
        """Store a new body in its raw form. Room was ensured before."""
        size = self.refs.counts[digest].size  # the domain's int object, so that all rows share one
        self.handles[digest] = self.arena.append(digest, body, size, packed=False)
        if self.durable is not None:
            self.durable.put(digest, size, body, packed=False)

    def add_all(self, arrived: Mapping[bytes, bytes]) -> None:
        """Store new bodies in one step. The caller has checked `room`."""
        counts = self.refs.counts
        self.handles.update(self.arena.extend(arrived, [counts[digest].size for digest in arrived]))
        if self.durable is not None:
            for digest, body in arrived.items():
                self.durable.put(digest, len(body), body, packed=False)

    def recheck(self, digest: bytes) -> None:
        """Free a body that nothing refers to any more, or queue it for conversion if its form does not match its tier.

        The owner calls this after each change of a row that refers to the body.
        """
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
        """Return True if a body is in the place and the form of its tier."""
        if tier is COLD:
            if self.durable is None:
                return handle.segment in self.files.segments
            return handle.segment == IN_STORE and (handle.is_packed or self.is_incompressible(digest))
        if handle.segment not in self.arena.segments:
            return False
        return not handle.is_packed if tier is HOT else handle.is_packed or self.is_incompressible(digest)

    def is_incompressible(self, digest: bytes) -> bool:
        """Return True if packing was found to make a body hardly smaller: its raw form is right for every tier."""
        count = self.refs.counts.get(digest)
        return count is not None and count.is_incompressible

    def locate(self, digests: Iterable[bytes]) -> dict[bytes, Handle]:
        """Return the present handles of bodies."""
        return {digest: self.handles[digest] for digest in digests}

    def find(self, digest: bytes) -> Handle | None:
        """Return the present handle of a body, or None if the body is not stored."""
        return self.handles.get(digest)

    def reserve(self, size: int, own: int = 0) -> Upload:
        """Reserve memory for an upload, or raise `OutOfRoom`.

        All uploads together may take half of the arena, so that stores continue. `own` is what the same connection has
        uploaded for the same request: it does not wait for itself.
        """
        if self.uploading > own and (self.uploading + size) * 100 > limits.UPLOADS_PERCENT_MAX * self.arena.limit:
            raise OutOfRoom("uploads that are under way take it")
        place = self.arena.reserve(size)
        segment = self.arena.segments[place.segment]
        assert isinstance(segment, MemorySegment)
        self.uploading += size
        return Upload(self.arena, place, segment.view[place.offset : place.offset + size], self.durable)

    def stage(self, upload: Upload) -> BodyRef:
        """Register a complete upload, and return its digest and size.

        It stays until `unstage`, even without a reference. A body that is stored already is not stored twice: the
        uploaded bytes are given up.
        """
        digest, place = upload.finish(is_new=lambda found: found not in self.handles), upload.place
        self._staged[digest] = self._staged.get(digest, 0) + 1
        if digest in self.handles:
            self.arena.abandon(place)
        else:
            self.arena.commit(place, digest)
            self.handles[digest] = Handle(place.segment, place.offset, place.length)
        return digest, place.length

    def abandon(self, upload: Upload) -> None:
        """Give up an upload whose remaining bytes will not come."""
        self.uploading -= upload.place.length
        upload.abandon()

    def unstage(self, digest: bytes) -> None:
        """Release an upload after its request was answered.

        The body goes, unless the request made a row refer to it.
        """
        self.uploading -= self.handles[digest].size
        self._staged[digest] -= 1
        if not self._staged[digest]:
            del self._staged[digest]
            self.recheck(digest)

    @property
    def is_pressed(self) -> bool:
        """True if the arena is so full that background work should not wait for an idle moment."""
        return self.arena.bytes * 100 > limits.PRESSED_PERCENT * self.arena.limit

    def close_retired(self) -> list[tuple[int, int]]:
        """Close the retired segments, and return their numbers and sizes. The freed space may unblock conversions."""
        if not (self.arena.retired or self.files.retired):
            return []
        self.background.retry_blocked()
        return [*self.arena.close_retired(), *self.files.close_retired()]

    def close(self) -> None:
        """Stop the background work, and close all segments."""
        self.background.stop()
        self.arena.close()
        self.files.close()

    def move(self, digest: bytes, old: Handle, moved: Handle) -> None:
        """Record the new place of a body, and free the old one."""
        self.handles[digest] = moved
        self._free(old)
        if self.on_move:
            self.on_move(digest, moved)
        self.recheck(digest)

    def segment(self, number: int) -> Segment:
        """Return a segment that is in use, or was retired in this turn. Raise `KeyError` for others."""
        for arena in (self.arena, self.files):
            if found := arena.segments.get(number) or arena.retired.get(number):
                return found
        raise KeyError(number)

    def _drop(self, digest: bytes, handle: Handle) -> None:
        """Forget a body that nothing refers to."""
        del self.handles[digest]
        self.background.forget(digest)
        self._free(handle)
        if self.durable is not None:
            self.durable.drop(digest)
        if self.on_drop:
            self.on_drop(digest)

    def _free(self, handle: Handle) -> None:
        """Free the bytes of a handle. A handle into the durable store occupies no segment."""
        if handle.segment == IN_STORE:
            return
        arena = self.arena if handle.segment in self.arena.segments else self.files
        arena.free(handle.segment, handle.stored)
