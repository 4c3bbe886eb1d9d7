"""Who has which segment mapped, as far as we are told.

A segment that is retired is gone for us, but its memory stays for as long as somebody maps it. That is counted here,
and bounded: past the bound, whoever has held on to the oldest the longest is disconnected. Their process keeps that
memory, but nothing new is added to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepwell.manager.sessions import SessionRecord


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

    def give(self, session: SessionRecord, segments: Iterable[int]) -> None:
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

    def forget(self, session: SessionRecord) -> None:
        """A session is over, or treated as if it were."""
        self.release(session, tuple(session.segments))
        session.notices.clear()

    def beyond(self, limit: int) -> Iterator[SessionRecord]:
        """Those who have held on the longest, until the others hold no more bytes than that. They are forgotten."""
        while self.retired_bytes > limit:
            for session in self.oldest():
                yield session
                self.forget(session)

    def oldest(self) -> set[SessionRecord]:
        """Those who have the oldest of the retired segments."""
        return set(self._by_segment[next(iter(self._retired))]) if self._retired else set()
