"""Watching: committed events in order, each once, over a connection of its own that is made again when it breaks."""

from __future__ import annotations

import threading
import time
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
from stepwell.transport.blocking import Connection


class WatchCursor:
    """How far a watch has come: what it has received, and what of it was given out."""

    def __init__(self, since: int | None, projects: tuple[str, ...] | None) -> None:
        self._projects = projects
        self._events: deque[AnyEvent] = deque()  # of one frame, not given out yet
        self._received = since  # a revision: whatever comes next is from behind it; None: from now on
        self.revision = 0
        check(self.subscription())

    def subscription(self) -> messages.WatchEvents:
        """What to ask on a new connection."""
        return messages.WatchEvents(0, self._received, self._projects)

    def accept(self, answer: ManagerMessage) -> None:
        """It was asked: take what was answered, or raise it."""
        self._received = _accepted(answer)

    def begin(self) -> None:
        """It was asked for the first time."""
        self.revision = self._received or 0

    def pop(self) -> AnyEvent | None:
        """The next event; None if another message is needed for that."""
        if not self._events:
            return None
        event = self._events.popleft()
        self.revision = self._events[0].revision - 1 if self._events else self._received or 0
        return event

    def add(self, message: Events | WatchLagged) -> None:
        """What the manager has pushed. Raises `EventsMissed`, and goes on behind what is missing."""
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
    """An iterator over what happens. `for event in client.watch(): …` goes on until `close()`, from any thread.

    `EventsMissed` is raised where events were forgotten before they were read; iterating on goes on behind them.
    A connection that breaks is made again, and nothing is pushed twice; `RuntimeLost` is raised when that fails.
    """

    _is_closed = True

    def __init__(self, channel: Channel, since: int | None, projects: tuple[str, ...] | None) -> None:
        self._cursor = WatchCursor(since, projects)
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
        """Where to resume: everything up to it has been given out."""
        return self._cursor.revision

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnyEvent:
        event = self.get()
        if event is None:
            raise StopIteration
        return event

    def get(self, timeout_s: float | None = None) -> AnyEvent | None:
        """The next event; None if none came in time, or the watch is closed."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receive_lock:
            while not self._is_closed:
                if (event := self._cursor.pop()) is not None:
                    return event
                message = self._push.receive(until_s)
                if message is None:
                    return None
                self._take(message)
            return None

    def close(self) -> None:
        """End it. Whoever waits for an event, in whatever thread, gets no more."""
        with self._close_lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._push.stop()
        with self._receive_lock:
            self._push.close()

    def in_forked_child(self) -> None:
        """Begin anew from the same place: the connection, the locks and what wakes us up are the parent's."""
        self._receive_lock, self._close_lock = threading.Lock(), threading.Lock()
        if not self._is_closed:
            self._push.in_forked_child()

    def _take(self, message: ManagerMessage) -> None:
        try:
            pushed = events_of(message)
        except StepwellError:
            self._push.disconnect()
            raise
        self._cursor.add(pushed)

    def _subscribe(self, connection: Connection) -> None:
        self._cursor.accept(connection.exchange(self._cursor.subscription()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._is_closed:  # whoever breaks out of a loop over it has nothing left to close
            self.close()

    def __reduce__(self) -> tuple[object, ...]:
        raise InvalidArgument("a watch stays in its process: send its client and its revision")

    def __repr__(self) -> str:
        return f"<stepwell.Watch at revision {self.revision}{', closed' if self._is_closed else ''}>"


def events_of(message: ManagerMessage) -> Events | WatchLagged:
    """What the manager has pushed a watcher, or why it tells no more."""
    match message:
        case Events() | WatchLagged():
            return message
        case Rejected():
            raise message.refusal.error()
        case _:
            raise ProtocolError(f"the manager pushed a watcher {type(message).__name__}")


def _accepted(answer: ManagerMessage) -> int:
    """The revision behind which a watch begins, or why it does not."""
    match answer:
        case Events():
            return answer.revision
        case Response(_, (Refusal() as refusal,)):
            raise refusal.error()
        case Rejected():
            raise answer.refusal.error()
        case _:
            raise ProtocolError(f"the manager answered Watch with {type(answer).__name__}")


def project_names(projects: Iterable[str] | None) -> tuple[str, ...] | None:
    """Which projects, each once; None is all."""
    if isinstance(projects, str):
        raise InvalidArgument(f"projects is a sequence of names: give [{projects!r}]")
    return None if projects is None else tuple(dict.fromkeys(projects))


class Watches:
    """A client's watches: they end with it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: WeakSet[Watch] = WeakSet()
        channel.on_fork(self._in_forked_child)

    def open(self, since: int | None, projects: Iterable[str] | None) -> Watch:
        """Begin to watch: whatever is committed after this returns is pushed."""
        watch = Watch(self._channel, since, project_names(projects))
        self._open.add(watch)
        return watch

    def close(self) -> None:
        for watch in list(self._open):
            watch.close()

    def _in_forked_child(self) -> None:
        for watch in list(self._open):
            watch.in_forked_child()
