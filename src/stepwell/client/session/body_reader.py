"""Reading of bodies: from shared memory or, for bodies that are not there, from the manager's database file.

The manager answers with a `Handle`, which says where a body is. Most bodies are in segments of shared memory that this
process has mapped. Cold bodies of a durable manager may be in its database, which is opened here, read-only, when the
first such body is asked for. A body from the disk is compared with its digest; one in memory needs no check, because
the segments are sealed and only the manager can write them.
"""

from __future__ import annotations

import threading

from stepwell.client.session.channel import Channel
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import BodyGone, RuntimeFault, StoreDamaged
from stepwell.memory.compression import unpack
from stepwell.memory.reader.mappings import content
from stepwell.protocol.handles import IN_STORE, Handle
from stepwell.storage.body_reader import BodyFile


class BodyReader:
    """Reads bodies of one session. Any number of threads may use it. In a forked child the database is opened anew.

    It raises `BodyGone` if a body was moved or deleted after the manager's answer; the caller asks again.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._mappings = channel.mappings
        self._reset()
        channel.on_fork(self._reset)

    def _reset(self) -> None:
        """Start without an open database. A forked child also needs a lock of its own."""
        self._lock = threading.Lock()
        self._file: BodyFile | None = None

    def segment(self, number: int) -> memoryview:
        """Return all bytes of a segment of shared memory."""
        return self._mappings.segment(number)

    def find(self, digest: bytes, handle: Handle) -> tuple[memoryview, Handle]:
        """Return the stored form of a body, which may be compressed, and the handle that describes that form.

        The returned view keeps its memory mapped, so the body stays readable for as long as the view exists.
        """
        if handle.segment != IN_STORE:
            return self._mappings.find(handle), handle
        body = memoryview(self._read(digest, handle))
        return body, Handle(IN_STORE, 0, handle.size)

    def read(self, digest: bytes, handle: Handle) -> memoryview:
        """Return the bytes of a body, expanded if it is stored compressed."""
        if handle.segment != IN_STORE:
            return content(self._mappings.find(handle), handle)
        return memoryview(self._read(digest, handle))

    def close(self) -> None:
        """Close the database, if it was opened."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, digest: bytes, handle: Handle) -> bytes:
        """Return a body from the database; `StoreDamaged` if it does not have the digest under which it was stored."""
        packed, data = self._open().read(digest, handle.offset)
        try:
            body = unpack(data, handle.size) if packed else data
        except RuntimeFault as error:
            raise _damaged(digest) from error
        if digest_of(body) != digest:
            raise _damaged(digest)
        return body

    def _open(self) -> BodyFile:
        """Return the open database; `BodyGone` if the manager has none."""
        with self._lock:
            if self._file is None:
                database = self._channel.welcome.database
                if database is None:
                    raise BodyGone("the manager has no database to read from")
                self._file = self._channel.environment.open_bodies(database)
            return self._file


def _damaged(digest: bytes) -> StoreDamaged:
    return StoreDamaged(f"the body {digest.hex()} is not what was stored: see `stepwell doctor`")
