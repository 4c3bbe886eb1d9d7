"""Uploads: large bodies that come beside the requests of one connection, straight into shared memory."""

from __future__ import annotations

from stepwell import limits
from stepwell.domain.tiers.body_refs import Held
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, ProtocolError, StepwellError
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.messages import OfferUpload


class Uploads:
    """What a connection has uploaded since its last request, by the numbers that it gave."""

    __slots__ = ("_current", "_number", "_owner", "_staged_at_s", "held")

    def __init__(self, owner: StateOwner) -> None:
        self._owner = owner
        self._current: Upload | None = None  # has room, and is not complete
        self._number = 0
        self._staged_at_s: float | None = None  # since when something waits for a request to take it
        self.held: dict[int, Held | StepwellError] = {}

    def grant(self, offer: OfferUpload, origin: Origin, now_s: float, *, is_overdue: bool) -> bool | None:
        """Whether an offered body can be sent; None, while room is being made for it: then ask again.

        Why it cannot is remembered, and is the refusal of the command that refers to it.
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
        if self._current is None:
            own = sum(held[1] for held in self.held.values() if isinstance(held, tuple))
            self._current = self._owner.reserve(offer.size, own, origin, is_modest=offer.is_modest)
        if self._current is not None and self._owner.prepare(self._current):
            return True
        if is_overdue:
            raise Busy("no room could be made in shared memory in time: try again later")
        return None

    @property
    def is_preparing(self) -> bool:
        """Whether it is only a matter of turns until the offer can be granted."""
        return self._current is not None

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong."""
        return self._current.room if self._current is not None else memoryview(bytearray())

    def took(self, size: int) -> None:
        """So many bytes have come. When they all have, the upload can be referred to."""
        assert self._current is not None
        self._current.took(size)
        if self._current.is_complete:
            self.held[self._number] = self._owner.bodies.stage(self._current)
            self._current = None

    def is_expired(self, now_s: float) -> bool:
        """Whether nobody has come back for what was uploaded."""
        return self._staged_at_s is not None and now_s - self._staged_at_s > 2 * limits.UPLOAD_SECONDS_MAX

    def release(self) -> None:
        """A request has been answered: what it did not take is not kept."""
        if not self.held:
            return
        self._staged_at_s = None
        for held in self.held.values():
            if isinstance(held, tuple):
                self._owner.bodies.unstage(held[0])
        self.held.clear()

    def close(self) -> None:
        """The connection is gone."""
        self._abandon()
        self.release()

    def _abandon(self) -> None:
        upload, self._current = self._current, None
        if upload is not None:
            self._owner.bodies.abandon(upload)
