"""The feed: what was committed last, as events. Whoever watches has a place in it, and nothing else of ours.

A watcher that is slow or late costs its own outbox and a bounded part of a turn: the feed goes on, and forgets. What
it has forgotten is read from the store, if there is one, or else missed, and whoever missed it is told so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from stepwell import limits
from stepwell.domain.event_builder import ProjectsOf, events_of
from stepwell.domain.events import AnyEvent
from stepwell.domain.machine import Outcome
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.verdict import AnyChange, RowChanged

_revision = attrgetter("revision")


class Archive(Protocol):
    """Where events are that the feed has forgotten."""

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        """The events behind a revision, at least `limit` if there are as many, and always whole revisions."""
        ...

    def oldest_event(self) -> int:
        """The revision behind which no event is missing."""
        ...


class _Step(Struct):
    """What happened at one revision: changes, until somebody asks for the events."""

    revision: int
    at_ms: int
    size: int
    changes: Sequence[AnyChange] = ()
    events: Sequence[AnyEvent] = ()


class EventFeed:
    """The latest steps, bounded by the number of their changes.

    Making events takes longer than keeping changes, and mostly nobody asks: of fragments, which are what changes
    most, they are made when somebody does. Whatever belongs to a plan is told at once, because the plan may be
    forgotten before anybody asks.
    """

    def __init__(self, projects_of: ProjectsOf, *, floor: int = 0, archive: Archive | None = None) -> None:
        self._projects_of = projects_of
        self._archive = archive
        self._steps: deque[_Step | FragmentRow] = deque()  # the row alone, of a fragment that was new: as nearly always
        self._size = 0
        self._floor = floor  # of what is in memory: every event behind it

    def resume_point(self, revision: int) -> int:
        """The revision itself, if no event behind it is forgotten; or else where to go on."""
        if revision >= self._floor:
            return revision
        floor = self._floor if self._archive is None else min(self._floor, self._archive.oldest_event())
        return max(revision, floor)

    def note(self, outcomes: Sequence[Outcome], at_ms: int) -> None:
        """Take the committed outcomes of one revision."""
        changes = tuple(chain.from_iterable(outcome.changes for outcome in outcomes))
        if changes:
            step = _Step(outcomes[0].revision, at_ms, len(changes), changes)
            if not all(type(change.after or change.before) is FragmentRow for change in changes):
                self._build_events(step)
            self._add(step)

    def note_new(self, rows: Sequence[FragmentRow]) -> None:
        """Take fragments that were not there before, each of which was all that happened at its revision."""
        self._steps.extend(rows)
        self._size += len(rows)
        if self._size > limits.EVENTS_BUFFERED:
            self._trim()

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Take committed events, of one revision or of several."""
        for revision, group in groupby(events, _revision):
            together = tuple(group)
            self._add(_Step(revision, together[0].at_ms, len(together), (), together))

    def events_after(self, revision: int, limit: int, committed: int) -> tuple[Sequence[AnyEvent], int]:
        """What happened behind a revision of which nothing is forgotten, and up to which it is told with that.

        At least `limit` events, if there are as many, and always whole revisions. `committed` is how far there is
        anything to tell.
        """
        if revision < self._floor:
            assert self._archive is not None, "the caller has asked where to resume"
            found = self._archive.events_after(revision, limit)
            return found, found[-1].revision if len(found) >= limit else committed
        events: list[AnyEvent] = []
        for at in range(bisect_right(self._steps, revision, key=_revision), len(self._steps)):
            if len(events) >= limit:
                return events, self._steps[at].revision - 1
            events += self._build_events(self._steps[at])
        return events, committed

    def _build_events(self, step: _Step | FragmentRow) -> Sequence[AnyEvent]:
        if isinstance(step, FragmentRow):
            return events_of((RowChanged(None, step),), step.revision, step.placed_at_ms, self._projects_of)
        if step.changes:
            step.events = events_of(step.changes, step.revision, step.at_ms, self._projects_of)
            step.changes = ()
        return step.events

    def _add(self, step: _Step) -> None:
        self._steps.append(step)
        self._size += step.size
        self._trim()

    def _trim(self) -> None:
        """Let go of the oldest, so that the bound holds."""
        while self._size > limits.EVENTS_BUFFERED:
            oldest = self._steps.popleft()
            self._size -= oldest.size if isinstance(oldest, _Step) else 1
            self._floor = oldest.revision
