"""References to bodies: content digests, and the table that counts how many rows refer to each body.

The domain knows a body by its digest and size only; `stepwell.memory` knows where the bytes are. Rows refer to bodies
from a tier: a fragment from its own, all other rows from cold. The hottest tier that refers to a body decides the form
in which the memory layer keeps it, and therefore how much of the arena, the shared memory for bodies, it needs:

    hot    raw in the arena           size
    warm   compressed in the arena    packed
    cold   compressed on disk         0

Equal bodies are stored once and count once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.model import COLD, HOT, WARM, BodyRef, Tier
from stepwell.errors import InvalidArgument, TierFull


def digest_of(body: bytes | memoryview) -> bytes:
    """Return the SHA-256 of a body: `sha256sum` prints the same, so that a user can check a digest without stepwell."""
    return hashlib.sha256(body).digest()


class Digest(Struct, frozen=True):
    """A SHA-256 that a caller gives in place of the bytes. Raises `InvalidArgument` unless it has 32 bytes."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != hashlib.sha256().digest_size:
            raise InvalidArgument("a digest is the 32 bytes of a SHA-256: use Digest.of(body) or Digest.parse(hex)")

    @classmethod
    def of(cls, body: bytes) -> Digest:
        """Return the digest of a body."""
        return cls(digest_of(body))

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Return the digest that `str()` of a `Digest`, or `sha256sum`, has printed."""
        try:
            return cls(bytes.fromhex(text))
        except ValueError as error:
            raise InvalidArgument(f"{text[:80]!r} is not the hexadecimal form of a SHA-256") from error

    def __str__(self) -> str:
        return self.value.hex()


class BodyCount(Struct, frozen=True, gc=False):
    """The number of references to one body from each tier.

    `packed` is the number of bytes when compressed. It equals `size` until the compressor has tried, and afterwards if
    the body is not worth compressing; `is_tried` tells these apart. Most bodies have one reference and one of a few
    sizes, so that equal counts are one object: see `_shared`.
    """

    size: int
    packed: int
    hot: int = 0
    warm: int = 0
    cold: int = 0
    is_tried: bool = False

    @property
    def tier(self) -> Tier | None:
        """The hottest tier that refers to the body; None if no row does."""
        return HOT if self.hot else WARM if self.warm else COLD if self.cold else None

    @property
    def references(self) -> int:
        """The number of references from all tiers."""
        return self.hot + self.warm + self.cold

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena that the body needs, in the form of its hottest tier."""
        return self.size if self.hot else self.packed if self.warm else 0

    @property
    def is_incompressible(self) -> bool:
        """True if the compressor has tried and the body stays raw in every tier."""
        return self.is_tried and self.packed >= self.size

    def plus(self, tier: Tier, by: int) -> BodyCount:
        """Return the count with `by` more references from a tier; `by` may be negative."""
        hot, warm, cold = self.hot, self.warm, self.cold
        if tier is HOT:
            hot += by
        elif tier is WARM:
            warm += by
        else:
            cold += by
        return _shared(self.size, self.packed, hot, warm, cold, self.is_tried)

    def tried(self, packed: int) -> BodyCount:
        """Return the count with the size that the compressor has found, if that is smaller than the known one."""
        return _shared(self.size, min(self.packed, packed), self.hot, self.warm, self.cold, True)  # noqa: FBT003


_shared = lru_cache(limits.BODY_COUNTS_SHARED_MAX)(BodyCount)
"""Returns the count with these fields, as an object that other bodies share."""


def shared_size(size: int) -> int:
    """Return the size of a body as the object that its count has, and the rows of bodies with the same size."""
    return _shared(size, size, 1).size


class _HasBody(Protocol):
    """A row with exactly one body."""

    @property
    def digest(self) -> bytes: ...
    @property
    def size(self) -> int: ...


