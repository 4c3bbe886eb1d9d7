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
from copy import copy
from typing import Protocol

from msgspec import Struct

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


class BodyCount(Struct, gc=False):
    """The number of references to one body from each tier. Mutable; owned by a `BodyTable` or an `ArenaForecast`.

    `packed` is the number of bytes when compressed. It equals `size` until the compressor has tried.
    """

    size: int
    packed: int
    hot: int = 0
    warm: int = 0
    cold: int = 0

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

    def add(self, tier: Tier, by: int) -> int:
        """Add `by` references, which may be negative. Return by how much the need of the arena grows."""
        # `arena_bytes` is written out twice: this runs with every store, and the property would be a quarter of it.
        before = self.size if self.hot else self.packed if self.warm else 0
        if tier is HOT:
            self.hot += by
        elif tier is WARM:
            self.warm += by
        else:
            self.cold += by
        return (self.size if self.hot else self.packed if self.warm else 0) - before


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
        if new and self.bytes - self.freed(leaving) + sum(new.values()) > limit:
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
        count = self.counts.get(digest)
        if count is None:
            count = self.counts[digest] = BodyCount(size, size)
            self.bytes += size
        elif count.tier is None:
            self.bytes += size
        self.arena_bytes += count.add(tier, 1)

    def add(self, rows: Iterable[_HasBody]) -> None:
        """Count the first references, from hot, to new bodies: `retain` for many at once."""
        counts, total = self.counts, 0
        for row in rows:
            size = row.size
            counts[row.digest] = BodyCount(size, size, 1)
            total += size
        self.bytes += total
        self.arena_bytes += total

    def release(self, body: BodyRef, tier: Tier) -> None:
        """Remove a reference that was retained from the same tier."""
        digest, size = body
        count = self.counts[digest]
        self.arena_bytes += count.add(tier, -1)
        if count.tier is None:
            self.bytes -= size
            self._released.add(digest)

    def note_packed(self, digest: bytes, packed: int) -> None:
        """Record the size of a body when compressed, if it is smaller than known. See `machine.note_packed_bytes`."""
        if count := self.counts.get(digest):
            before = count.arena_bytes
            count.packed = min(count.packed, packed)
            self.arena_bytes += count.arena_bytes - before

    def forget_undo(self) -> None:
        """Delete the counts of bodies that no row refers to any more."""
        while self._released:
            digest = self._released.pop()
            if self.counts[digest].tier is None:
                del self.counts[digest]


class ArenaForecast:
    """The need of the arena after moves that were not made yet. It copies each count that a move changes.

    A decider makes one to find out how many demotions it needs. The `BodyTable` behind it stays as it is.
    """

    __slots__ = ("_bodies", "_copies", "arena_bytes")

    def __init__(self, bodies: BodyTable) -> None:
        self._bodies = bodies
        self._copies: dict[bytes, BodyCount] = {}
        self.arena_bytes = bodies.arena_bytes

    def retain(self, body: BodyRef, tier: Tier) -> None:
        """Count a reference that a move adds."""
        self.arena_bytes += self._count(body).add(tier, 1)

    def release(self, body: BodyRef, tier: Tier) -> None:
        """Remove a reference that a move takes away."""
        self.arena_bytes += self._count(body).add(tier, -1)

    def _count(self, body: BodyRef) -> BodyCount:
        """Return the forecast's own copy of a body's count."""
        digest, size = body
        count = self._copies.get(digest)
        if count is None:
            known = self._bodies.counts.get(digest)
            count = self._copies[digest] = copy(known) if known else BodyCount(size, size)
        return count
