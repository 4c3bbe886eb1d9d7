"""Watchers: connections that receive events.

Each has a place in the feed, and gets the next frame when it has read.

One frame each in turn, a bounded number of events in a turn of the loop: neither a watcher that begins long ago nor one
that does not read makes anybody wait, and what it does not read is not kept for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from stepwell import limits
from stepwell.domain.events import AnyEvent
from stepwell.errors import Busy, InvalidArgument, ManagerFault, OutOfScope, Refused
from stepwell.manager.connection import ClientConnection
from stepwell.manager.event_feed import EventFeed
from stepwell.manager.request_handler import RequestHandler
from stepwell.protocol.messages import Events, Refusal, Rejected, Response, WatchEvents, WatchLagged
from stepwell.telemetry import Logger


class _Watcher:
    """How far a connection has been notified, and about what."""

    __slots__ = ("_narrowed", "_scope", "connection", "notified", "notified_at_s", "scanned")

    def __init__(
        self, connection: ClientConnection, narrowed: Collection[str] | None, since: int, now_s: float
    ) -> None:
        assert connection.session is not None
        self.connection = connection
        self._scope = connection.session.projects
        self._narrowed = None if narrowed is None else frozenset(narrowed)
        self.scanned = since  # everything up to here was sent, or was none of its business
        self.notified = since  # so far it knows
        self.notified_at_s = now_s

    @property
    def is_ready(self) -> bool:
        """Whether it reads what it gets."""
        return len(self.connection.peer.outbox) < limits.WATCHER_OUTBOX_BYTES

    def is_visible(self, event: AnyEvent) -> bool:
        """All of it has to be in scope; of what is, something has to be what it asked for."""
        projects = event.scope
        if not projects or (self._scope is None and self._narrowed is None):
            return True
        if self._scope is not None and not self._scope.issuperset(projects):
            return False
        return self._narrowed is None or not self._narrowed.isdisjoint(projects)

    def send(self, message: Events | WatchLagged, upto: int, now_s: float) -> None:
        self.connection.peer.send(message)
        self.notified, self.notified_at_s = upto, now_s


class Watchers:
    """All that watch."""

    def __init__(self, feed: EventFeed, requests: RequestHandler, log: Logger) -> None:
        self._feed = feed
        self._requests = requests
        self._log = log
        self._queue: deque[_Watcher] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, connection: ClientConnection, message: WatchEvents, now_s: float) -> None:
        """From now on a connection is notified what happens; or it is notified why not."""
        try:
            since = self._start_revision(connection, message)
        except Refused as error:
            if isinstance(error, OutOfScope):
                self._log.warning("request.out_of_scope", pid=connection.credentials.pid, reason=error.message)
            connection.peer.send(Response(message.request_id, (Refusal.of(error, self._requests.revision),)))
            return
        connection.is_watching = True
        watcher = _Watcher(connection, message.projects, since, now_s)
        watcher.send(Events((), since), since, now_s)
        self._queue.append(watcher)

    def _start_revision(self, connection: ClientConnection, message: WatchEvents) -> int:
        """Where it begins, or a refusal."""
        assert connection.session is not None
        self._requests.origin(connection.session).require(message.projects or ())
        revision = self._requests.revision
        if message.since is not None and message.since > revision:
            raise InvalidArgument(f"since={message.since} is no revision of this epoch, which is at {revision}")
        if len(self._queue) >= limits.WATCHERS_MAX:
            raise Busy(f"{limits.WATCHERS_MAX} connections watch already: try again later")
        return revision if message.since is None else message.since

    def remove(self, connection: ClientConnection) -> None:
        """It is gone."""
        if connection.is_watching:
            self._queue = deque(each for each in self._queue if each.connection is not connection)

    @property
    def has_more(self) -> bool:
        """Whether somebody is behind and reads: then the next turn need not wait for anything."""
        if not self._queue:
            return False
        revision = self._requests.revision
        return any(each.scanned < revision and each.is_ready for each in self._queue)

    def publish(self, now_s: float) -> list[ClientConnection]:
        """Tell everybody what is next for them, as far as a turn allows. Those who got something have to be flushed."""
        if not self._queue:
            return []
        revision = self._requests.revision
        room, idle = limits.EVENTS_TOLD_PER_TURN, 0
        notified: list[ClientConnection] = []
        while room > 0 and idle < len(self._queue):
            watcher = self._queue[0]
            self._queue.rotate(-1)
            size = len(watcher.connection.peer.outbox)
            try:
                scanned = self._advance(watcher, revision, now_s)
            except Exception as error:  # noqa: BLE001 - what cannot be notified costs whoever asked for it, and nobody else
                scanned = self._reject(watcher, error)
            if scanned:
                room -= scanned
                idle = 0
            else:
                idle += 1
            if len(watcher.connection.peer.outbox) > size:
                notified.append(watcher.connection)
        return notified

    def _reject(self, watcher: _Watcher, error: Exception) -> int:
        self._log.exception("watcher.met_a_defect", pid=watcher.connection.credentials.pid)
        fault = ManagerFault(f"what happened behind revision {watcher.notified} cannot be notified ({error!r})")
        watcher.connection.peer.send(Rejected(Refusal.of(fault, self._requests.revision)))
        watcher.connection.peer.is_open = False
        self.remove(watcher.connection)
        return 1

    def _advance(self, watcher: _Watcher, revision: int, now_s: float) -> int:
        """A frame for a watcher, if anything is next; how many events were scanned at."""
        if not watcher.is_ready:
            return 0
        if watcher.scanned >= revision:
            if watcher.notified < watcher.scanned and now_s - watcher.notified_at_s >= limits.UNTOLD_SECONDS:
                watcher.send(Events((), watcher.scanned), watcher.scanned, now_s)
            return 0
        if (resume := self._feed.resume_point(watcher.scanned)) > watcher.scanned:
            watcher.scanned = resume
            watcher.send(WatchLagged(resume), resume, now_s)
            return 1
        events, watcher.scanned = self._feed.events_after(watcher.scanned, limits.EVENTS_PER_FRAME, revision)
        if seen := tuple(filter(watcher.is_visible, events)):
            try:
                watcher.send(Events(seen, watcher.scanned), watcher.scanned, now_s)
            except InvalidArgument:  # one step is more than a frame holds
                watcher.send(WatchLagged(watcher.scanned), watcher.scanned, now_s)
        return max(1, len(events))
