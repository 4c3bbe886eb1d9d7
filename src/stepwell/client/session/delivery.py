"""`Delivery`: one message on its way to the manager, across broken connections, to its only outcome.

The rules for sending, resending and giving up, without I/O. A driver reports events, and each answer says what to do
next. The blocking and the asynchronous channel are such drivers; only waiting differs between them.

| phase     | event         | next phase         | meaning                                                          |
|-----------|---------------|--------------------|------------------------------------------------------------------|
| WAITING   | `connected`   | CONNECTED or ENDED | there is a connection, in whose generation the write may expire  |
| WAITING   | `unreachable` | WAITING or ENDED   | no connection could be made                                      |
| CONNECTED | `message`     | SENDING            | what precedes the message was sent: now the message is           |
| SENDING   | `sent`        | SENDING            | all bytes of the message were sent, in a stream                  |
| SENDING   | `answered`    | ENDED              | the answer is here                                               |
| CONNECTED | `failed`      | WAITING or ENDED   | the connection broke before the message: nothing was sent        |
| SENDING   | `failed`      | WAITING or ENDED   | the connection broke; the error says if the message was sent     |
| CONNECTED | `interrupted` | WAITING            | the connection of a stream broke                                 |
| SENDING   | `interrupted` | WAITING            | the connection of a stream broke                                 |
| not ENDED | `give_up`     | ENDED              | there is no further attempt; `closed` is a case of it            |
| any       | `end`         | ENDED              | the call is over: its number is removed                          |

An event in another phase raises `IllegalEvent` and changes nothing.

How long a message is tried depends on the manager:
- A manager with a database is expected to restart with its state. Attempts go on for `limits.RECONNECT_SECONDS_MAX`.
- Without a database the state dies with the manager. One more attempt shows whether the manager is gone or has only
  closed this connection.

A write is sent again with the same number, and the manager stores its answers by number, so it takes effect once. The
manager forgets the answers together with the session. So a write that may have arrived in an earlier *generation* of
the session is not sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, NoReturn

from stepwell import limits
from stepwell.client.session.calls import LargeBody, NoEviction
from stepwell.client.session.session_rules import (
    Observation,
    SessionConnection,
    SessionRules,
    Unreachable,
    client_closed_error,
)
from stepwell.domain.commands import Read
from stepwell.errors import (
    Busy,
    HistoryLost,
    OutcomeUnknown,
    ProtocolError,
    RuntimeLost,
    SessionExpired,
    StepwellError,
)
from stepwell.protocol.messages import (
    AskStatus,
    AskView,
    ManagerMessage,
    OfferUpload,
    Rejected,
    Request,
    TransactionRequest,
    UploadGranted,
)

RequestFactory = Callable[[int, int], Request | TransactionRequest]
"""Builds a request from its number and from the smallest number that is still pending."""

Deliverable = Request | TransactionRequest | AskStatus | AskView
"""A message that is sent again until it is answered."""


class DeliveryPhase(Enum):
    """The phase of a delivery; see the module's table."""

    WAITING = auto()  # for a connection
    CONNECTED = auto()
    SENDING = auto()  # or sent, without an answer so far
    ENDED = auto()


# A name of the module is found faster than a member of an enumeration, and each call changes its phase four times.
_WAITING: Final = DeliveryPhase.WAITING
_CONNECTED: Final = DeliveryPhase.CONNECTED
_SENDING: Final = DeliveryPhase.SENDING
_ENDED: Final = DeliveryPhase.ENDED


class IllegalEvent(Exception):
    """A driver reported an event that cannot happen in the phase of the delivery: a defect of the driver."""


class Retry(NamedTuple):
    """The decision to make another attempt after a pause."""

    pause_s: float


class GiveUp(NamedTuple):
    """The decision to raise an error to the caller."""

    error: StepwellError | OSError

    def raise_error(self) -> NoReturn:
        """Raise the error, with the cause that it has."""
        raise self.error from self.error.__cause__


