"""Sharing: segments are handed to whoever gets a handle into them, and taken back when they are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from stepwell import limits
from stepwell.manager.connection import ClientConnection
from stepwell.manager.sessions import SessionRecord
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


class SegmentHolders:
    """Sessions by the segments that they were given."""

    def __init__(self) -> None:
        self._by_segment: dict[int, set[SessionRecord]] = {}
        self._retired: dict[int, int] = {}  # sizes, the oldest first, of those that somebody still has
        self.retired_bytes = 0

    @property
    def retired(self) -> int:
        """How many segments are gone for us and not for others."""
        return len(self._retired)

    def add(self, session: SessionRecord, segments: Iterable[int]) -> None:
        """A session is given segments."""
        for number in segments:
            self._by_segment.setdefault(number, set()).add(session)
            session.segments.add(number)

    def retire(self, gone: Iterable[tuple[int, int]]) -> None:
        """Segments are gone, each with its size. Their holders are told with their next answer."""
        for number, size in gone:
            if holders := self._by_segment.get(number):
                self._retired[number] = size
                self.retired_bytes += size
                for session in holders:
                    session.notices.append(number)

    def release(self, session: SessionRecord, segments: Iterable[int]) -> None:
        """A session has let go of segments."""
        for number in segments:
            if number not in session.segments:
                continue
            session.segments.discard(number)
            holders = self._by_segment[number]
            holders.discard(session)
            if not holders:
                del self._by_segment[number]
                self.retired_bytes -= self._retired.pop(number, 0)

    def remove(self, session: SessionRecord) -> None:
        """A session is over, or treated as if it were."""
        self.release(session, tuple(session.segments))
        session.notices.clear()

    def pop_oldest_beyond(self, limit: int) -> Iterator[SessionRecord]:
        """Those who have held on the longest, until the others hold no more bytes than that. They are forgotten."""
        while self.retired_bytes > limit:
            for session in self.oldest():
                yield session
                self.remove(session)

    def oldest(self) -> set[SessionRecord]:
        """Those who have the oldest of the retired segments."""
        return set(self._by_segment[next(iter(self._retired))]) if self._retired else set()


class SegmentSharing:
    """Sends descriptors before the handles that need them."""

    def __init__(self, bodies: BodyStore) -> None:
        self._bodies = bodies
        self.holders = SegmentHolders()

    @property
    def live(self) -> Iterator[int]:
        """All segments that are in use."""
        return chain(self._bodies.arena.segments, self._bodies.files.segments)

    def share_view(self, connection: ClientConnection, view: ViewOpened) -> None:
        """Send what is needed to read a view: its catalogues, and whatever holds bodies."""
        catalogues = (number for end in view.catalogues for number, _ in end.segments)
        bodies = (number for number in self.live if number not in self._bodies.arena.added)
        self.share(connection, chain(catalogues, bodies))

    def send_segments_for(self, connection: ClientConnection, response: Response) -> None:
        """Send what a response needs, and what its session should know by now."""
        known = connection.known
        for result in response.results:
            if isinstance(result, CommandResult) and result.handles:
                for handle in result.handles.values():
                    if handle.segment not in known:
                        self.share_for_handle(connection, handle)
        self.send_retired(connection)

    def share_for_handle(self, connection: ClientConnection, handle: Handle) -> None:
        """Send what one handle needs."""
        if handle.segment not in connection.known and handle.segment != IN_STORE:
            self.share(connection, (handle.segment,))

    def share(self, connection: ClientConnection, segments: Iterable[int]) -> None:
        """Send those of the segments that a connection has not carried yet."""
        new = [number for number in segments if number not in connection.known]
        if not new:
            return
        assert connection.session is not None
        for start in range(0, len(new), limits.DESCRIPTORS_PER_FRAME_MAX):
            self._send(connection, new[start : start + limits.DESCRIPTORS_PER_FRAME_MAX])
        connection.known.update(new)
        self.holders.add(connection.session, new)

    def _send(self, connection: ClientConnection, numbers: Sequence[int]) -> None:
        segments = [self._bodies.segment(number) for number in numbers]
        announced = SegmentsAdded(tuple(SegmentInfo(each.number, each.size) for each in segments))
        connection.peer.send(announced, [each.descriptor for each in segments])

    def send_retired(self, connection: ClientConnection) -> None:
        """Tell a session which of its segments are gone."""
        session = connection.session
        if session is not None and session.notices:
            connection.peer.send(SegmentsRetired(tuple(session.notices)))
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

    def close_retired(self) -> None:
        """Take note of the segments that are gone."""
        if gone := self._bodies.let_go():
            self.holders.retire(gone)
