"""The event feed: the latest committed changes as events, for watchers.

A watcher has a position (a revision) in the feed and nothing else here. A watcher that is slow or late costs its own
outbox and a bounded part of a turn: the feed continues and forgets its oldest steps. Forgotten events are read from the
store, if there is a durable one. Otherwise the watcher has missed them, and receives `WatchLagged`.

Building events takes longer than keeping changes, and mostly no client watches. Changes of fragments, which are the
most frequent, are therefore kept as changes and become events when a watcher reaches them. Changes that belong to a
plan become events at once, because the plan may be forgotten before a watcher comes.
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
from stepwell.domain.tiers.fast_path import StoreRun
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.verdict import AnyChange, RowChanged

_revision = attrgetter("revision")


class Archive(Protocol):
    """The store of events that the feed has forgotten."""

    def events_after(self, revision: int, limit: int) -> list[AnyEvent]:
        """Return the events behind a revision: whole revisions, at least `limit` events if there are as many."""
        ...

    def oldest_event(self) -> int:
        """Return the revision behind which no event is missing."""
        ...


class _Step(Struct):
    """The changes of one revision, or the events that were built from them. `size` counts them against the bound."""

    revision: int
    at_ms: int
    size: int
    changes: Sequence[AnyChange] = ()
    events: Sequence[AnyEvent] = ()


class EventFeed:
    """The latest steps, bounded by the number of their changes or, where these are built at once, of their events.

    The journal owns it and fills it: behind the commit with a durable store, at once without one. Watchers read it in
    the same thread. Steps are in the order of
    their revisions. `floor` is the revision behind which every event is in memory. A new fragment without demotions,
    the most frequent change, is kept as its row alone.
    """

    def __init__(self, projects_of: ProjectsOf, *, floor: int = 0, archive: Archive | None = None) -> None:
        self._projects_of = projects_of
        self._archive = archive
        self._steps: deque[_Step | FragmentRow] = deque()
        self._size = 0
        self._floor = floor

    def resume_point(self, revision: int) -> int:
        """Return the revision itself if no event behind it is forgotten, or else the revision to continue from."""
        if revision >= self._floor:
            return revision
        floor = self._floor if self._archive is None else min(self._floor, self._archive.oldest_event())
        return max(revision, floor)

    def record(self, outcomes: Sequence[Outcome], at_ms: int) -> None:
        """Add the outcomes of one revision."""
        if len(outcomes) == 1:
            changes = outcomes[0].changes
        else:
            changes = tuple(chain.from_iterable([outcome.changes for outcome in outcomes]))
        if not changes:
            return
        revision = outcomes[0].revision
        if _are_fragments(changes):
            self._add(_Step(revision, at_ms, len(changes), changes))
        elif events := events_of(changes, revision, at_ms, self._projects_of):
            self._add(_Step(revision, at_ms, len(events), (), events))

    def record_stores(self, run: StoreRun) -> None:
        """Add stores of fragments, each with a revision of its own."""
        if not run.demotions and not run.replaced:
            self._steps.extend(run.rows)
            self._size += len(run.rows)
        else:
            for row in run.rows:
                changes = run.changes(row)
                self._steps.append(_Step(row.revision, row.placed_at_ms, len(changes), changes))
                self._size += len(changes)
        if self._size > limits.EVENTS_BUFFERED:
            self._trim()

    def publish(self, events: Sequence[AnyEvent]) -> None:
        """Add committed events, of one or more revisions."""
        for revision, group in groupby(events, _revision):
            together = tuple(group)
            self._add(_Step(revision, together[0].at_ms, len(together), (), together))

    def events_after(self, revision: int, limit: int, committed: int) -> tuple[Sequence[AnyEvent], int]:
        """Return the events behind a revision, and the revision up to which they are complete.

        There are at least `limit` events if there are as many, and always whole revisions. `committed` is the latest
        revision. The caller has checked with `resume_point` that nothing behind the revision is forgotten.
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
        """Return the events of a step. They are built once and then replace the changes."""
        if isinstance(step, FragmentRow):
            return events_of((RowChanged(None, step),), step.revision, step.placed_at_ms, self._projects_of)
        if step.changes:
            step.events = events_of(step.changes, step.revision, step.at_ms, self._projects_of)
            step.changes = ()
        return step.events

    def _add(self, step: _Step) -> None:
        self._steps.append(step)
        self._size += step.size
        if self._size > limits.EVENTS_BUFFERED:
            self._trim()

    def _trim(self) -> None:
        """Forget the oldest steps until the bound holds, and raise the floor."""
        while self._size > limits.EVENTS_BUFFERED:
            oldest = self._steps.popleft()
            self._size -= oldest.size if isinstance(oldest, _Step) else 1
            self._floor = oldest.revision


def _are_fragments(changes: Sequence[AnyChange]) -> bool:
    """Return True if the changes are of fragments only."""
    for change in changes:  # a loop, because a generator would cost each command more than the answer
        after = change.after
        if type(change.before if after is None else after) is not FragmentRow:
            return False
    return True
