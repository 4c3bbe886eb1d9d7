"""Sharing: segments are handed to whoever gets a handle into them, and taken back when they are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from stepwell import limits
from stepwell.manager.connection import ClientConnection
from stepwell.manager.holders import SegmentHolders
from stepwell.memory.writer.body_store import BodyStore
from stepwell.protocol.handles import IN_STORE, Handle
from stepwell.protocol.messages import (
    CommandResult,
    MemoryUsage,
    Response,
    SegmentInfo,
    SegmentsAdded,
    SegmentsRetired,
    ViewOpened,
)


class SegmentSharing:
    """Sends descriptors before the handles that need them."""

    def __init__(self, bodies: BodyStore) -> None:
        self._bodies = bodies
        self.holders = SegmentHolders()

    @property
    def live(self) -> Iterator[int]:
        """All segments that are in use."""
        return chain(self._bodies.arena.segments, self._bodies.files.segments)

    def share_view(self, guest: ClientConnection, view: ViewOpened) -> None:
        """Send what is needed to read a view: its catalogues, and whatever holds bodies."""
        catalogues = (number for end in view.catalogues for number, _ in end.segments)
        bodies = (number for number in self.live if number not in self._bodies.arena.added)
        self.share(guest, chain(catalogues, bodies))

    def before(self, guest: ClientConnection, response: Response) -> None:
        """Send what a response needs, and what its session should know by now."""
        known = guest.known
        for result in response.results:
            if isinstance(result, CommandResult) and result.handles:
                for handle in result.handles.values():
                    if handle.segment not in known:
                        self.lend(guest, handle)
        self.notify(guest)

    def lend(self, guest: ClientConnection, handle: Handle) -> None:
        """Send what one handle needs."""
        if handle.segment not in guest.known and handle.segment != IN_STORE:
            self.share(guest, (handle.segment,))

    def share(self, guest: ClientConnection, segments: Iterable[int]) -> None:
        """Send those of the segments that a connection has not carried yet."""
        new = [number for number in segments if number not in guest.known]
        if not new:
            return
        assert guest.session is not None
        for start in range(0, len(new), limits.DESCRIPTORS_PER_FRAME_MAX):
            self._send(guest, new[start : start + limits.DESCRIPTORS_PER_FRAME_MAX])
        guest.known.update(new)
        self.holders.give(guest.session, new)

    def _send(self, guest: ClientConnection, numbers: Sequence[int]) -> None:
        segments = [self._bodies.segment(number) for number in numbers]
        announced = SegmentsAdded(tuple(SegmentInfo(each.number, each.size) for each in segments))
        guest.peer.send(announced, [each.descriptor for each in segments])

    def notify(self, guest: ClientConnection) -> None:
        """Tell a session which of its segments are gone."""
        session = guest.session
        if session is not None and session.notices:
            guest.peer.send(SegmentsRetired(tuple(session.notices)))
            session.notices.clear()

    def usage(self, catalogues: int) -> MemoryUsage:
        """How much memory there is, and who has it."""
        arena = self._bodies.arena
        return MemoryUsage(
            arena_bytes=arena.bytes,
            arena_limit=arena.limit,
            live_bytes=arena.live,
            segments=len(arena.segments),
            file_bytes=self._bodies.files.bytes,
            waiting=self._bodies.labour.waiting,
            retired_segments=self.holders.retired,
            retired_bytes=self.holders.retired_bytes,
            catalogues=catalogues,
        )

    def retire(self) -> None:
        """Take note of the segments that are gone."""
        if gone := self._bodies.let_go():
            self.holders.retire(gone)