class Delivery:
    """One message, the bodies that are uploaded before it, and what is known about the attempts to send it so far.

    It belongs to the call that made it. `number` is None until the first attempt sends the message. `sent_in` is the
    generation of the session in which the message was sent completely; None while it cannot have reached the manager.
    """

    _connection: SessionConnection  # of the attempt that is being made; set when there is one
    _until_s: float  # the end of all attempts; set by the first failure

    __slots__ = (
        "_build",
        "_connection",
        "_failures",
        "_message",
        "_phase",
        "_rules",
        "_until_s",
        "number",
        "sent_in",
        "uploads",
    )

    def __init__(
        self,
        rules: SessionRules,
        build: RequestFactory | None = None,
        uploads: Sequence[LargeBody] = (),
        message: Deliverable | None = None,
    ) -> None:
        self.uploads = uploads
        self.number: int | None = None
        self.sent_in: int | None = None
        self._rules = rules
        self._build = build
        self._message = message
        self._phase: DeliveryPhase = _WAITING
        self._failures = 0

    @property
    def phase(self) -> DeliveryPhase:
        """The phase; only events change it."""
        return self._phase

    def connected(self, connection: SessionConnection) -> GiveUp | None:
        """Begin an attempt on a connection. Give up if the message must not be sent again in its generation."""
        if self._phase is not _WAITING:
            raise self._illegal("connected")
        if self.sent_in is not None and self._is_expired(connection.generation):
            self._phase = _ENDED
            return GiveUp(_session_expired_error())
        self._connection = connection
        self._phase = _CONNECTED
        return None

    def offers(self) -> Iterator[tuple[OfferUpload, bytes | memoryview]]:
        """Yield for each large body the message that asks for room, and the bytes to send if it is granted.

        Uploads belong to their connection: each attempt uploads all bodies. With `NoEviction` the manager may not
        demote fragments to make room. If it has no room, the request is sent all the same, and its refusal says why.
        """
        for number, body in enumerate(self.uploads):
            no_eviction, content = (True, body.body) if isinstance(body, NoEviction) else (False, body)
            yield OfferUpload(number, len(content), no_eviction), content

    def message(self) -> Deliverable:
        """Return the message to send: built with a new number at the first attempt, and unchanged at the later ones.

        The number is assigned as late as possible, so that waiting for a connection does not hold back `answered`.
        """
        if self._phase is not _CONNECTED:
            raise self._illegal("message")
        self._phase = _SENDING
        message = self._message
        if message is None:
            assert self._build is not None
            message = self._message = self._build(*self._rules.numbers.assign(self))
        return message

    def sent(self) -> None:
        """Note that all bytes of the message were sent, and that its answer is awaited later."""
        if self._phase is not _SENDING:
            raise self._illegal("sent")
        self.sent_in = self._connection.generation

    def answered(self, answer: ManagerMessage) -> GiveUp | None:
        """End with an answer; give up if it says that the manager has rejected the session."""
        if self._phase is not _SENDING:
            raise self._illegal("answered")
        self._phase = _ENDED
        if isinstance(answer, Rejected):
            return GiveUp(answer.refusal.error())
        self._rules.answered(answer)
        return None

    def interrupted(self) -> None:
        """Wait for another connection. The driver of a stream tries all its requests again, without a pause."""
        if self._phase not in {_CONNECTED, _SENDING}:
            raise self._illegal("interrupted")
        self._phase = _WAITING

    def failed(self, error: RuntimeLost | OutcomeUnknown, seen: Observation) -> Retry | GiveUp:
        """Decide about another attempt, after the connection broke.

        `RuntimeLost` says that not all bytes of the message were sent; so does any error before the message itself,
        because an offered body without a request has no effect. On a connection that died while it was idle, no byte
        has reached the manager: then the message is sent again at once.
        """
        if self._phase not in {_CONNECTED, _SENDING}:
            raise self._illegal("failed")
        if self._phase is _CONNECTED and isinstance(error, OutcomeUnknown):
            error = _unsent(error)
        self._phase = _WAITING
        if isinstance(error, OutcomeUnknown):
            self.sent_in = self._connection.generation
            if "shortage" in error.details:  # this process lacks descriptors, which no further attempt changes
                self._phase = _ENDED
                return GiveUp(error)
        elif self._connection.is_used:
            return Retry(0.0)
        return self._retry(error, seen)

    def unreachable(self, unreachable: Unreachable, seen: Observation) -> Retry | GiveUp:
        """Decide about another attempt, after no connection could be made.

        A first connection that a busy manager refuses is given up at once: no restart is under way, and there is no
        session to keep.
        """
        if self._phase is not _WAITING:
            raise self._illegal("unreachable")
        rules = self._rules
        is_refused = isinstance(unreachable.error, Busy) and rules.welcome is None
        if unreachable.is_final or is_refused or not rules.expects_restart(seen):
            return self.give_up(unreachable.error, seen)
        return self._retry(unreachable.error, seen)

    def _retry(self, error: StepwellError | OSError, seen: Observation) -> Retry | GiveUp:
        """Return the pause after a failure, which grows with the failures, or give up.

        The first failure is always followed by an attempt at once, because the manager may have closed only this
        connection. If the manager is expected to restart, attempts go on with growing pauses for a bounded time.
        """
        self._failures += 1
        if self._failures == 1:
            self._until_s = seen.now_s + limits.RECONNECT_SECONDS_MAX
            return Retry(0.0)
        if not self._rules.expects_restart(seen) or seen.now_s >= self._until_s:
            return self.give_up(error, seen)
        longest_s = limits.RECONNECT_PAUSE_SECONDS * 1.5 ** min(self._failures - 2, 20)
        return Retry(min(longest_s, limits.RECONNECT_PAUSE_SECONDS_MAX) * seen.jitter)

    def closed(self) -> GiveUp:
        """End because the program has closed the client."""
        return self.give_up(client_closed_error().error, None)

    def give_up(self, error: StepwellError | OSError, seen: Observation | None) -> GiveUp:
        """End with an error. It names the reason for which the manager ended, if that is known.

        A `RuntimeLost` without a cause is a statement, for instance that this client is closed, and stays as it is.
        """
        if self._phase is _ENDED:
            raise self._illegal("give_up")
        self._phase = _ENDED
        is_lost = isinstance(error, OutcomeUnknown) or (isinstance(error, RuntimeLost) and error.__cause__ is not None)
        ended_by = (self._rules.ended_by or seen.cause) if is_lost and seen is not None else None
        return GiveUp(_final_error(error, ended_by, is_sent=self.sent_in is not None))

    def end(self) -> None:
        """Remove the number, however the call ended, because the manager stores answers until then."""
        self._phase = _ENDED
        self._rules.numbers.end(self)

    def _is_expired(self, generation: int) -> bool:
        """Return True if the request may have taken effect in an earlier generation of the session.

        The manager has forgotten the answers of that generation, so sending the request again could execute it twice.
        Requests that only read have no effect and never expire.
        """
        message = self._message
        return (
            self.sent_in != generation
            and isinstance(message, Request | TransactionRequest)
            and not all(isinstance(command, Read) for command in message.commands)
        )

    def _illegal(self, event: str) -> IllegalEvent:
        return IllegalEvent(f"{event} cannot happen to a delivery that is {self._phase.name}")


