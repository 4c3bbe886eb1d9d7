"""Uploads: large bodies that a connection sends beside its requests, straight into shared memory.

A body above the inline bound does not travel in a frame. The client offers it with its size, the manager reserves
memory and grants the offer, and the client sends the plain bytes, which `transport.peer` receives into the reserved
memory without a copy. The next request refers to the upload by its number. What that request does not use is freed.

A refused offer does not end the connection: its refusal is remembered under the number, and becomes the refusal of the
command that refers to it.
"""

from __future__ import annotations

from stepwell import limits
from stepwell.domain.tiers.model import BodyRef
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, ProtocolError, StepwellError
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.messages import OfferUpload


class Uploads:
    """The uploads of one connection since its last request, by the numbers that the client gave them.

    The connection owns it, and the loop's thread uses it. `held` has the completed bodies with their digest and size,
    or the refusal of their offer. It is the `Sink` of the peer while bytes arrive.
    """

    __slots__ = ("_current", "_number", "_owner", "_staged_at_s", "held")

    def __init__(self, owner: StateOwner) -> None:
        self._owner = owner
        self._current: Upload | None = None  # has reserved memory, and is not complete
        self._number = 0
        self._staged_at_s: float | None = None  # the time of the latest grant since the last request
        self.held: dict[int, BodyRef | StepwellError] = {}

    def grant(self, offer: OfferUpload, origin: Origin, now_s: float, *, is_overdue: bool) -> bool | None:
        """Return True if an offered body can be sent, False if it is refused, or None while room is being made.

        On None the caller tries again in a later turn. Raise `ProtocolError` for a number that is in use, or too many
        uploads.
        """
        if offer.number in self.held or len(self.held) >= limits.UPLOADS_PER_REQUEST_MAX:
            raise ProtocolError(
                f"upload {offer.number} was offered already, or {limits.UPLOADS_PER_REQUEST_MAX} of them: "
                "send the request that refers to them first"
            )
        try:
            granted = self._try_grant(offer, origin, is_overdue=is_overdue)
        except StepwellError as refusal:
            self._abandon()
            self.held[offer.number] = refusal
            granted = False
        if granted is not None:
            self._number = offer.number
            self._staged_at_s = now_s
        return granted

    def _try_grant(self, offer: OfferUpload, origin: Origin, *, is_overdue: bool) -> bool | None:
        """Reserve the memory and allocate a part of it. Return True when all of it is allocated."""
        if self._current is None:
            own = sum(held[1] for held in self.held.values() if isinstance(held, tuple))
            self._current = self._owner.reserve(offer.size, own, origin, no_eviction=offer.no_eviction)
        if self._current is not None and self._owner.prepare(self._current):
            return True
        if is_overdue:
            raise Busy("no room could be made in shared memory in time: try again later")
        return None

    @property
    def is_preparing(self) -> bool:
        """True if memory is reserved and only has to be allocated, which takes some turns and no further condition."""
        return self._current is not None

    @property
    def room(self) -> memoryview:
        """The memory where the next bytes belong; empty if no upload is under way."""
        return self._current.room if self._current is not None else memoryview(bytearray())

    def advance(self, size: int) -> None:
        """Note that `size` bytes have been received into `room`. When all have, the upload can be referred to."""
        assert self._current is not None
        self._current.advance(size)
        if self._current.is_complete:
            self.held[self._number] = self._owner.bodies.stage(self._current)
            self._current = None

    def is_expired(self, now_s: float) -> bool:
        """Return True if no request has come for the uploads within the bound. The connection is then evicted."""
        return self._staged_at_s is not None and now_s - self._staged_at_s > 2 * limits.UPLOAD_SECONDS_MAX

    def release(self) -> None:
        """Free the uploads that the answered request did not use."""
        if not self.held:
            return
        self._staged_at_s = None
        for held in self.held.values():
            if isinstance(held, tuple):
                self._owner.bodies.unstage(held[0])
        self.held.clear()

    def close(self) -> None:
        """Abandon everything, because the connection has ended."""
        self._abandon()
        self.release()

    def _abandon(self) -> None:
        upload, self._current = self._current, None
        if upload is not None:
            self._owner.bodies.abandon(upload)
