"""An upload: one large body on its way into the arena and, if there is one, into the durable store.

The bytes are received straight into reserved shared memory, hashed as they arrive, and written to the durable store in
parts of a bounded size, so that the last byte of a large body does not cause one large write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from stepwell import limits
from stepwell.memory.writer.arena import Arena, ArenaSpan
from stepwell.memory.writer.durable_bodies import DurableBodies


class Upload:
    """One upload, from the reservation to `finish` or `abandon`, one of which has to be called.

    The connection's `Uploads` owns it. While a view of `room` exists the segment cannot be closed: the receiver
    releases it.
    """

    def __init__(self, arena: Arena, place: ArenaSpan, view: memoryview, durable: DurableBodies | None = None) -> None:
        self._arena = arena
        self._view = view
        self._hash = hashlib.sha256()
        self._written = 0
        self._durable = durable
        self._number = durable.begin_upload() if durable is not None else 0
        self._parts = 0
        self.place = place

    @property
    def room(self) -> memoryview:
        """The memory where the next bytes belong; empty when all have arrived. The caller releases it."""
        return self._view[self._written :]

    def advance(self, size: int) -> None:
        """Note that `size` bytes were received into `room`: hash them, and write the parts that are complete."""
        with self._view[self._written : self._written + size] as arrived:
            self._hash.update(arrived)
        self._written += size
        if self._durable is not None:
            self._write_parts(self._durable)

    def _write_parts(self, durable: DurableBodies) -> None:
        while (start := self._parts * limits.BODY_PART_BYTES) < self._written:
            end = min(start + limits.BODY_PART_BYTES, self.place.length)
            if end > self._written:
                return
            durable.add_part(self._number, self._parts, bytes(self._view[start:end]))
            self._parts += 1

    def prepare(self) -> bool:
        """Allocate a bounded part of the memory. Return True if all of it is allocated."""
        return self._arena.prepare(self.place)

    @property
    def is_complete(self) -> bool:
        """True if all bytes have arrived."""
        return self._written == self.place.length

    def finish(self, *, is_new: Callable[[bytes], bool]) -> bytes:
        """Return the digest of the body. A body that is stored already is not written to the durable store again.

        The digest is known only now, after all bytes were hashed, so that the parts of a duplicate have been written
        for nothing and are abandoned.
        """
        self._view.release()
        digest = self._hash.digest()
        if self._durable is not None:
            if is_new(digest):
                self._durable.finish_upload(self._number, digest, self.place.length, packed=False)
            else:
                self._durable.abandon_upload(self._number)
        return digest

    def abandon(self) -> None:
        """Give up the reserved memory and the parts that were written."""
        self._view.release()
        self._arena.abandon(self.place)
        if self._durable is not None:
            self._durable.abandon_upload(self._number)
