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
from stepwell.client.session.connection_pool import ConnectionPool, PooledConnection, Unreachable, Welcomed, closed
from stepwell.client.session.pending_requests import Numbered, PendingRequest, PendingRequests
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
        self.errands = PendingRequests()
        self.is_kept: Callable[[], bool] | None = None  # asks whoever would start the manager again, if we know them
        self._after_fork: list[Callable[[], None]] = []
        _channels.add(self)

    def in_forked_child(self) -> None:
        """Begin a new session."""
        self.connections.in_forked_child()
        self.errands.in_forked_child()
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
        self.connections.give_back(self.reach(PendingRequest(), self.connections.take_live))
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

    def exchange(self, make: Numbered, uploads: Sequence[LargeBody] = ()) -> ManagerMessage:
        """Send a request, what it refers to before it, and wait for its answer."""
        errand = PendingRequest(make, uploads)
        try:
            return self.deliver(errand)
        finally:
            self.errands.end(errand)

    def ask(self, question: Callable[[int], AskStatus | AskView]) -> ManagerMessage:
        """Send a question and wait for its answer."""
        return self.deliver(PendingRequest(message=question(self.errands.next_number())))

    def stream(self, requests: Iterable[tuple[Numbered, Sequence[LargeBody]]]) -> Iterator[ManagerMessage]:
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

    def deliver(self, errand: PendingRequest) -> ManagerMessage:
        """Send, as often as it takes, and wait for the answer.

        A connection that had died while idle is replaced at once: nothing of the message has reached the manager.
        """
        while True:
            link = self.reach(errand, self.connections.take)
            try:
                if errand.uploads or self.mappings.has_released:
                    self.prepare(link, errand)
                answer = link.exchange(self.errands.message(errand))
            except (RuntimeLost, OutcomeUnknown) as error:
                self.connections.discard(link)
                self._wait(errand, self.pause_after(errand, link, error))
            except InvalidArgument:  # it could not be encoded, so that nothing was sent; uploads may have been
                (self.connections.discard if errand.uploads else self.connections.give_back)(link)
                raise
            except BaseException:
                self.connections.discard(link)
                raise
            else:
                if isinstance(answer, Rejected):
                    self.connections.discard(link)
                    raise answer.refusal.error()
                self.connections.give_back(link)
                return answer

    def reach(self, errand: PendingRequest, take: Callable[[], PooledConnection]) -> PooledConnection:
        """A connection for the next attempt."""
        while True:
            try:
                link = take()
            except Unreachable as unreachable:
                self._wait(errand, self.pause_without(errand, unreachable))
                continue
            if errand.sent_in is not None and errand.is_expired(link.generation):
                self.connections.give_back(link)
                raise expired()
            return link

    def comes_back(self) -> bool:
        """Whether the manager's state outlives it, and, as far as we know, somebody starts it again."""
        welcome = self.connections.welcome
        return welcome is not None and welcome.database is not None and (self.is_kept is None or self.is_kept())

    def pause_after(self, errand: PendingRequest, link: Welcomed, error: RuntimeLost | OutcomeUnknown) -> float:
        """An attempt failed: how long to wait before the next one. Raises what is known if there should be none."""
        if isinstance(error, OutcomeUnknown):
            errand.sent_in = link.generation
            if "shortage" in error.details:  # the manager is there, and would be again
                raise error
        elif link.is_used:  # it had died while idle
            return 0.0
        return self._pause_s(errand, error)

    def pause_without(self, errand: PendingRequest, unreachable: Unreachable) -> float:
        """The same, where there is no connection for an attempt."""
        if unreachable.is_final or not self.comes_back():
            give_up(errand, unreachable.error)
        return self._pause_s(errand, unreachable.error)

    def _pause_s(self, errand: PendingRequest, error: StepwellError | OSError) -> float:
        pause_s = errand.pause_s(comes_back=self.comes_back())
        if pause_s is None:
            give_up(errand, error)
        return pause_s

    def _wait(self, errand: PendingRequest, pause_s: float) -> None:
        if pause_s and self.connections.is_closed_within(pause_s):
            give_up(errand, closed().error)

    def prepare(self, link: PooledConnection, errand: PendingRequest) -> None:
        """Send what comes before a message: which memory we let go of, and the bodies that it refers to."""
        if self.mappings.has_released:
            released = self.mappings.take_released()
            try:
                link.send(SegmentsReleased(released))
            except RuntimeLost:
                self.mappings.put_back(released)
                raise
        for number, body in enumerate(errand.uploads):
            _upload(link, number, body)

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
        self._link: PooledConnection | None = None
        self._under_way: deque[PendingRequest] = deque()
        self._answers: deque[ManagerMessage] = deque()  # that came when the connection had broken
        self.answered = 0  # given out or not

    def __len__(self) -> int:
        """How many answers are still to come."""
        return len(self._under_way) + len(self._answers)

    def send(self, errand: PendingRequest) -> None:
        self._under_way.append(errand)
        link = self._link = self._link or self._channel.reach(errand, self._channel.connections.take)
        try:
            self._channel.prepare(link, errand)
            link.send(self._channel.errands.message(errand))
        except RuntimeLost:
            self._recover(link)
        except InvalidArgument:  # it could not be encoded, so that nothing was sent; uploads may have been
            if not errand.uploads:
                self._channel.errands.end(self._under_way.pop())
            raise
        else:
            errand.sent_in = link.generation

    def answer(self) -> ManagerMessage:
        if not self._answers:
            assert self._link is not None
            try:
                self._came(checked(self._link.receive()))
            except OutcomeUnknown as unknown:
                if "shortage" in unknown.details:
                    raise
                self._recover(self._link)
        return self._answers.popleft()

    def _came(self, answer: ManagerMessage) -> None:
        self.answered += 1
        self._answers.append(answer)
        self._channel.errands.end(self._under_way.popleft())

    def _recover(self, link: PooledConnection) -> None:
        self._link = None
        self._channel.connections.discard(link)
        while self._under_way:
            self._came(self._channel.deliver(self._under_way[0]))

    def close(self) -> None:
        link, is_idle = self._link, not self._under_way
        while self._under_way:
            self._channel.errands.end(self._under_way.popleft())
        if link is not None:
            (self._channel.connections.give_back if is_idle else self._channel.connections.discard)(link)


