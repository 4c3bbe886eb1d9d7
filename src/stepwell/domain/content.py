"""Bodies by content: the digest, and the table that counts who refers to which body.

The domain knows bodies by digest and size only. Where their bytes are is the business of `stepwell.memory`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

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


Held = tuple[bytes, int]
"""A reference to a body whose bytes the manager keeps: its digest and its size."""


class Bodies:
    """How often each body is referred to; equal bodies count their bytes once."""

    __slots__ = ("bytes", "references")

    def __init__(self) -> None:
        self.references: dict[bytes, int] = {}
        self.bytes = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.references

    def require_room(self, arriving: Sequence[Held], limit: int) -> None:
        """Refuse bodies that would, together, go past the bound in bytes."""
        new = {digest: size for digest, size in arriving if digest not in self.references}
        if new and self.bytes + sum(new.values()) > limit:
            raise TierFull(
                f"bodies have no room left in their {limit} bytes: delete some, or raise bodies_bytes",
                limit=limit,
            )

    def retain(self, held: Held) -> None:
        digest, size = held
        count = self.references.get(digest, 0)
        self.references[digest] = count + 1
        if count == 0:
            self.bytes += size

    def release(self, held: Held) -> None:
        digest, size = held
        count = self.references[digest] - 1
        if count:
            self.references[digest] = count
        else:
            del self.references[digest]
            self.bytes -= size
