"""Bugs of the event feed: events that are lost, repeated or out of order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from stepwell.domain.events import AnyEvent
from stepwell.domain.machine import Outcome
from stepwell.manager.event_feed import EventFeed
from stepwell.manager.journal import Journal
from stepwell.manager.watchers import Watchers, _Watcher
from tests.simulator.bugs.registry import bug, patched


@bug("The events of a later command of a turn come before those of an earlier one.")
def events_out_of_order() -> AbstractContextManager[None]:
    record = Journal.record

    def record_in_front(self: Journal, outcomes: Sequence[Outcome], now_ms: int) -> None:
        earlier, self._batch.events = self._batch.events, []
        record(self, outcomes, now_ms)
        self._batch.events = [*self._batch.events, *earlier]

    return patched((Journal, "record", record_in_front))


@bug("Events that come while the outbox of a watcher is full are lost for it.")
def events_lost_at_full_outbox() -> AbstractContextManager[None]:
    advance = Watchers._advance

    def skip_if_full(self: Watchers, watcher: _Watcher, revision: int, now_s: float) -> int:
        if not watcher.is_ready:
            watcher.scanned = revision
            return 0
        return advance(self, watcher, revision, now_s)

    return patched((Watchers, "_advance", skip_if_full))


@bug("A frame of events ends in the middle of a revision, and the watcher goes on behind that revision.")
def frame_ends_inside_revision() -> AbstractContextManager[None]:
    events_after = EventFeed.events_after

    def cut(self: EventFeed, revision: int, limit: int, committed: int) -> tuple[Sequence[AnyEvent], int]:
        found, upto = events_after(self, revision, limit, committed)
        return found[:limit], upto

    return patched((EventFeed, "events_after", cut))
