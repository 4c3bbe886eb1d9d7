"""Bodies by content: the digest, and the table that counts who refers to which body.

The domain knows bodies by digest and size only. Where their bytes are is the business of `stepwell.memory`.
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
    """SHA-256: what `sha256sum` prints, so that anybody can check."""
    return hashlib.sha256(body).digest()


class Digest(Struct, frozen=True):
    """A content hash, where a caller has it instead of the bytes."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != hashlib.sha256().digest_size:
            raise InvalidArgument("a digest is the 32 bytes of a SHA-256: use Digest.of(body) or Digest.parse(hex)")

    @classmethod
    def of(cls, body: bytes) -> Digest:
        """The digest of a body."""
        return cls(digest_of(body))

    @classmethod
    def parse(cls, text: str) -> Digest:
        """The digest that `str()` of one, or `sha256sum`, printed."""
        try:
            return cls(bytes.fromhex(text))
        except ValueError as error:
            raise InvalidArgument(f"{text[:80]!r} is not the hexadecimal form of a SHA-256") from error

    def __str__(self) -> str:
        return self.value.hex()


class BodyCount(Struct, gc=False):
    """How many refer to a body from each tier. The hottest of them says in which form it is kept."""

    size: int
    packed: int  # bytes when compressed: its size, until somebody has tried
    hot: int = 0
    warm: int = 0
    cold: int = 0

    @property
    def tier(self) -> Tier | None:
        """The hottest tier that refers to it."""
        return HOT if self.hot else WARM if self.warm else COLD if self.cold else None

    @property
    def references(self) -> int:
        """How many refer to it, from any tier."""
        return self.hot + self.warm + self.cold

    @property
    def arena_bytes(self) -> int:
        """What it needs of the arena: hot is raw, warm is compressed, cold is elsewhere."""
        return self.size if self.hot else self.packed if self.warm else 0

    def add(self, tier: Tier, by: int) -> int:
        """Count references, and say by how much its need of the arena grows."""
        # `arena_bytes`, twice by hand: this runs with every store, and a property would be a quarter of it.
        before = self.size if self.hot else self.packed if self.warm else 0
        if tier is HOT:
            self.hot += by
        elif tier is WARM:
            self.warm += by
        else:
            self.cold += by
        return (self.size if self.hot else self.packed if self.warm else 0) - before


class _OfOne(Protocol):
    """Whatever has one body."""

    @property
    def digest(self) -> bytes: ...
    @property
    def size(self) -> int: ...


class BodyTable:
    """How often each body is referred to, by tier; equal bodies count their bytes once."""

    __slots__ = ("_released", "arena_bytes", "bytes", "counts")

    def __init__(self) -> None:
        self.counts: dict[bytes, BodyCount] = {}
        self.bytes = 0
        self.arena_bytes = 0
        # To forget at the next `settle`, if nothing refers to them by then: undoing needs to know what they take
        # when compressed.
        self._released: set[bytes] = set()

    def __contains__(self, digest: bytes) -> bool:
        return self.tier_of(digest) is not None

    def tier_of(self, digest: bytes) -> Tier | None:
        """The hottest tier that refers to a body; None when nothing does."""
        count = self.counts.get(digest)
        if count is None:
            return None
        return HOT if count.hot else WARM if count.warm else COLD if count.cold else None

    def require_room(self, arriving: Sequence[BodyRef], limit: int, leaving: Sequence[BodyRef] = ()) -> None:
        """Refuse bodies that would, together, go past the bound in bytes, once others have left."""
        new = {digest: size for digest, size in arriving if digest not in self}
        if new and self.bytes - self.freed(leaving) + sum(new.values()) > limit:
            raise TierFull(
                f"bodies have no room left in their {limit} bytes: delete some, or raise bodies_bytes",
                limit=limit,
            )

    def freed(self, leaving: Sequence[BodyRef]) -> int:
        """How many bytes nothing would refer to any more without these references."""
        return sum(
            size for (digest, size), times in Counter(leaving).items() if self.counts[digest].references == times
        )

    def retain(self, held: BodyRef, tier: Tier) -> None:
        digest, size = held
        count = self.counts.get(digest)
        if count is None:
            count = self.counts[digest] = BodyCount(size, size)
            self.bytes += size
        elif count.tier is None:
            self.bytes += size
        self.arena_bytes += count.add(tier, 1)

    def add(self, bodies: Iterable[_OfOne]) -> None:
        """`retain` bodies that nothing refers to, for hot."""
        counts, total = self.counts, 0
        for body in bodies:
            size = body.size
            counts[body.digest] = BodyCount(size, size, 1)
            total += size
        self.bytes += total
        self.arena_bytes += total

    def release(self, held: BodyRef, tier: Tier) -> None:
        digest, size = held
        count = self.counts[digest]
        self.arena_bytes += count.add(tier, -1)
        if count.tier is None:
            self.bytes -= size
            self._released.add(digest)

    def note_packed(self, digest: bytes, packed: int) -> None:
        """What a body takes when compressed: a fact about its bytes, and no change. It only ever lowers a cost."""
        if count := self.counts.get(digest):
            before = count.arena_bytes
            count.packed = min(count.packed, packed)
            self.arena_bytes += count.arena_bytes - before

    def settle(self) -> None:
        """Forget what nothing refers to any more."""
        while self._released:
            digest = self._released.pop()
            if self.counts[digest].tier is None:
                del self.counts[digest]


class ArenaForecast:
    """The arena as it would be after moves that nobody has made: the counts that they touch are copies."""

    __slots__ = ("_bodies", "_touched", "arena_bytes")

    def __init__(self, bodies: BodyTable) -> None:
        self._bodies = bodies
        self._touched: dict[bytes, BodyCount] = {}
        self.arena_bytes = bodies.arena_bytes

    def retain(self, held: BodyRef, tier: Tier) -> None:
        self.arena_bytes += self._count(held).add(tier, 1)

    def release(self, held: BodyRef, tier: Tier) -> None:
        self.arena_bytes += self._count(held).add(tier, -1)

    def _count(self, held: BodyRef) -> BodyCount:
        digest, size = held
        count = self._touched.get(digest)
        if count is None:
            known = self._bodies.counts.get(digest)
            count = self._touched[digest] = copy(known) if known else BodyCount(size, size)
        return count
