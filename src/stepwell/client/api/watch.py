"""Watches: iterators over committed events, in order, each once.

A watch has a push connection of its own. When the connection breaks, the watch connects again and resumes behind the
last revision that it received, so that no event is lost or repeated. The manager keeps a bounded history: a watch that
falls too far behind gets `EventsMissed` and goes on from there.

`WatchCursor` holds the position and does no I/O; the asynchronous watch of `stepwell.aio` uses it too.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self
from weakref import WeakSet

from stepwell.client.session.channel import Channel
from stepwell.client.session.push_connection import PushConnection
from stepwell.domain.checks import check
from stepwell.domain.events import AnyEvent
from stepwell.errors import EventsMissed, InvalidArgument, ProtocolError, StepwellError
from stepwell.protocol import messages
from stepwell.protocol.messages import Events, ManagerMessage, Refusal, Rejected, Response, WatchLagged
from stepwell.transport.connection import Connection


class WatchCursor:
    """The position of a watch: received events that were not returned yet, and the revision to resume from.

    One thread or task uses it at a time; the watch that owns it has the lock.
    """

    def __init__(self, since: int | None, projects: tuple[str, ...] | None) -> None:
        self._projects = projects
        self._events: deque[AnyEvent] = deque()  # received and not returned yet
        self._received = since  # the next message has events behind this revision; None: from now on
        self.revision = 0  # all events up to it were returned
        check(self.subscription())

    def subscription(self) -> messages.WatchEvents:
        """Return the message that subscribes on a new connection, from the current position."""
        return messages.WatchEvents(0, self._received, self._projects)

    def accept(self, answer: ManagerMessage) -> None:
        """Take the position that the manager has confirmed, or raise its refusal."""
        self._received = _accepted(answer)

    def begin(self) -> None:
        """Set the public `revision` after the first subscription."""
        self.revision = self._received or 0

    def pop(self) -> AnyEvent | None:
        """Return the next event; None if another message has to be received first.

        A transaction has several events of one revision. `revision` moves past it only with the last of them, so that a
        program that resumes from there receives the whole transaction again rather than a part of it.
        """
        if not self._events:
            return None
        event = self._events.popleft()
        self.revision = self._events[0].revision - 1 if self._events else self._received or 0
        return event

    def add(self, message: Events | WatchLagged) -> None:
        """Add the events of a message. It raises `EventsMissed` for a gap, and continues behind the gap.

        A message without events only moves the position: nothing up to its revision concerns this watch. Without such
        messages a watch of a quiet project that reconnects could find its position dropped from the manager's history.
        """
        if isinstance(message, Events):
            self._events.extend(message.events)
            self._received = message.revision
            if not message.events:
                self.revision = message.revision
            return
        missed_from, self._received = self.revision, message.resume
        self.revision = message.resume
        raise EventsMissed(
            f"events behind revision {missed_from} are forgotten: read what you need anew, and go on behind "
            f"revision {message.resume}",
            resume=message.resume,
        )


class Watch:
    """An iterator over events. `for event in client.watch(): …` goes on until `close()`, which any thread may call.

    Threads that share a watch receive one at a time. `EventsMissed` is raised where events were dropped before they
    were read; iterating again continues behind them. `RuntimeLost` is raised if a broken connection cannot be restored.
    """

    _is_closed = True

    def __init__(self, channel: Channel, since: int | None, projects: tuple[str, ...] | None) -> None:
        self._cursor = WatchCursor(since, projects)
        self._monotonic = channel.environment.monotonic
        self._push = PushConnection(channel, self._subscribe)
        self._receive_lock = threading.Lock()
        self._close_lock = threading.Lock()
        self._is_closed = False
        try:
            self._push.connect(None)
        except BaseException:
            self.close()
            raise
        self._cursor.begin()

    @property
    def revision(self) -> int:
        """The revision to resume from: all events up to it were returned."""
        return self._cursor.revision

    @property
    def is_closed(self) -> bool:
        """True if the watch was closed."""
        return self._is_closed

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnyEvent:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def get(self, timeout_s: float | None = None) -> AnyEvent | None:
        """Return the next event; None if none arrives in time, or the watch is closed."""
        until_s = None if timeout_s is None else self._monotonic() + timeout_s
        with self._receive_lock:
            while not self._is_closed:
                if (event := self._cursor.pop()) is not None:
                    return event
                message = self._push.receive(until_s)
                if message is None:
                    return None
                self._add_to_cursor(message)
            return None

    def close(self) -> None:
        """End the watch. A thread that waits for an event returns without one.

        The receiver is woken first. Its lock is then free, and the connection can be closed without a race.
        """
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._push.stop()
        with self._receive_lock:
            self._push.close()

    def in_forked_child(self) -> None:
        """Continue from the same position with a connection and locks of this process.

        Parent and child then both receive every later event.
        """
        self._receive_lock, self._close_lock = threading.Lock(), threading.Lock()
        if not self._is_closed:
            self._push.in_forked_child()

    def _add_to_cursor(self, message: ManagerMessage) -> None:
        """Add a received message to the cursor. A rejection also ends the connection."""
        try:
            pushed = events_of(message)
        except StepwellError:
            self._push.disconnect()
            raise
        self._cursor.add(pushed)

    def _subscribe(self, connection: Connection) -> None:
        """Subscribe on a new connection, from the current position."""
        self._cursor.accept(connection.exchange(self._cursor.subscription()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Close the watch when it is collected.

        A `for` loop over `client.watch()` that ends early leaves no reference to close it by.
        """
        if not self._is_closed:
            self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidArgument("a watch stays in its process: send its client and its revision")

    def __repr__(self) -> str:
        return f"<stepwell.Watch at revision {self.revision}{', closed' if self._is_closed else ''}>"


def events_of(message: ManagerMessage) -> Events | WatchLagged:
    """Return the events in a message; raise the reason if the manager ends the watch."""
    match message:
        case Events() | WatchLagged():
            return message
        case Rejected():
            raise message.refusal.error()
        case _:
            raise ProtocolError(f"the manager sent {type(message).__name__} to a watcher")


def _accepted(answer: ManagerMessage) -> int:
    """Return the revision behind which a watch begins, or raise the manager's refusal."""
    match answer:
        case Events():
            return answer.revision
        case Response(_, (Refusal() as refusal,)):
            raise refusal.error()
        case Rejected():
            raise answer.refusal.error()
        case _:
            raise ProtocolError(f"the manager answered WatchEvents with {type(answer).__name__}")


def project_names(projects: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the projects, each once; None stands for all."""
    if isinstance(projects, str):
        raise InvalidArgument(f"projects is a sequence of names: give [{projects!r}]")
    return None if projects is None else tuple(dict.fromkeys(projects))


class Watches:
    """The watches of one client, which are closed with it. It does not keep an unused watch alive."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: WeakSet[Watch] = WeakSet()
        self.monotonic = channel.environment.monotonic
        channel.on_fork(self._in_forked_child)

    def open(self, since: int | None, projects: Iterable[str] | None) -> Watch:
        """Return a new watch: all events that are committed after this call are returned by it."""
        watch = Watch(self._channel, since, project_names(projects))
        self._open.add(watch)
        return watch

    def close(self) -> None:
        """Close all watches."""
        for watch in list(self._open):
            watch.close()

    def _in_forked_child(self) -> None:
        """Let all watches continue with connections of this process."""
        for watch in list(self._open):
            watch.in_forked_child()
