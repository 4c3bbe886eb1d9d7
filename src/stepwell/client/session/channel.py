"""The way to the manager: messages out, their answers back, whatever becomes of the connections meanwhile.

A message whose connection dies is sent again, with the same number, until its answer is there: the manager remembers
what it answered, so that it takes effect once. Where the manager's state outlives it, it is waited for; where it does
not, one more attempt shows whether it is gone, or has only cut us off.
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
    client_closed,
)
from stepwell.client.session.pending_requests import PendingRequest, PendingRequests, RequestFactory
from stepwell.domain.checks import check
from stepwell.errors import InvalidArgument, OutcomeUnknown, ProtocolError, RuntimeLost, SessionExpired, StepwellError
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
from stepwell.transport.blocking import Connection


class Channel:
    """A session with a manager. Safe from any number of threads."""

    def __init__(self, address: str, projects: tuple[str, ...] | None) -> None:
        self.address = address
        self.projects = projects
        self.mappings = Mappings()
        check(Hello(VERSION, "new", projects))
        self.connections = ConnectionPool(address, projects, self.mappings)
        self.pending_requests = PendingRequests()
        self.is_supervised: Callable[[], bool] | None = (
            None  # asks whoever would start the manager again, if we know them
        )
        self._after_fork: list[Callable[[], None]] = []
        _channels.add(self)

    def in_forked_child(self) -> None:
        """Begin a new session."""
        self.connections.in_forked_child()
        self.pending_requests.in_forked_child()
        self.mappings.clear()
        for callback in self._after_fork:
            callback()

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Have something forgotten in a forked child."""
        self._after_fork.append(callback)

    @property
    def session_id(self) -> str:
        return self.connections.session_id

    def open(self) -> Welcome:
        """Make sure that there is a manager that welcomes us."""
        self.connections.release(self.acquire_connection(PendingRequest(), self.connections.acquire_live))
        return self.welcome

    @property
    def welcome(self) -> Welcome:
        """What the manager said when it last welcomed us."""
        return self.connections.welcome or self.open()

    def dial(self) -> Connection:
        """A connection of this session, for whoever needs one alone: theirs to close."""
        try:
            return self.connections.connect()
        except Unreachable as unreachable:
            raise unreachable.error from unreachable.error.__cause__

    def exchange(self, make: RequestFactory, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, what it refers to before it, and wait for its answer."""
        pending = PendingRequest(make, uploads)
        try:
            return self.deliver(pending)
        finally:
            self.pending_requests.end(pending)

    def ask(self, question: Callable[[int], AskStatus | AskView]) -> ManagerMessage:
        """Send a question and wait for its answer."""
        return self.deliver(PendingRequest(message=question(self.pending_requests.next_number())))

    def stream(self, requests: Iterable[tuple[RequestFactory, Sequence[LargeBody]]]) -> Iterator[ManagerMessage]:
        """Send one request after the other and give their answers, the next always under way meanwhile.

        Breaking off in the middle gives up the connection. What was under way has then an unknown outcome.
        """
        stream = _Stream(self)
        try:
            for make, uploads in requests:
                while uploads and len(stream):  # a grant would come behind the answer
                    yield stream.answer()
                stream.send(PendingRequest(make, uploads))
                if len(stream) > 1:
                    yield stream.answer()
            while len(stream):
                yield stream.answer()
        except RuntimeLost as lost:
            if stream.answered:
                raise OutcomeUnknown("the connection broke in the middle: some may have taken effect") from lost
            raise
        finally:
            stream.close()

    def deliver(self, pending: PendingRequest) -> ManagerMessage:
        """Send, as often as it takes, and wait for the answer.

        A connection that had died while idle is replaced at once: nothing of the message has reached the manager.
        """
        while True:
            connection = self.acquire_connection(pending, self.connections.acquire)
            try:
                if pending.uploads or self.mappings.has_released:
                    self.send_preliminaries(connection, pending)
                answer = connection.exchange(self.pending_requests.message(pending))
            except (RuntimeLost, OutcomeUnknown) as error:
                self.connections.discard(connection)
                self._pause(pending, self.pause_after_failure(pending, connection, error))
            except InvalidArgument:  # it could not be encoded, so that nothing was sent; uploads may have been
                (self.connections.discard if pending.uploads else self.connections.release)(connection)
                raise
            except BaseException:
                self.connections.discard(connection)
                raise
            else:
                if isinstance(answer, Rejected):
                    self.connections.discard(connection)
                    raise answer.refusal.error()
                self.connections.release(connection)
                return answer

    def acquire_connection(self, pending: PendingRequest, acquire: Callable[[], PooledConnection]) -> PooledConnection:
        """A connection for the next attempt."""
        while True:
            try:
                connection = acquire()
            except Unreachable as unreachable:
                self._pause(pending, self.pause_when_unreachable(pending, unreachable))
                continue
            if pending.sent_in is not None and pending.is_expired(connection.generation):
                self.connections.release(connection)
                raise session_expired()
            return connection

    def expects_restart(self) -> bool:
        """Whether the manager's state outlives it, and, as far as we know, somebody starts it again."""
        welcome = self.connections.welcome
        return (
            welcome is not None
            and welcome.database is not None
            and (self.is_supervised is None or self.is_supervised())
        )

    def pause_after_failure(
        self, pending: PendingRequest, connection: SessionConnection, error: RuntimeLost | OutcomeUnknown
    ) -> float:
        """An attempt failed: how long to wait before the next one. Raises what is known if there should be none."""
        if isinstance(error, OutcomeUnknown):
            pending.sent_in = connection.generation
            if "shortage" in error.details:  # the manager is there, and would be again
                raise error
        elif connection.is_used:  # it had died while idle
            return 0.0
        return self._pause_s(pending, error)

    def pause_when_unreachable(self, pending: PendingRequest, unreachable: Unreachable) -> float:
        """The same, where there is no connection for an attempt."""
        if unreachable.is_final or not self.expects_restart():
            give_up(pending, unreachable.error)
        return self._pause_s(pending, unreachable.error)

    def _pause_s(self, pending: PendingRequest, error: StepwellError | OSError) -> float:
        pause_s = pending.pause_s(expects_restart=self.expects_restart())
        if pause_s is None:
            give_up(pending, error)
        return pause_s

    def _pause(self, pending: PendingRequest, pause_s: float) -> None:
        if pause_s and self.connections.is_closed_within(pause_s):
            give_up(pending, client_closed().error)

    def send_preliminaries(self, connection: PooledConnection, pending: PendingRequest) -> None:
        """Send what comes before a message: which memory we let go of, and the bodies that it refers to."""
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
        """End the session."""
        self.connections.close(holds_leases=holds_leases)
        self.mappings.close()


class _Stream:
    """Requests on one connection. If it breaks, what was under way is delivered one by one, in order, and on it goes.

    While something is under way or half sent, it is in `_under_way`: then nobody else can use the connection.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._connection: PooledConnection | None = None
        self._under_way: deque[PendingRequest] = deque()
        self._answers: deque[ManagerMessage] = deque()  # that came when the connection had broken
        self.answered = 0  # given out or not

    def __len__(self) -> int:
        """How many answers are still to come."""
        return len(self._under_way) + len(self._answers)

    def send(self, pending: PendingRequest) -> None:
        self._under_way.append(pending)
        connection = self._connection = self._connection or self._channel.acquire_connection(
            pending, self._channel.connections.acquire
        )
        try:
            self._channel.send_preliminaries(connection, pending)
            connection.send(self._channel.pending_requests.message(pending))
        except RuntimeLost:
            self._recover(connection)
        except InvalidArgument:  # it could not be encoded, so that nothing was sent; uploads may have been
            if not pending.uploads:
                self._channel.pending_requests.end(self._under_way.pop())
            raise
        else:
            pending.sent_in = connection.generation

    def answer(self) -> ManagerMessage:
        if not self._answers:
            assert self._connection is not None
            try:
                self._add_answer(unless_rejected(self._connection.receive()))
            except OutcomeUnknown as unknown:
                if "shortage" in unknown.details:
                    raise
                self._recover(self._connection)
        return self._answers.popleft()

    def _add_answer(self, answer: ManagerMessage) -> None:
        self.answered += 1
        self._answers.append(answer)
        self._channel.pending_requests.end(self._under_way.popleft())

    def _recover(self, connection: PooledConnection) -> None:
        self._connection = None
        self._channel.connections.discard(connection)
        while self._under_way:
            self._add_answer(self._channel.deliver(self._under_way[0]))

    def close(self) -> None:
        connection, is_idle = self._connection, not self._under_way
        while self._under_way:
            self._channel.pending_requests.end(self._under_way.popleft())
        if connection is not None:
            (self._channel.connections.release if is_idle else self._channel.connections.discard)(connection)


def _upload(connection: PooledConnection, number: int, body: LargeBody) -> None:
    offer, body = offer_for(number, body)
    try:
        answer = connection.exchange(offer)
    except OutcomeUnknown as error:  # what comes of an offer that no request refers to is nothing
        raise RuntimeLost(error.message) from error
    if is_granted(answer):
        try:
            connection.send_body(body)
        except RuntimeLost as gone:
            unless_rejected(connection.receive_rejection(gone))
            raise


def offer_for(number: int, body: LargeBody) -> tuple[OfferUpload, bytes | memoryview]:
    """What asks for room for a body, and its bytes."""
    no_eviction, content = (True, body.body) if isinstance(body, NoEviction) else (False, body)
    return OfferUpload(number, len(content), no_eviction), content


def is_granted(answer: ManagerMessage) -> bool:
    """Whether the bytes of an offered body are to be sent."""
    if not isinstance(unless_rejected(answer), UploadGranted):
        raise ProtocolError(f"the manager answered an offer with {type(answer).__name__}")
    return isinstance(answer, UploadGranted) and answer.accepted


def unless_rejected(answer: ManagerMessage) -> ManagerMessage:
    """An answer, unless the manager has turned us away."""
    if isinstance(answer, Rejected):
        raise answer.refusal.error()
    return answer


def session_expired() -> SessionExpired:
    """What may have taken effect cannot be sent again."""
    return SessionExpired(
        "the manager has forgotten this session, its leases and whether this request took effect: "
        "see what did, and start again what you were working on"
    )


def give_up(pending: PendingRequest, error: StepwellError | OSError) -> NoReturn:
    """There is no further attempt: raise why, or that nobody knows what came of it."""
    outcome = pending.final_error(error)
    raise outcome from outcome.__cause__


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _reset_channels_in_child() -> None:
    for channel in list(_channels):
        channel.in_forked_child()


os.register_at_fork(after_in_child=_reset_channels_in_child)
