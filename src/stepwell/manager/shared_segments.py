"""Segment sharing: which client has which segment of shared memory, and when its descriptor is sent.

A reply contains handles: a segment, an offset and a length. Before a client can use one it needs the descriptor of the
segment, which is sent once per connection, always ahead of the first handle that needs it.

A segment that the manager retires is closed here at the end of the turn, but its memory stays allocated for as long as
a client maps it. Clients are told with their next reply, and report when they have unmapped it. Until then the bytes
are counted. Past `limits.RETIRED_BYTES_MAX` the sessions that hold the oldest retired segment are disconnected: their
processes keep that memory, but get no new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from stepwell import limits
from stepwell.boot import clock_namespace
from stepwell.errors import OutcomeUnknown
from stepwell.manager.connection import ClientConnection
from stepwell.manager.sessions import SessionRecord
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.fragment_index import FragmentIndex
from stepwell.protocol.handles import IN_STORE, Handle
from stepwell.protocol.messages import (
    CommandResult,
    IndexOpened,
    Response,
    Result,
    SegmentInfo,
    SegmentsAdded,
    SegmentsRetired,
    ViewOpened,
)
from stepwell.protocol.usage import IndexUsage, MemoryUsage


class SegmentHolders:
    """Counts which sessions hold which segments, as far as clients report it.

    Invariants: a segment is in `_by_segment` only while a session holds it; `retired_bytes` is the sum of `_retired`,
    which has the retired segments that a session still holds, oldest first.
    """

    def __init__(self) -> None:
        self._by_segment: dict[int, set[SessionRecord]] = {}
        self._retired: dict[int, int] = {}  # sizes by number
        self.retired_bytes = 0

    @property
    def retired(self) -> int:
        """The number of segments that are retired and still held by a session."""
        return len(self._retired)

    def add(self, session: SessionRecord, segments: Iterable[int]) -> None:
        """Note that a session was given segments."""
        for number in segments:
            self._by_segment.setdefault(number, set()).add(session)
            session.segments.add(number)

    def retire(self, gone: Iterable[tuple[int, int]]) -> None:
        """Note that segments, each with its size, are retired. Their holders are told with their next reply."""
        for number, size in gone:
            if holders := self._by_segment.get(number):
                self._retired[number] = size
                self.retired_bytes += size
                for session in holders:
                    session.notices.append(number)

    def release(self, session: SessionRecord, segments: Iterable[int]) -> None:
        """Note that a session has unmapped segments.

        Segments that it never held are ignored, since peers may say anything.
        """
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
        """Forget a session that has ended, or is treated as if it had."""
        self.release(session, tuple(session.segments))
        session.notices.clear()

    def pop_oldest_beyond(self, limit: int) -> Iterator[SessionRecord]:
        """Yield and remove the sessions that hold the oldest retired segments, until at most `limit` bytes are held."""
        while self.retired_bytes > limit:
            for session in self.oldest():
                yield session
                self.remove(session)

    def oldest(self) -> set[SessionRecord]:
        """Return the sessions that hold the oldest of the retired segments."""
        return set(self._by_segment[next(iter(self._retired))]) if self._retired else set()


class SegmentSharing:
    """Sends descriptors of segments to connections before the handles that need them.

    The loop owns the one instance.
    """

    def __init__(self, bodies: BodyStore, index: FragmentIndex) -> None:
        self._bodies = bodies
        self._index = index
        self.holders = SegmentHolders()

    @property
    def live(self) -> Iterator[int]:
        """The numbers of all segments in use."""
        index = (segment.number for segment in self._index.segments)
        return chain(self._bodies.arena.segments, self._bodies.files.segments, index)

    def share_view(self, connection: ClientConnection, view: ViewOpened) -> None:
        """Send the segments that a view needs: those of its catalogues, and all that hold bodies.

        A reader of a view finds handles by itself, so it needs every segment that a handle may point into.
        """
        catalogues = (number for end in view.catalogues for number, _ in end.segments)
        arena = self._bodies.arena
        bodies = (number for number in arena.segments if number not in arena.raw_segments)
        self.share(connection, chain(catalogues, bodies, self._bodies.files.segments))

    def send_segments_for(self, connection: ClientConnection, response: Response) -> None:
        """Send the segments that a response needs, and the notices that its session has not received yet."""
        self.share_for_results(connection, response.results)
        self.send_retired(connection)

    def share_for_results(self, connection: ClientConnection, results: Iterable[Result]) -> None:
        """Send the segments that the handles of some results need."""
        known = connection.known
        for result in results:
            if isinstance(result, CommandResult) and result.handles:
                for handle in result.handles.values():
                    if handle.segment not in known:
                        self.share_for_handle(connection, handle)
                self._share_index(connection)

    def share_for_handle(self, connection: ClientConnection, handle: Handle) -> None:
        """Send the segment that one handle needs.

        A body in the store needs none, because the client reads the database.
        """
        if handle.segment not in connection.known and handle.segment != IN_STORE:
            self.share(connection, (handle.segment,))

    def share(self, connection: ClientConnection, segments: Iterable[int]) -> None:
        """Send the descriptors of those segments that the connection does not have yet, some per frame."""
        new = [number for number in segments if number not in connection.known]
        if not new:
            return
        assert connection.session is not None
        for start in range(0, len(new), limits.DESCRIPTORS_PER_FRAME_MAX):
            self._send(connection, new[start : start + limits.DESCRIPTORS_PER_FRAME_MAX])
        connection.known.update(new)
        self.holders.add(connection.session, new)

    def _share_index(self, connection: ClientConnection) -> None:
        """Send the descriptors of the index to a connection that has read a fragment, unless it has them.

        The slots are sent again with a larger hash table: both belong to one message, and a client notices that it has
        mapped the first already.
        """
        segments = self._index.segments
        if not segments or segments[-1].number in connection.known:
            return
        assert connection.session is not None
        slots, cells = (SegmentInfo(each.number, each.size) for each in segments)
        opened = IndexOpened(slots, cells, self._index.key, clock_namespace())
        try:
            connection.peer.send(opened, [each.descriptor for each in segments])
        except OutcomeUnknown:  # the manager has no descriptor left: the client goes on to ask
            return
        numbers = [each.number for each in segments]
        connection.known.update(numbers)
        self.holders.add(connection.session, numbers)

    def _send(self, connection: ClientConnection, numbers: Sequence[int]) -> None:
        segments = [self._bodies.segment(number) for number in numbers]
        announced = SegmentsAdded(tuple(SegmentInfo(each.number, each.size) for each in segments))
        connection.peer.send(announced, [each.descriptor for each in segments])

    def send_retired(self, connection: ClientConnection) -> None:
        """Tell a session which of its segments are retired."""
        session = connection.session
        if session is not None and session.notices:
            connection.peer.send(SegmentsRetired(tuple(session.notices)))
            session.notices.clear()

    def usage(self, catalogues: int) -> MemoryUsage:
        """Return the usage of shared memory, for the status."""
        arena = self._bodies.arena
        return MemoryUsage(
            arena_bytes=arena.bytes,
            arena_limit=arena.limit,
            live_bytes=arena.live,
            segments=len(arena.segments),
            file_bytes=self._bodies.files.bytes,
            waiting=self._bodies.background.waiting,
            retired_segments=self.holders.retired,
            retired_bytes=self.holders.retired_bytes,
            catalogues=catalogues,
        )

    def index_usage(self, hits: int, misses: int) -> IndexUsage:
        """Return the usage of the index, for the status."""
        return IndexUsage(len(self._index), self._index.bytes_taken, hits, misses)

    def close_retired(self) -> None:
        """Close the segments that went out of use in this turn, and count them for as long as clients hold them."""
        bodies, index = self._bodies, self._index
        if bodies.arena.retired or bodies.files.retired or index.retired:
            self.holders.retire([*bodies.close_retired(), *index.close_retired()])
