"""Where a client reads bodies: in shared memory, or, those that are not there, in the manager's database."""

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
    """Safe from any number of threads. In a forked child everything is opened anew."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._mappings = channel.mappings
        self._reset()
        channel.on_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._file: BodyFile | None = None

    def segment(self, number: int) -> memoryview:
        """All of a segment."""
        return self._mappings.segment(number)

    def find(self, digest: bytes, handle: Handle) -> tuple[memoryview, Handle]:
        """What is stored of a body, and how; it stays readable for as long as it is held."""
        if handle.segment != IN_STORE:
            return self._mappings.find(handle), handle
        body = memoryview(self._read(digest, handle))
        return body, Handle(IN_STORE, 0, handle.size, handle.size, packed=False)

    def read(self, digest: bytes, handle: Handle) -> memoryview:
        """A body."""
        if handle.segment != IN_STORE:
            return content(self._mappings.find(handle), handle)
        return memoryview(self._read(digest, handle))

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, digest: bytes, handle: Handle) -> bytes:
        """What a disk gives back is compared with what was given to it."""
        packed, data = self._open().read(digest, handle.offset)
        try:
            body = unpack(data, handle.size) if packed else data
        except RuntimeFault as error:
            raise _damaged(digest) from error
        if digest_of(body) != digest:
            raise _damaged(digest)
        return body

    def _open(self) -> BodyFile:
        with self._lock:
            if self._file is None:
                database = self._channel.welcome.database
                if database is None:
                    raise BodyGone("the manager has no database to read from")
                self._file = BodyFile(database)
            return self._file


def _damaged(digest: bytes) -> StoreDamaged:
    return StoreDamaged(f"the body {digest.hex()} is not what was stored: see `stepwell doctor`")
