"""A body store with reference counts as the domain would have them, and the expected content of each body."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepwell import limits
from stepwell.domain.tiers.body_refs import BodyTable, digest_of
from stepwell.domain.tiers.model import Tier
from stepwell.limits import KIB, MIB
from stepwell.memory.reader.mappings import content
from stepwell.memory.writer.arena import record_bytes
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.segments import FileSegment, MemorySegment, Segment
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.handles import Handle

SLICES = 700 * KIB
"""Bytes of a body that takes several slices."""

STEPS_MAX = 200_000


def compressible(size: int, salt: int = 0) -> bytes:
    """A body that zstd makes much smaller."""
    line = f"line {salt} of a text that says the same again and again\n".encode()
    return (line * (size // len(line) + 1))[:size]


def noise(size: int, seed: int = 0) -> bytes:
    """A body that nothing makes smaller."""
    return random.Random(seed).randbytes(size)


class Watched(MemorySegment):
    """A memory segment that fails on writes to unallocated bytes, which would be a SIGBUS on a full machine."""

    __slots__ = ()

    def write(self, offset: int, data: bytes | memoryview) -> None:
        assert offset + len(data) <= self.allocated <= self.size
        super().write(offset, data)


class BodyStoreHarness:
    """A body store whose references the test sets, with one tier per body."""

    def __init__(
        self,
        arena_bytes: int = 32 * MIB,
        make_memory: Callable[[int, int], Segment] = Watched,
        make_file: Callable[[int, int], Segment] = FileSegment,
    ) -> None:
        self.refs = BodyTable()
        self.store = BodyStore(self.refs, arena_bytes, make_memory=make_memory, make_file=make_file)
        self.tiers: dict[bytes, Tier] = {}
        self.bodies: dict[bytes, bytes] = {}

    def put(self, body: bytes, tier: Tier = Tier.HOT) -> bytes:
        """Keep a body that came inline."""
        digest = digest_of(body)
        self.store.require_room((len(body),))
        self._refer(digest, body, tier)
        self.store.add_referenced({digest: body})
        self.store.recheck(digest)
        return digest

    def put_or_upload(self, body: bytes) -> bytes:
        """Keep a body in the way in which a client would send it."""
        if len(body) <= limits.INLINE_BODY_BYTES_MAX:
            return self.put(body)
        digest, _ = self.store.stage(self.upload(body))
        self.refer(digest, body)
        self.store.unstage(digest)
        return digest

    def refer(self, digest: bytes, body: bytes, tier: Tier = Tier.HOT) -> None:
        """Refer to a body that was uploaded, from one tier."""
        self._refer(digest, body, tier)
        self.store.recheck(digest)

    def _refer(self, digest: bytes, body: bytes, tier: Tier) -> None:
        self.refs.retain((digest, len(body)), tier)
        self.bodies[digest] = body
        self.tiers[digest] = tier

    def move(self, digest: bytes, tier: Tier) -> None:
        held = digest, len(self.bodies[digest])
        self.refs.retain(held, tier)
        self.refs.release(held, self.tiers[digest])
        self.tiers[digest] = tier
        self.store.recheck(digest)

    def delete(self, digest: bytes) -> None:
        self.refs.release((digest, len(self.bodies.pop(digest))), self.tiers.pop(digest))
        self.refs.forget_undo()
        self.store.recheck(digest)

    def handle(self, digest: bytes) -> Handle:
        handle = self.store.find(digest)
        assert handle is not None
        return handle

    def read(self, digest: bytes) -> bytes:
        """A body, from the bytes that its handle stands for."""
        handle = self.handle(digest)
        stored = self.store.segment(handle.segment).read(handle.offset, handle.stored)
        return bytes(content(memoryview(stored), handle))

    def form(self, digest: bytes) -> str:
        """Return the place and the form of a body, as text."""
        handle = self.handle(digest)
        where = "arena" if handle.segment in self.store.arena.segments else "file"
        return f"{'packed' if handle.is_packed else 'raw'} in {where}"

    def check(self) -> None:
        """Every body is readable and right, and the sums are what they sum."""
        for digest, body in self.bodies.items():
            assert self.read(digest) == body
        for arena in (self.store.arena, self.store.files):
            kept = [each for each in self.store.handles.values() if each.segment in arena.segments]
            pinned = sum(segment.pins for segment in arena.segments.values())
            live = sum(record_bytes(each.stored) for each in kept)
            assert arena.live == sum(segment.live for segment in arena.segments.values())
            assert arena.live == live or (pinned and arena.live > live)
            assert arena.bytes == sum(segment.size for segment in arena.segments.values())

    def steps(self) -> Iterator[int]:
        """Do one step of the work after the other, until there is no more."""
        for number in range(STEPS_MAX):
            if not self.store.background.work(0):
                return
            yield number
        raise AssertionError("the work has no end")

    def finish(self, check: Callable[[], None] | None = None) -> int:
        """Do all the work, with a look at everything after each step; how many steps it was."""
        done = 0
        for number in self.steps():
            (check or self.check)()
            done = number + 1
        self.check()
        return done

    def work_to_end(self) -> None:
        """Do all background work, and the work that becomes possible by it, without a check after each step."""
        while self.store.background.work(1.0) or self.store.close_retired():
            pass
        self.check()

    def upload(self, body: bytes) -> Upload:
        """An upload whose bytes have all come."""
        upload = self.store.reserve(len(body))
        while not upload.prepare():
            pass
        fill(upload, body)
        return upload


def fill(upload: Upload, body: bytes, at_once: int = 100_000) -> None:
    """Let the bytes of an upload come, some at a time."""
    for start in range(0, len(body), at_once):
        piece = body[start : start + at_once]
        with upload.room as room:
            room[: len(piece)] = piece
        upload.advance(len(piece))


@contextmanager
def body_store_harness(
    arena_bytes: int = 32 * MIB,
    make_memory: Callable[[int, int], Segment] = Watched,
    make_file: Callable[[int, int], Segment] = FileSegment,
) -> Iterator[BodyStoreHarness]:
    """Yield a harness whose store is closed in the end."""
    made = BodyStoreHarness(arena_bytes, make_memory, make_file)
    try:
        yield made
    finally:
        made.store.close()
