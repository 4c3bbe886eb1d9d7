"""`Channel`: delivers messages to the manager and returns their answers, across broken connections.

It is the blocking driver of `session_rules.SessionRules` and `delivery.Delivery`: they decide, and the channel sends,
receives and waits. Its methods that do not wait (`observe`, `report`, …) serve the asynchronous channel of
`stepwell.aio` too.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, Protocol

from stepwell.client.session.calls import LargeBody
from stepwell.client.session.connection_pool import ConnectionPool, PooledConnection
from stepwell.client.session.delivery import (
    Delivery,
    GiveUp,
    RequestFactory,
    Retry,
    is_granted,
    require_not_rejected,
)
from stepwell.client.session.environment import SYSTEM, Environment
from stepwell.client.session.indexed_reads import IndexedReads
from stepwell.client.session.session_rules import Observation, SessionRules, Unreachable
from stepwell.domain.checks import check
from stepwell.errors import InvalidArgument, OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import (
    VERSION,
    AskStatus,
    AskView,
    ClientMessage,
    Hello,
    ManagerMessage,
    SegmentsReleased,
    Welcome,
)
from stepwell.transport.connection import Connection


class Sends(Protocol):
    """A connection, blocking or asynchronous, that sends messages without answers, or raises `RuntimeLost`."""

    def send(self, message: ClientMessage) -> None: ...

    def send_with_next(self, message: ClientMessage) -> None: ...


class Channel:
    """A session with a manager. Any number of threads may use it; each call has a connection of the pool to itself.

    It owns the rules of the session, the connections and the mapped segments of shared memory. Once it is closed, all
    calls raise `RuntimeLost`.
    """

    def __init__(
        self, address: str, projects: tuple[str, ...] | None, environment: Environment = SYSTEM, label: str = ""
    ) -> None:
        self.address = address
        self.projects = projects
        self.environment = environment
        self.mappings = Mappings()
        check(Hello(VERSION, "new", projects, (), label))
        self.rules = SessionRules(address, projects, environment.new_id(), label)
        self.reads = IndexedReads(self.mappings, projects)
        self.connections = ConnectionPool(self.rules, self.mappings, self.reads, environment)
        # Returns True while the program that started the manager would restart it; None if that program is unknown.
        self.is_supervised: Callable[[], bool] | None = None
        self._after_fork: list[Callable[[], None]] = []
        _channels.add(self)

    def in_forked_child(self) -> None:
        """Begin a new session, and run the callbacks of `on_fork`."""
        self.connections.in_forked_child()
        self.rules.in_forked_child(self.environment.new_id())
        self.mappings.clear()
        self.reads.in_forked_child()
        for callback in self._after_fork:
            callback()

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Register a callback that resets inherited state in a forked child."""
        self._after_fork.append(callback)

    @property
    def session_id(self) -> str:
        """The id of this session, which leases name as their holder."""
        return self.rules.session_id

    def open(self) -> Welcome:
        """Connect to the manager if necessary, and return its welcome."""
        self.connections.release(self.acquire(Delivery(self.rules), must_be_live=True))
        return self.welcome

    @property
    def welcome(self) -> Welcome:
        """The manager's last welcome: epoch, encoding, database and generation of this session."""
        return self.rules.welcome or self.open()

    def dial(self) -> Connection:
        """Return a new connection of this session that belongs to the caller and is outside of the pool."""
        try:
            return self.connections.connect()
        except Unreachable as unreachable:
            self.give_up(unreachable.error)

    def exchange(self, build: RequestFactory, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, after the bodies that it refers to, and return its answer."""
        delivery = Delivery(self.rules, build, uploads)
        try:
            return self.deliver(delivery)
        finally:
            delivery.end()

    def ask(self, question: Callable[[int], AskStatus | AskView]) -> ManagerMessage:
        """Send a question that changes nothing, and return its answer.

        Its answer is not stored by the manager: the question may be asked again at any time.
        """
        return self.deliver(Delivery(self.rules, message=question(self.rules.numbers.next_number())))

    def stream(self, requests: Iterable[tuple[RequestFactory, Sequence[LargeBody]]]) -> Iterator[ManagerMessage]:
        """Send requests one after another on one connection, and yield their answers in order.

        The next request is sent before the answer to the previous one is read, so that client and manager work at the
        same time. A consumer that stops early gives up the connection; requests that were sent then have an unknown
        outcome.
        """
        stream = _Stream(self)
        try:
            for build, uploads in requests:
                while uploads and len(stream):  # the answer to an offer would come behind all answers in flight
                    yield stream.answer()
                stream.send(Delivery(self.rules, build, uploads))
                if len(stream) > 1:
                    yield stream.answer()
            while len(stream):
                yield stream.answer()
        except RuntimeLost as lost:
            if stream.answered:
                raise OutcomeUnknown(
                    f"the connection broke in the middle: some may have taken effect. {lost.message}", **lost.details
                ) from (lost.__cause__ if "cause" in lost.details else lost)
            raise
        finally:
            stream.close()

    def deliver(self, delivery: Delivery) -> ManagerMessage:
        """Send a message, as often as its delivery demands, and return its answer."""
        connections = self.connections
        while True:
            # What was never sent cannot have expired: an idle connection will do, without the checks of `acquire`.
            connection = connections.take_idle() if delivery.sent_in is None else None
            if connection is None:
                connection = self.acquire(delivery)
            else:
                delivery.connected(connection)
            try:
                if delivery.uploads or self.mappings.released or self.reads.reads:
                    self.send_preliminaries(connection, delivery)
                answer = connection.exchange(delivery.message())
            except (RuntimeLost, OutcomeUnknown) as error:
                if isinstance(error, RuntimeLost):
                    connection.drain(error)
                connections.discard(connection)
                self._follow(delivery, delivery.failed(error, self.observe()))
            except InvalidArgument:  # the message could not be encoded: only its uploads were sent, if it has some
                (connections.discard if delivery.uploads else connections.release)(connection)
                raise
            except BaseException:
                connections.discard(connection)
                raise
            else:
                if (rejected := delivery.answered(answer)) is not None:
                    connections.discard(connection)
                    rejected.raise_error()
                connections.release(connection)
                return answer

    def acquire(self, delivery: Delivery, *, must_be_live: bool = False) -> PooledConnection:
        """Return a connection for the next attempt; `SessionExpired` if the message must not be sent again.

        One that must be live is looked at: the manager has not closed it, as far as the socket shows.
        """
        connections = self.connections
        while True:
            try:
                connection = connections.acquire_live() if must_be_live else connections.acquire()
            except Unreachable as unreachable:
                self._follow(delivery, delivery.unreachable(unreachable, self.observe()))
                continue
            if (expired := delivery.connected(connection)) is not None:
                connections.release(connection)
                expired.raise_error()
            return connection

    def _follow(self, delivery: Delivery, decision: Retry | GiveUp) -> None:
        """Wait for the pause before another attempt, or raise the error; also if the client is closed meanwhile."""
        if isinstance(decision, GiveUp):
            decision.raise_error()
        if decision.pause_s and self.connections.is_closed_within(decision.pause_s):
            delivery.closed().raise_error()

    def observe(self) -> Observation:
        """Return what decides about a further attempt, as it is now.

        The cause is read last: a program that gives a manager up writes the cause before it gives up.
        """
        environment = self.environment
        return Observation(
            now_s=environment.monotonic(),
            jitter=environment.jitter(),
            is_given_up=self.is_supervised is not None and not self.is_supervised(),
            is_restarting=environment.is_restarting(self.address),
            cause=environment.read_cause(self.address),
        )

    def give_up(self, error: StepwellError | OSError) -> NoReturn:
        """Raise the final error of something that was not sent; it names why the manager ended, if that is known."""
        Delivery(self.rules).give_up(error, self.observe()).raise_error()

    def send_preliminaries(self, connection: PooledConnection, delivery: Delivery) -> None:
        """Send the messages that precede a request: released segments, reads, and the bodies that it refers to."""
        self.report(connection)
        for offer, body in delivery.offers():
            if is_granted(connection.exchange(offer)):
                try:
                    connection.send_body(body)
                except RuntimeLost as gone:
                    require_not_rejected(connection.receive_rejection(gone))
                    raise

    def report(self, connection: Sends) -> None:
        """Tell the manager which segments this process has unmapped, and what it has read without a request."""
        if self.reads.reads:
            for report in self.reads.pop_reports():
                connection.send_with_next(report)
        if self.mappings.released:
            released = self.mappings.pop_released()
            try:
                connection.send(SegmentsReleased(released))
            except RuntimeLost:
                self.mappings.restore_released(released)
                raise

    def close(self, *, holds_leases: bool = False) -> None:
        """End the session and unmap its shared memory. Reads that are not reported yet are, if a connection is idle."""
        self.reads.close()
        self.connections.close(holds_leases=holds_leases, report=self.report)
        self.mappings.close()


class _Stream:
    """Requests in flight on one connection, in order.

    If the connection breaks, the requests without an answer are delivered one by one, in order, on other connections,
    and the stream goes on with a new one. A request is in `_in_flight` from before its first byte is sent until its
    answer is read. While there is one, no other call may use the connection.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection: PooledConnection | None = None
        self._in_flight: deque[Delivery] = deque()
        self._answers: deque[ManagerMessage] = deque()  # received and not returned yet
        self.answered = 0  # the number of answers that were received, returned or not

    def __len__(self) -> int:
        """The number of answers that were not returned yet."""
        return len(self._in_flight) + len(self._answers)

    def send(self, delivery: Delivery) -> None:
        """Send a request without waiting for its answer.

        A request that cannot be encoded is removed again if nothing was sent for it, so that the connection stays
        usable.
        """
        self._in_flight.append(delivery)
        connection = self._connection
        if connection is None:
            connection = self._connection = self._channel.acquire(delivery)
        else:
            delivery.connected(connection)
        try:
            self._channel.send_preliminaries(connection, delivery)
            connection.send(delivery.message())
        except (RuntimeLost, OutcomeUnknown) as gone:
            if isinstance(gone, RuntimeLost):
                connection.drain(gone)
            self._recover(connection)
        except InvalidArgument:  # the message could not be encoded: only its uploads were sent, if it has some
            if not delivery.uploads:
                self._in_flight.pop().end()
            raise
        else:
            delivery.sent()

    def answer(self) -> ManagerMessage:
        """Return the answer to the oldest request that has none yet.

        If the connection has broken, the answers of all requests in flight are fetched first, on other connections.
        """
        if not self._answers:
            assert self._connection is not None
            try:
                answer = self._connection.receive()
            except OutcomeUnknown as unknown:
                if "shortage" in unknown.details:
                    raise
                self._recover(self._connection)
            else:
                if (rejected := self._in_flight[0].answered(answer)) is not None:
                    rejected.raise_error()
                self._add_answer(answer)
        return self._answers.popleft()

    def _add_answer(self, answer: ManagerMessage) -> None:
        """Store the answer of the oldest request in flight, and remove its number."""
        self.answered += 1
        self._answers.append(answer)
        self._in_flight.popleft().end()

    def _recover(self, connection: PooledConnection) -> None:
        """Discard the broken connection, and deliver all requests in flight one by one."""
        self._connection = None
        self._channel.connections.discard(connection)
        for delivery in self._in_flight:
            delivery.interrupted()
        while self._in_flight:
            self._add_answer(self._channel.deliver(self._in_flight[0]))

    def close(self) -> None:
        """Remove the numbers of all requests in flight, and release the connection only if it is idle."""
        connection, is_idle = self._connection, not self._in_flight
        while self._in_flight:
            self._in_flight.popleft().end()
        if connection is not None:
            (self._channel.connections.release if is_idle else self._channel.connections.discard)(connection)


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _reset_channels_in_child() -> None:
    """Begin new sessions in a forked child, for all channels of the process."""
    for channel in list(_channels):
        channel.in_forked_child()


os.register_at_fork(after_in_child=_reset_channels_in_child)
