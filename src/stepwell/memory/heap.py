"""Bodies in the manager's own memory, by content.

The seam between the domain, which counts references to digests, and the bytes: whatever keeps bytes elsewhere has
these three methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepwell.domain.content import Bodies


class BodyHeap:
    """Bytes by digest, for as long as the domain refers to them."""

    def __init__(self) -> None:
        self._bodies: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def keep(self, arrived: Mapping[bytes, bytes], counted: Bodies) -> None:
        """Take in those of the bodies that came with a command which something now refers to."""
        for digest, body in arrived.items():
            if digest in counted.references:
                self._bodies.setdefault(digest, body)

    def drop(self, digest: bytes, counted: Bodies) -> None:
        """Let go of a body that nothing refers to any more."""
        if digest not in counted.references:
            self._bodies.pop(digest, None)

    def read(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """The bodies that a reply wants."""
        return {digest: self._bodies[digest] for digest in digests}
