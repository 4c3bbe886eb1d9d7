"""An upload: a large body on its way into the arena."""

from __future__ import annotations

import hashlib

from stepwell.memory.arena import Arena, Place


class Upload:
    """Bytes are received straight into their place, and hashed as they come."""

    def __init__(self, arena: Arena, place: Place, view: memoryview) -> None:
        self._arena = arena
        self._view = view
        self._hash = hashlib.sha256()
        self._written = 0
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

    def prepare(self) -> bool:
        """Allocate a little more of its memory; whether all of it is there."""
        return self._arena.prepare(self.place)

    @property
    def is_complete(self) -> bool:
        return self._written == self.place.length

    def finish(self) -> bytes:
        """The digest of what came."""
        self._view.release()
        return self._hash.digest()

    def abandon(self) -> None:
        """The rest will not come."""
        self._view.release()
        self._arena.abandon(self.place)
