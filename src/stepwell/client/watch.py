"""Watching: committed events in order, each once, over a connection of its own that is made again when it breaks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self
from weakref import WeakSet

from stepwell.client.channel import Channel
from stepwell.client.standing import Standing
from stepwell.domain.checks import check
from stepwell.domain.events import AnyEvent
from stepwell.errors import EventsMissed, InvalidArgument, ProtocolError
from stepwell.protocol import messages
from stepwell.protocol.messages import Events, ManagerMessage, Missed, Refusal, Rejected, Response
from stepwell.transport.connection import Connection


class Watch:
    """An iterator over what happens. `for event in client.watch(): …` goes on until `close()`, from any thread.

    `EventsMissed` is raised where events were forgotten before they were read; iterating on goes on behind them.
    A connection that breaks is made again, and nothing is told twice; `RuntimeLost` is raised when that fails.
    """

    _is_closed = True

    def __init__(self, channel: Channel, since: int | None, projects: tuple[str, ...] | None) -> None:
        check(messages.Watch(0, since, projects))
        self._channel = channel
        self._projects = projects
        self._standing = Standing(channel, self._greet)
        self._events: deque[AnyEvent] = deque()  # of one frame, not given out yet
        self._received = since  # a revision: whatever comes next is from behind it; None: from now on
        self._revision = 0
        self._using = threading.Lock()
        self._closing = threading.Lock()
        self._is_closed = False
        try:
            self._standing.reach(None)
        except BaseException:
            self.close()
            raise
        self._revision = self._received or 0

    @property
    def revision(self) -> int:
        """Where to resume: everything up to it has been given out."""
        return self._revision

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
        with self._using:
            while not self._is_closed and not self._events:
                message = self._standing.receive(until_s)
                if message is None:
                    return None
                self._take(message)
            if self._is_closed:
                return None
            event = self._events.popleft()
            self._revision = self._events[0].revision - 1 if self._events else self._received or 0
            return event

    def close(self) -> None:
        """End it. Whoever waits for an event, in whatever thread, gets no more."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self._standing.stop()
        with self._using:
            self._standing.close()

    def in_forked_child(self) -> None:
        """Begin anew from the same place: the connection, the locks and what wakes us up are the parent's."""
        self._using, self._closing = threading.Lock(), threading.Lock()
        if not self._is_closed:
            self._standing.in_forked_child()

    def _take(self, message: ManagerMessage) -> None:
        match message:
            case Events():
                self._events.extend(message.events)
                self._received = message.revision
                if not message.events:
                    self._revision = message.revision
            case Missed():
                missed_from, self._received = self._revision, message.resume
                self._revision = message.resume
                raise EventsMissed(
                    f"events behind revision {missed_from} are forgotten: read what you need anew, and go on behind "
                    f"revision {message.resume}",
                    resume=message.resume,
                )
            case Rejected():
                self._standing.disconnect()
                raise message.refusal.error()
            case _:
                self._standing.disconnect()
                raise ProtocolError(f"the manager told a watcher {type(message).__name__}")

    def _greet(self, connection: Connection) -> None:
        self._received = _accepted(connection.exchange(messages.Watch(0, self._received, self._projects)))

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
        return f"<stepwell.Watch at revision {self._revision}{', closed' if self._is_closed else ''}>"


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


class Watches:
    """A client's watches: they end with it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._open: WeakSet[Watch] = WeakSet()
        channel.on_fork(self._in_forked_child)

    def open(self, since: int | None, projects: Iterable[str] | None) -> Watch:
        """Begin to watch: whatever is committed after this returns is told."""
        if isinstance(projects, str):
            raise InvalidArgument(f"projects is a sequence of names: give [{projects!r}]")
        names = None if projects is None else tuple(dict.fromkeys(projects))
        watch = Watch(self._channel, since, names)
        self._open.add(watch)
        return watch

    def close(self) -> None:
        for watch in list(self._open):
            watch.close()

    def _in_forked_child(self) -> None:
        for watch in list(self._open):
            watch.in_forked_child()
