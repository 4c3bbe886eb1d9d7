"""`Channel`: delivers messages to the manager and returns their answers, across broken connections.

A message whose connection breaks is sent again with the same number until its answer arrives. The manager stores its
answers by number, so a write takes effect once, however often it is sent.

How long a request is tried depends on the manager:
- A manager with a database is expected to restart with its state. Attempts go on for `limits.RECONNECT_SECONDS_MAX`.
- Without a database the state dies with the manager. One more attempt shows whether the manager is gone or has only
  closed this connection.

The rules (`pause_after_failure`, `pause_when_unreachable`, `offer_for`, …) do no waiting themselves, because the
asynchronous channel of `stepwell.aio` uses them too.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from stepwell.client.session.calls import LargeBody, NoEviction
from stepwell.client.session.connection_pool import (
    ConnectionPool,
    PooledConnection,
    SessionConnection,
    Unreachable,
    client_closed_error,
)
from stepwell.client.session.environment import SYSTEM, Environment
from stepwell.client.session.pending_requests import PendingRequest, PendingRequests, RequestFactory
from stepwell.domain.checks import check
from stepwell.errors import (
    Busy,
    InvalidArgument,
    OutcomeUnknown,
    ProtocolError,
    RuntimeLost,
    SessionExpired,
    StepwellError,
)
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import (
    VERSION,
    AskStatus,
    AskView,
    Hello,
    ManagerMessage,
    OfferUpload,
    Rejected,
    SegmentsReleased,
    UploadGranted,
    Welcome,
)
from stepwell.transport.connection import Connection


class Channel:
    """A session with a manager. Any number of threads may use it; each call has a connection of the pool to itself.

    It owns the connections, the request numbers and the mapped segments of shared memory. Once it is closed, all calls
    raise `RuntimeLost`.
    """

    def __init__(self, address: str, projects: tuple[str, ...] | None, environment: Environment = SYSTEM) -> None:
        self.address = address
        self.environment = environment
        self.projects = projects
        self.mappings = Mappings()
        check(Hello(VERSION, "new", projects))
        self.connections = ConnectionPool(address, projects, self.mappings, environment)
        self.pending_requests = PendingRequests()
        # Returns True while the program that started the manager would restart it; None if that program is unknown.
        self.is_supervised: Callable[[], bool] | None = None
        self._after_fork: list[Callable[[], None]] = []
        _channels.add(self)

    def in_forked_child(self) -> None:
        """Begin a new session, and run the callbacks of `on_fork`."""
        self.connections.in_forked_child()
        self.pending_requests.in_forked_child()
        self.mappings.clear()
        for callback in self._after_fork:
            callback()

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Register a callback that resets inherited state in a forked child."""
        self._after_fork.append(callback)

    @property
    def session_id(self) -> str:
        """The id of this session, which leases name as their holder."""
        return self.connections.session_id

    def open(self) -> Welcome:
        """Connect to the manager if necessary, and return its welcome."""
        self.connections.release(self.acquire_connection(PendingRequest(), self.connections.acquire_live))
        return self.welcome

    @property
    def welcome(self) -> Welcome:
        """The manager's last welcome: epoch, encoding, database and generation of this session."""
        return self.connections.welcome or self.open()

    def dial(self) -> Connection:
        """Return a new connection of this session that belongs to the caller and is outside of the pool."""
        try:
            return self.connections.connect()
        except Unreachable as unreachable:
            self.give_up(PendingRequest(), unreachable.error)

    def exchange(self, build: RequestFactory, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, after the bodies that it refers to, and return its answer.

        The number of the request is removed however the call ends, because the manager stores answers until then.
        """
        pending = PendingRequest(build, uploads)
        try:
            return self.deliver(pending)
        finally:
            self.pending_requests.end(pending)

    def ask(self, question: Callable[[int], AskStatus | AskView]) -> ManagerMessage:
        """Send a question that changes nothing, and return its answer.

        Its answer is not stored by the manager: the question may be asked again at any time.
        """
        return self.deliver(PendingRequest(message=question(self.pending_requests.next_number())))

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
                stream.send(PendingRequest(build, uploads))
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

    def deliver(self, pending: PendingRequest) -> ManagerMessage:
        """Send a message, as often as necessary, and return its answer.

        A connection that died while it was idle is replaced at once, because no byte of the message has reached the
        manager.
        """
        while True:
            connection = self.acquire_connection(pending, self.connections.acquire)
            try:
                if pending.uploads or self.mappings.has_released:
                    self.send_preliminaries(connection, pending)
                answer = connection.exchange(self.pending_requests.message(pending))
            except (RuntimeLost, OutcomeUnknown) as error:
                if isinstance(error, RuntimeLost):
                    connection.drain(error)
                self.connections.discard(connection)
                self._pause(pending, self.pause_after_failure(pending, connection, error))
            except InvalidArgument:  # the message could not be encoded: only its uploads were sent, if it has some
                (self.connections.discard if pending.uploads else self.connections.release)(connection)
                raise
            except BaseException:
                self.connections.discard(connection)
                raise
            else:
                if isinstance(answer, Rejected):
                    self.connections.discard(connection)
                    raise answer.refusal.error()
                self.connections.note_answer(answer)
                self.connections.release(connection)
                return answer

    def acquire_connection(self, pending: PendingRequest, acquire: Callable[[], PooledConnection]) -> PooledConnection:
        """Return a connection for the next attempt; `SessionExpired` if the request must not be sent again."""
        while True:
            try:
                connection = acquire()
            except Unreachable as unreachable:
                self._pause(pending, self.pause_when_unreachable(pending, unreachable))
                continue
            if pending.sent_in is not None and pending.is_expired(connection.generation):
                self.connections.release(connection)
                raise session_expired_error()
            return connection

    def expects_restart(self) -> bool:
        """Return True if the manager's state outlives it and, as far as this client knows, a program restarts it.

        A client that has never been connected waits only if such a program holds the restart lock of the address. Once
        that program has given up, no client waits.
        """
        if self.is_supervised is not None and not self.is_supervised():
            return False
        welcome = self.connections.welcome
        if welcome is None:
            return self.environment.is_restarting(self.address)
        return welcome.database is not None and self.environment.read_cause(self.address) is None

    def pause_after_failure(
        self, pending: PendingRequest, connection: SessionConnection, error: RuntimeLost | OutcomeUnknown
    ) -> float:
        """Return the pause in seconds before the next attempt, after an attempt failed on `connection`.

        It raises the final error if there should be no further attempt.
        """
        if isinstance(error, OutcomeUnknown):
            pending.sent_in = connection.generation
            if "shortage" in error.details:  # this process lacks descriptors, which no further attempt changes
                raise error
        elif connection.is_used:  # the connection had died while it was idle, so nothing was sent
            return 0.0
        return self._pause_s(pending, error)

    def pause_when_unreachable(self, pending: PendingRequest, unreachable: Unreachable) -> float:
        """Return the pause in seconds before the next attempt, after no connection could be made.

        It raises the final error if there should be no further attempt. A first connection that a busy manager refuses
        is given up at once: no restart is under way, and there is no session to keep.
        """
        is_refused = isinstance(unreachable.error, Busy) and self.connections.welcome is None
        if unreachable.is_final or is_refused or not self.expects_restart():
            self.give_up(pending, unreachable.error)
        return self._pause_s(pending, unreachable.error)

    def _pause_s(self, pending: PendingRequest, error: StepwellError | OSError) -> float:
        """Return the pause that the request's own history of failures demands, or raise its final error."""
        pause_s = pending.pause_s(self.environment, expects_restart=self.expects_restart())
        if pause_s is None:
            self.give_up(pending, error)
        return pause_s

    def _pause(self, pending: PendingRequest, pause_s: float) -> None:
        """Wait for the pause; a client that is closed meanwhile gives up the request."""
        if pause_s and self.connections.is_closed_within(pause_s):
            self.give_up(pending, client_closed_error().error)

    def give_up(self, pending: PendingRequest, error: StepwellError | OSError) -> NoReturn:
        """Raise the final error of a request. It names the reason for which the manager ended, if that is known.

        A `RuntimeLost` without a cause is a statement, for instance that this client is closed, and stays as it is.
        """
        is_lost = isinstance(error, OutcomeUnknown) or (isinstance(error, RuntimeLost) and error.__cause__ is not None)
        outcome = pending.final_error(error, self._end_cause() if is_lost else None)
        raise outcome from outcome.__cause__

    def _end_cause(self) -> StepwellError | None:
        """Return the reason for which the last manager ended, or was not started again; None if it is not known."""
        return self.connections.ended_by or self.environment.read_cause(self.address)

    def send_preliminaries(self, connection: PooledConnection, pending: PendingRequest) -> None:
        """Send the messages that precede a request: released segments, and the bodies that the request refers to.

        Uploads belong to their connection. After a broken one, the next attempt uploads all bodies again.
        """
        if self.mappings.has_released:
            released = self.mappings.pop_released()
            try:
                connection.send(SegmentsReleased(released))
            except RuntimeLost:
                self.mappings.restore_released(released)
                raise
        for number, body in enumerate(pending.uploads):
            _upload(connection, number, body)

    def close(self, *, holds_leases: bool = False) -> None:
        """End the session and unmap its shared memory."""
        self.connections.close(holds_leases=holds_leases)
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
        self._in_flight: deque[PendingRequest] = deque()
        self._answers: deque[ManagerMessage] = deque()  # received and not returned yet
        self.answered = 0  # the number of answers that were received, returned or not

    def __len__(self) -> int:
        """The number of answers that were not returned yet."""
        return len(self._in_flight) + len(self._answers)

    def send(self, pending: PendingRequest) -> None:
        """Send a request without waiting for its answer.

        A request that cannot be encoded is removed again if nothing was sent for it, so that the connection stays
        usable.
        """
        self._in_flight.append(pending)
        connection = self._connection = self._connection or self._channel.acquire_connection(
            pending, self._channel.connections.acquire
        )
        try:
            self._channel.send_preliminaries(connection, pending)
            connection.send(self._channel.pending_requests.message(pending))
        except RuntimeLost as gone:
            connection.drain(gone)
            self._recover(connection)
        except InvalidArgument:  # the message could not be encoded: only its uploads were sent, if it has some
            if not pending.uploads:
                self._channel.pending_requests.end(self._in_flight.pop())
            raise
        else:
            pending.sent_in = connection.generation

    def answer(self) -> ManagerMessage:
        """Return the answer to the oldest request that has none yet.

        If the connection has broken, the answers of all requests in flight are fetched first, on other connections.
        """
        if not self._answers:
            assert self._connection is not None
            try:
                self._add_answer(require_not_rejected(self._connection.receive()))
            except OutcomeUnknown as unknown:
                if "shortage" in unknown.details:
                    raise
                self._recover(self._connection)
        return self._answers.popleft()

    def _add_answer(self, answer: ManagerMessage) -> None:
        """Store the answer of the oldest request in flight, and remove its number."""
        self._channel.connections.note_answer(answer)
        self.answered += 1
        self._answers.append(answer)
        self._channel.pending_requests.end(self._in_flight.popleft())

    def _recover(self, connection: PooledConnection) -> None:
        """Discard the broken connection, and deliver all requests in flight one by one."""
        self._connection = None
        self._channel.connections.discard(connection)
        while self._in_flight:
            self._add_answer(self._channel.deliver(self._in_flight[0]))

    def close(self) -> None:
        """Remove the numbers of all requests in flight, and release the connection only if it is idle."""
        connection, is_idle = self._connection, not self._in_flight
        while self._in_flight:
            self._channel.pending_requests.end(self._in_flight.popleft())
        if connection is not None:
            (self._channel.connections.release if is_idle else self._channel.connections.discard)(connection)


def _upload(connection: PooledConnection, number: int, body: LargeBody) -> None:
    """Offer a body, and send its bytes if the manager accepts.

    If the manager has no room, the request is sent all the same, and its refusal says why.
    """
    offer, body = offer_for(number, body)
    try:
        answer = connection.exchange(offer)
    except OutcomeUnknown as error:  # an offer without a request has no effect, so the request may be sent again
        raise RuntimeLost(error.message) from error
    if is_granted(answer):
        try:
            connection.send_body(body)
        except RuntimeLost as gone:
            require_not_rejected(connection.receive_rejection(gone))
            raise


def offer_for(number: int, body: LargeBody) -> tuple[OfferUpload, bytes | memoryview]:
    """Return the message that asks for room for a body, and the bytes of the body.

    With `NoEviction` the manager may not demote fragments to make room.
    """
    no_eviction, content = (True, body.body) if isinstance(body, NoEviction) else (False, body)
    return OfferUpload(number, len(content), no_eviction), content


def is_granted(answer: ManagerMessage) -> bool:
    """Return True if the manager accepts the bytes of an offered body, or raise its refusal."""
    if not isinstance(require_not_rejected(answer), UploadGranted):
        raise ProtocolError(f"the manager answered an offer with {type(answer).__name__}")
    return isinstance(answer, UploadGranted) and answer.accepted


def require_not_rejected(answer: ManagerMessage) -> ManagerMessage:
    """Return an answer, or raise the manager's reason if the answer is a rejection of the session."""
    if isinstance(answer, Rejected):
        raise answer.refusal.error()
    return answer


def session_expired_error() -> SessionExpired:
    """Return the error for a request that may have taken effect in a session that the manager has forgotten."""
    return SessionExpired(
        "the manager has forgotten this session, its leases and whether this request took effect: "
        "read the state, and start your plans again"
    )


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _reset_channels_in_child() -> None:
    """Begin new sessions in a forked child, for all channels of the process."""
    for channel in list(_channels):
        channel.in_forked_child()


os.register_at_fork(after_in_child=_reset_channels_in_child)