def _final_error(
    error: StepwellError | OSError, ended_by: StepwellError | None, *, is_sent: bool
) -> StepwellError | OSError:
    """Return the error to raise when a message is given up.

    That is `error` itself, or `OutcomeUnknown` if the manager may have received the message. `ended_by` is the reason
    for which the manager ended, if that is known: it is then named, and is the cause. A loss of writes (`HistoryLost`)
    is named before any other reason.
    """
    final: StepwellError
    if not is_sent and (ended_by is None or isinstance(error, HistoryLost)):
        return error
    if isinstance(error, HistoryLost):
        text = f"the connection broke before the answer came: the request may have taken effect; {error.message}"
        final = OutcomeUnknown(text)
    elif ended_by is None:
        final = OutcomeUnknown("the connection broke before the answer came: the request may have taken effect")
    elif not is_sent:
        final = RuntimeLost(f"the manager ended: {ended_by.message}", cause=ended_by.kind)
    else:
        text = f"the manager ended, and the request may have taken effect: {ended_by.message}"
        final = OutcomeUnknown(text, cause=ended_by.kind)
    final.__cause__ = error if ended_by is None or isinstance(error, HistoryLost) else ended_by
    return final


def _unsent(error: OutcomeUnknown) -> RuntimeLost:
    """Return the error of a connection that broke before the message was sent on it."""
    lost = RuntimeLost(error.message)
    lost.__cause__ = error
    return lost


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


def _session_expired_error() -> SessionExpired:
    """Return the error for a request that may have taken effect in a session that the manager has forgotten."""
    return SessionExpired(
        "the manager has forgotten this session, its leases and whether this request took effect: "
        "read the state, and start your plans again"
    )