class BodyTable:
    """The references to every body, by tier, and two sums that the budget bounds.

    `bytes` are the raw bytes of all bodies, `arena_bytes` their need of the arena. Owned by the `State`, which calls
    `retain` and `release` with each change of a row. A body with no reference left stays in `counts` until the next
    `forget_undo`, because its packed size would be lost otherwise, and undoing needs it.
    """

    __slots__ = ("_released", "arena_bytes", "bytes", "counts")

    def __init__(self) -> None:
        self.counts: dict[bytes, BodyCount] = {}
        self.bytes = 0
        self.arena_bytes = 0
        self._released: set[bytes] = set()  # bodies that had no reference left, at some time since `forget_undo`

    def __contains__(self, digest: bytes) -> bool:
        return self.tier_of(digest) is not None

    def tier_of(self, digest: bytes) -> Tier | None:
        """Return the hottest tier that refers to a body, or None if no row does."""
        count = self.counts.get(digest)
        if count is None:
            return None
        return HOT if count.hot else WARM if count.warm else COLD if count.cold else None

    def require_room(self, arriving: Sequence[BodyRef], limit: int, leaving: Sequence[BodyRef] = ()) -> None:
        """Raise `TierFull` if the bodies that arrive exceed `limit` bytes, after those that leave are gone."""
        new = {digest: size for digest, size in arriving if digest not in self}
        if new and self.bytes + sum(new.values()) - (self.freed(leaving) if leaving else 0) > limit:
            raise TierFull(
                f"bodies have no room left in their {limit} bytes: delete some, or raise bodies_bytes",
                limit=limit,
            )

    def freed(self, leaving: Sequence[BodyRef]) -> int:
        """Return the bytes of the bodies that would have no reference left without these references."""
        return sum(
            size for (digest, size), times in Counter(leaving).items() if self.counts[digest].references == times
        )

    def retain(self, body: BodyRef, tier: Tier) -> None:
        """Count a reference to a body from a tier."""
        digest, size = body
        count = self.counts.get(digest) or _shared(size, size)
        if count.tier is None:
            self.bytes += size
        self._replace(digest, count, count.plus(tier, 1))

    def add(self, rows: Iterable[_HasBody]) -> None:
        """Count the first references, from hot, to new bodies: `retain` for many at once."""
        counts, total = self.counts, 0
        for row in rows:
            size = row.size
            counts[row.digest] = _shared(size, size, 1)
            total += size
        self.bytes += total
        self.arena_bytes += total

    def release(self, body: BodyRef, tier: Tier) -> None:
        """Remove a reference that was retained from the same tier."""
        digest, size = body
        before = self.counts[digest]
        after = before.plus(tier, -1)
        self._replace(digest, before, after)
        if after.tier is None:
            self.bytes -= size
            self._released.add(digest)

    def drop(self, rows: Iterable[_HasBody]) -> None:
        """Remove a reference from hot for each row: `release` for many at once, which cannot be undone."""
        counts = self.counts
        for row in rows:
            digest, size = row.digest, row.size
            count = counts[digest]
            if count.hot == 1 and not count.warm and not count.cold:
                del counts[digest]
                self.bytes -= size
                self.arena_bytes -= size
            else:
                self._replace(digest, count, count.plus(HOT, -1))

    def move(self, digest: bytes, before: Tier, after: Tier) -> None:
        """Count a reference that moves from one tier to another: `retain` and `release` in one step."""
        count = self.counts[digest]
        self._replace(digest, count, count.plus(after, 1).plus(before, -1))

    def note_packed(self, digest: bytes, packed: int) -> None:
        """Record the size of a body when compressed, if it is smaller than known. See `machine.note_packed_bytes`."""
        if count := self.counts.get(digest):
            self._replace(digest, count, count.tried(packed))

    def forget_undo(self) -> None:
        """Delete the counts of bodies that no row refers to any more."""
        while self._released:
            digest = self._released.pop()
            if self.counts[digest].tier is None:
                del self.counts[digest]

    def _replace(self, digest: bytes, before: BodyCount, after: BodyCount) -> None:
        """Exchange the count of a body, and update the need of the arena."""
        self.counts[digest] = after
        self.arena_bytes += after.arena_bytes - before.arena_bytes


class ArenaForecast:
    """The need of the arena after moves that were not made yet. It has the counts that the moves change.

    A decider makes one to find out how many demotions it needs. The `BodyTable` behind it stays as it is.
    """

    __slots__ = ("_bodies", "_counts", "arena_bytes")

    def __init__(self, bodies: BodyTable) -> None:
        self._bodies = bodies
        self._counts: dict[bytes, BodyCount] = {}
        self.arena_bytes = bodies.arena_bytes

    def retain(self, body: BodyRef, tier: Tier) -> None:
        """Count a reference that a move adds."""
        self._add(body, tier, 1)

    def release(self, body: BodyRef, tier: Tier) -> None:
        """Remove a reference that a move takes away."""
        self._add(body, tier, -1)

    def _add(self, body: BodyRef, tier: Tier, by: int) -> None:
        digest, size = body
        before = self._counts.get(digest) or self._bodies.counts.get(digest) or BodyCount(size, size)
        after = self._counts[digest] = before.plus(tier, by)
        self.arena_bytes += after.arena_bytes - before.arena_bytes