def _upload(link: PooledConnection, number: int, body: LargeBody) -> None:
    offer, body = offer_of(number, body)
    try:
        answer = link.exchange(offer)
    except OutcomeUnknown as error:  # what comes of an offer that no request refers to is nothing
        raise RuntimeLost(error.message) from error
    if is_granted(answer):
        try:
            link.send_body(body)
        except RuntimeLost as gone:
            checked(link.last_word(gone))
            raise


def offer_of(number: int, body: LargeBody) -> tuple[OfferUpload, bytes | memoryview]:
    """What asks for room for a body, and its bytes."""
    is_modest, content = (True, body.body) if isinstance(body, NoEviction) else (False, body)
    return OfferUpload(number, len(content), is_modest), content


def is_granted(answer: ManagerMessage) -> bool:
    """Whether the bytes of an offered body are to be sent."""
    if not isinstance(checked(answer), UploadGranted):
        raise ProtocolError(f"the manager answered an offer with {type(answer).__name__}")
    return isinstance(answer, UploadGranted) and answer.accepted


def checked(answer: ManagerMessage) -> ManagerMessage:
    """An answer, unless the manager has turned us away."""
    if isinstance(answer, Rejected):
        raise answer.refusal.error()
    return answer


def expired() -> SessionExpired:
    """What may have taken effect cannot be sent again."""
    return SessionExpired(
        "the manager has forgotten this session, its leases and whether this request took effect: "
        "see what did, and start again what you were working on"
    )


def give_up(errand: PendingRequest, error: StepwellError | OSError) -> NoReturn:
    """There is no further attempt: raise why, or that nobody knows what came of it."""
    outcome = errand.outcome(error)
    raise outcome from outcome.__cause__


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _begin_anew() -> None:
    for channel in list(_channels):
        channel.in_forked_child()


os.register_at_fork(after_in_child=_begin_anew)
