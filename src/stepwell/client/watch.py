"""Watching: committed events in order, each once, over a connection of its own that is made again when it breaks."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self
from weakref import WeakSet

from stepwell import limits
from stepwell.client.channel import Channel
from stepwell.domain.checks import check
from stepwell.domain.events import AnyEvent
from stepwell.errors import EventsMissed, InvalidArgument, OutcomeUnknown, ProtocolError, RuntimeLost
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
        self._connection: Connection | None = None
        self._events: deque[AnyEvent] = deque()  # of one frame, not given out yet
        self._received = 0  # a revision: whatever comes next is from behind it
        self._revision = 0
        self._lost_at_s: float | None = None  # when the connection broke that is to be made again
        self._using = threading.Lock()
        self._closing = threading.Lock()
        self._wake = os.eventfd(0)
        self._is_closed = False
        try:
            self._reach(since, None)
        except BaseException:
            self.close()
            raise
        self._revision = self._received

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
                message = self._receive(until_s)
                if message is None:
                    return None
                self._take(message)
            if self._is_closed:
                return None
            event = self._events.popleft()
            self._revision = self._events[0].revision - 1 if self._events else self._received
            return event

    def close(self) -> None:
        """End it. Whoever waits for an event, in whatever thread, gets no more."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            os.eventfd_write(self._wake, 1)
        with self._using:
            self._disconnect()
            os.close(self._wake)

    def in_forked_child(self) -> None:
        """Begin anew from the same place: the connection, the locks and what wakes us up are the parent's."""
        self._using, self._closing = threading.Lock(), threading.Lock()
        if not self._is_closed:
            self._disconnect()
            os.close(self._wake)
            self._wake = os.eventfd(0)

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
                self._disconnect()
                raise message.refusal.error()
            case _:
                self._disconnect()
                raise ProtocolError(f"the manager told a watcher {type(message).__name__}")

    def _receive(self, until_s: float | None) -> ManagerMessage | None:
        """The next message; None when there is none in time, or the watch is closed."""
        while True:
            connection = self._connection or self._reach(self._received, until_s)
            if connection is None:
                return None
            timeout_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                message = connection.receive_within(timeout_s, self._wake)
            except OutcomeUnknown:
                self._disconnect()
            else:
                return message

    def _connect(self, since: int | None) -> Connection:
        connection = self._channel.dial()
        try:
            answer = connection.exchange(messages.Watch(0, since, self._projects))
            self._received = _accepted(answer)
        except OutcomeUnknown as error:
            connection.close()
            raise RuntimeLost("the manager went away before it was asked what happens") from error
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _reach(self, since: int | None, until_s: float | None) -> Connection | None:
        """Make the connection: for a while if the manager can come back, or else once. None if it is not in time."""
        self._lost_at_s = self._lost_at_s or time.monotonic()
        while not self._is_closed:
            try:
                connection = self._connect(since)
            except RuntimeLost as error:
                if not self._can_come_back(error):
                    self._lost_at_s = None
                    raise
            else:
                self._lost_at_s = None
                return connection
            if until_s is not None and time.monotonic() >= until_s:
                return None
            closed = select.poll()  # unlike `select`, for any number of descriptors
            closed.register(self._wake, select.POLLIN)
            closed.poll(limits.RECONNECT_PAUSE_SECONDS * 1000)
        return None

    def _can_come_back(self, error: RuntimeLost) -> bool:
        """Whether it is worth trying again. One that was replaced, or told us so in words, does not come back."""
        assert self._lost_at_s is not None
        in_time = time.monotonic() < self._lost_at_s + limits.RECONNECT_SECONDS_MAX
        return in_time and self._channel.comes_back() and error.__cause__ is not None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

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
