"""An upload: a large body on its way into the arena, and, where there is one, into the durable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from stepwell import limits
from stepwell.memory.writer.arena import Arena, ArenaSpan
from stepwell.memory.writer.durable_bodies import DurableBodies


class Upload:
    """Bytes are received straight into their place, hashed as they come, and written down in parts."""

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
        """Where the next bytes belong; empty when they have all come. The caller releases it."""
        return self._view[self._written :]

    def took(self, size: int) -> None:
        """So many bytes have been put there."""
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
        """Allocate a little more of its memory; whether all of it is there."""
        return self._arena.prepare(self.place)

    @property
    def is_complete(self) -> bool:
        return self._written == self.place.length

    def finish(self, *, is_new: Callable[[bytes], bool]) -> bytes:
        """The digest of what came. What is there already is not written down twice."""
        self._view.release()
        digest = self._hash.digest()
        if self._durable is not None:
            if is_new(digest):
                self._durable.finish_upload(self._number, digest, self.place.length, packed=False)
            else:
                self._durable.abandon_upload(self._number)
        return digest

    def abandon(self) -> None:
        """The rest will not come."""
        self._view.release()
        self._arena.abandon(self.place)
        if self._durable is not None:
            self._durable.abandon_upload(self._number)
