"""A client's connections: one for each thread that is inside a call, opened when needed and used again.

Safe from any number of threads, because a connection belongs to one call at a time. In a forked child the inherited
connections are closed, unused, and a new session begins; the parent notices nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import assert_never

from ulid import ULID

from stepwell import limits
from stepwell.client.calls import LargeBody
from stepwell.domain.checks import check
from stepwell.errors import InvalidArgument, OutcomeUnknown, ProtocolError, RuntimeLost, StepwellError
from stepwell.memory.view import Mappings
from stepwell.protocol.messages import (
    VERSION,
    ClientMessage,
    Goodbye,
    Granted,
    Hello,
    ManagerMessage,
    Offer,
    Rejected,
    Released,
    Retired,
    Segments,
    Welcome,
)
from stepwell.transport.connection import Connection


class Channel:
    """A session with a manager, over as many connections as there are threads calling."""

    def __init__(self, address: str, projects: tuple[str, ...] | None) -> None:
        self.address = address
        self.projects = projects
        self.mappings = Mappings()
        check(Hello(VERSION, "new", projects))
        self._after_fork: list[Callable[[], None]] = []
        self._reset()
        _channels.add(self)

    def _reset(self) -> None:
        self.session_id = str(ULID())
        self._is_closed = False
        self._welcome: Welcome | None = None
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()  # idle or not
        self._opening = 0
        self._waiting = 0
        self._changed = threading.Condition(threading.Lock())

    def in_forked_child(self) -> None:
        """Begin anew: what was inherited belongs to the parent, its locks included."""
        was_closed = self._is_closed
        for connection in self._open:
            connection.close()
        self._reset()
        self.mappings.clear()
        self._is_closed = was_closed
        for callback in self._after_fork:
            callback()

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Have something forgotten in a forked child."""
        self._after_fork.append(callback)

    def open(self) -> Welcome:
        """Make sure that there is a manager that welcomes us."""
        self._give_back(self._take_live())
        return self.welcome

    @property
    def welcome(self) -> Welcome:
        """What the manager said when it first welcomed us."""
        if self._welcome is None:
            return self.open()
        return self._welcome

    def exchange(self, message: ClientMessage, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a message, what it refers to before it, and wait for its answer.

        A connection that had died while idle is replaced, since nothing of the message has reached the manager.
        """
        while True:
            connection, is_used = self._take_known()
            try:
                self._prepare(connection, uploads)
                answer = _checked(connection.exchange(message))
            except RuntimeLost:
                self._discard(connection)
                if is_used:
                    continue
                raise
            except InvalidArgument:  # it could not be encoded, so that nothing was sent
                self._put_away(connection, uploads)
                raise
            except BaseException:
                self._discard(connection)
                raise
            self._give_back(connection)
            return answer

    def stream(self, messages: Iterable[tuple[ClientMessage, Sequence[LargeBody]]]) -> Iterator[ManagerMessage]:
        """Send one message after the other and give their answers, the next always under way meanwhile.

        Breaking off in the middle gives up the connection. What was under way has then an unknown outcome.
        """
        connection = self._take_live()
        under_way = answered = 0
        uploads: Sequence[LargeBody] = ()
        try:
            for message, uploads in messages:
                if uploads and under_way:  # a grant would come behind the answer
                    yield _checked(connection.receive())
                    under_way -= 1
                    answered += 1
                self._prepare(connection, uploads)
                connection.send(message)
                under_way += 1
                if under_way > 1:
                    yield _checked(connection.receive())
                    under_way -= 1
                    answered += 1
            while under_way:
                yield _checked(connection.receive())
                under_way -= 1
        except BaseException as error:
            if isinstance(error, InvalidArgument) and not under_way:  # nothing of it was sent
                self._put_away(connection, uploads)
                raise
            self._discard(connection)
            if isinstance(error, RuntimeLost) and (under_way or answered):
                raise OutcomeUnknown("the connection broke in the middle: some may have taken effect") from error
            raise
        self._give_back(connection)

    def _prepare(self, connection: Connection, uploads: Sequence[LargeBody]) -> None:
        """Send what comes before a message: which memory we let go of, and the bodies that it refers to."""
        if self.mappings.has_released:
            released = self.mappings.take_released()
            try:
                connection.send(Released(released))
            except RuntimeLost:
                self.mappings.put_back(released)
                raise
        for number, body in enumerate(uploads):
            try:
                answer = _checked(connection.exchange(Offer(number, len(body))))
            except OutcomeUnknown as error:  # what comes of an offer that no request refers to is nothing
                raise RuntimeLost(error.message) from error
            if not isinstance(answer, Granted):
                raise ProtocolError(f"the manager answered an offer with {type(answer).__name__}")
            if answer.accepted:
                try:
                    connection.send_body(body)
                except RuntimeLost as gone:
                    _checked(connection.last_word(gone))
                    raise

    def _aside(self, connection: Connection, message: Segments | Retired) -> None:
        """What the manager says between its answers."""
        match message:
            case Segments():
                descriptors = connection.take_descriptors(len(message.segments))
                try:
                    for segment in message.segments:
                        self.mappings.adopt(segment.number, segment.size, descriptors.pop(0))
                finally:
                    for descriptor in descriptors:  # of those behind one that could not be mapped
                        os.close(descriptor)
            case Retired():
                self.mappings.retire(message.segments)
            case _:
                assert_never(message)

    def close(self, *, holds_leases: bool = False) -> None:
        """Say goodbye, which ends the session and its leases, and close every idle connection."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            idle, self._idle = self._idle, []
            self._open.difference_update(idle)
            self._changed.notify_all()
            is_cut_off = not idle and not self._open
        self.mappings.close()
        if is_cut_off and holds_leases:  # the session would outlive us by its grace
            with contextlib.suppress(StepwellError):
                idle.append(self._connect(limits.GOODBYE_SECONDS_MAX))
        for connection in idle:
            _part(connection)

    def _take_live(self) -> Connection:
        """A connection that the manager has not closed, as far as can be seen."""
        connection, is_used = self._take_known()
        while is_used and connection.is_stale():
            self._discard(connection)
            connection, is_used = self._take_known()
        return connection

    def _take_known(self) -> tuple[Connection, bool]:
        """A connection for this call alone, and whether it has been used before."""
        with self._changed:
            while True:
                if self._is_closed:
                    raise RuntimeLost("this client is closed: connect anew")
                if self._idle:
                    return self._idle.pop(), True
                if len(self._open) + self._opening < limits.CONNECTIONS_PER_CLIENT_MAX:
                    self._opening += 1
                    break
                self._waiting += 1
                self._changed.wait()
                self._waiting -= 1
        try:
            connection = self._connect()
        except BaseException:
            self._opened(None)
            raise
        self._opened(connection)
        return connection, False

    def _opened(self, connection: Connection | None) -> None:
        with self._changed:
            self._opening -= 1
            if connection is not None:
                self._open.add(connection)
            self._changed.notify()

    def _connect(self, timeout_s: float | None = None) -> Connection:
        connection = Connection(self.address, timeout_s, aside=self._aside)
        try:
            hello = Hello(VERSION, self.session_id, self.projects, self.mappings.numbers)
            answer = _checked(connection.exchange(hello))
        except OutcomeUnknown as error:
            connection.close()
            raise RuntimeLost(f"the manager at {self.address!r} went away while greeting") from error
        except BaseException:
            connection.close()
            raise
        if not isinstance(answer, Welcome):
            connection.close()
            raise ProtocolError(f"the manager answered Hello with {type(answer).__name__}")
        if self._welcome is not None and answer.epoch != self._welcome.epoch:
            connection.close()
            raise RuntimeLost("the manager was replaced by another one, and its state is gone: connect anew")
        self._welcome = answer
        self.mappings.keep_only(answer.segments)
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._changed:
            if not self._is_closed and (self._waiting or len(self._idle) < limits.IDLE_CONNECTIONS_MAX):
                self._idle.append(connection)
                if self._waiting:
                    self._changed.notify()
                return
            is_closed = self._is_closed
        if is_closed:
            _part(connection)
        self._discard(connection)

    def _put_away(self, connection: Connection, uploads: Sequence[LargeBody]) -> None:
        """A connection on which a message was not sent after all; uploads for it may have been."""
        if uploads:
            self._discard(connection)
        else:
            self._give_back(connection)

    def _discard(self, connection: Connection) -> None:
        connection.close()
        with self._changed:
            self._open.discard(connection)
            self._changed.notify()


def _part(connection: Connection) -> None:
    """Whoever comes last ends the session; that the others did so before does no harm."""
    with contextlib.suppress(RuntimeLost):
        connection.send(Goodbye())
    connection.close()


def _checked(answer: ManagerMessage) -> ManagerMessage:
    if isinstance(answer, Rejected):
        raise answer.refusal.error()
    return answer


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _begin_anew() -> None:
    for channel in list(_channels):
        channel.in_forked_child()


os.register_at_fork(after_in_child=_begin_anew)
