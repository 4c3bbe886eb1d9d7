"""Watchers: connections that receive events.

A watcher has a position in the event feed, and receives the next frame when it has read the ones before. The watchers
take turns, one frame each, up to a bounded number of events per turn of the loop. Neither a watcher that starts far
back nor one that does not read delays other connections, and no event is buffered for a single watcher.
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
    """The position and the filter of one watching connection.

    All events up to `scanned` were sent or are not visible to the watcher. `notified` is the revision that the client
    knows it has reached; it lags behind `scanned` while only invisible events happen, and is brought up at intervals.
    """

    __slots__ = ("_narrowed", "_scope", "connection", "notified", "notified_at_s", "scanned")

    def __init__(
        self, connection: ClientConnection, narrowed: Collection[str] | None, since: int, now_s: float
    ) -> None:
        assert connection.session is not None
        self.connection = connection
        self._scope = connection.session.projects
        self._narrowed = None if narrowed is None else frozenset(narrowed)
        self.scanned = since
        self.notified = since
        self.notified_at_s = now_s

    @property
    def is_ready(self) -> bool:
        """True if the peer has read enough of its outbox to get another frame."""
        return len(self.connection.peer.outbox) < limits.WATCHER_OUTBOX_BYTES

    def is_visible(self, event: AnyEvent) -> bool:
        """Return True if the session may see an event and the watcher asked for its project.

        All projects of the event must be in the session's scope, because an event of a plan over two projects would
        otherwise reveal the second one. One of them must be among the projects that the watcher asked for.
        """
        projects = event.scope
        if not projects or (self._scope is None and self._narrowed is None):
            return True
        if self._scope is not None and not self._scope.issuperset(projects):
            return False
        return self._narrowed is None or not self._narrowed.isdisjoint(projects)

    def send(self, message: Events | WatchLagged, upto: int, now_s: float) -> None:
        """Put a message into the outbox, and note the revision that the client reaches with it."""
        self.connection.peer.send(message)
        self.notified, self.notified_at_s = upto, now_s


class Watchers:
    """All watching connections, in the order in which they are served next. The loop owns the one instance."""

    def __init__(self, feed: EventFeed, requests: RequestHandler, log: Logger) -> None:
        self._feed = feed
        self._requests = requests
        self._log = log
        self._queue: deque[_Watcher] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, connection: ClientConnection, message: WatchEvents, now_s: float) -> None:
        """Make a connection a watcher, or send it the refusal.

        The first message is empty and only names the revision at which the watch begins, so that a client that connects
        without one knows from where to resume after a lost connection.
        """
        try:
            since = self._start_revision(connection, message)
        except Refused as error:
            if isinstance(error, OutOfScope):
                self._log.info("request.out_of_scope", pid=connection.credentials.pid, reason=error.message)
            connection.peer.send(Response(message.request_id, (Refusal.of(error, self._requests.revision),)))
            return
        connection.is_watching = True
        watcher = _Watcher(connection, message.projects, since, now_s)
        watcher.send(Events((), since), since, now_s)
        self._queue.append(watcher)

    def _start_revision(self, connection: ClientConnection, message: WatchEvents) -> int:
        """Return the revision at which a watcher starts.

        Raise `OutOfScope` for projects outside the session's scope, `InvalidArgument` for a revision that does not
        exist yet, and `Busy` if there are too many watchers.
        """
        assert connection.session is not None
        self._requests.origin(connection.session).require(message.projects or ())
        revision = self._requests.revision
        if message.since is not None and message.since > revision:
            raise InvalidArgument(f"since={message.since} is no revision of this epoch, which is at {revision}")
        if len(self._queue) >= limits.WATCHERS_MAX:
            raise Busy(f"{limits.WATCHERS_MAX} connections watch already: try again later")
        return revision if message.since is None else message.since

    def remove(self, connection: ClientConnection) -> None:
        """Forget a connection that has ended."""
        if connection.is_watching:
            self._queue = deque(each for each in self._queue if each.connection is not connection)

    @property
    def has_more(self) -> bool:
        """True if a watcher is behind and reads: the loop then does not sleep."""
        if not self._queue:
            return False
        revision = self._requests.revision
        return any(each.scanned < revision and each.is_ready for each in self._queue)

    def publish(self, now_s: float) -> list[ClientConnection]:
        """Send the next events to the watchers, within the bound of a turn, and return the connections to flush.

        The queue is rotated, one frame per watcher, so that all advance at the same pace and the next turn begins with
        the one that is next. A round ends when no watcher got anything, or the events of this turn are used up.
        """
        if not self._queue:
            return []
        revision = self._requests.revision
        room, idle = limits.EVENTS_SENT_PER_TURN, 0
        notified: list[ClientConnection] = []
        while room > 0 and idle < len(self._queue):
            watcher = self._queue[0]
            self._queue.rotate(-1)
            size = len(watcher.connection.peer.outbox)
            try:
                scanned = self._advance(watcher, revision, now_s)
            except Exception as error:  # noqa: BLE001 - a defect here ends one watcher only
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
        """Close a watcher whose events cannot be read, for example because of a damaged store.

        Other watchers continue.
        """
        self._log.exception("watcher.met_a_defect", pid=watcher.connection.credentials.pid)
        fault = ManagerFault(f"the events behind revision {watcher.notified} cannot be read ({error!r})")
        watcher.connection.peer.send(Rejected(Refusal.of(fault, self._requests.revision)))
        watcher.connection.peer.is_open = False
        self.remove(watcher.connection)
        return 1

    def _advance(self, watcher: _Watcher, revision: int, now_s: float) -> int:
        """Send one frame to a watcher if there is anything for it. Return the number of events that were examined.

        Events that the watcher may not see count as examined too, because filtering them takes the time of the turn as
        well.
        """
        if not watcher.is_ready:
            return 0
        if watcher.scanned >= revision:
            if watcher.notified < watcher.scanned and now_s - watcher.notified_at_s >= limits.WATCHER_POSITION_SECONDS:
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
            except InvalidArgument:  # the events of one revision do not fit in a frame
                watcher.send(WatchLagged(watcher.scanned), watcher.scanned, now_s)
        return max(1, len(events))
