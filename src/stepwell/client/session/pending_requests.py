"""Pending requests: the numbered messages of a session that may have to be sent again.

The manager stores its answer to each write under the number of the request, so that a request which is sent twice takes
effect once. It drops an answer when it learns that the client has received it. For that, each request carries the
smallest number that is still pending: all answers below it have arrived.

Therefore the number of a call that ends, in whatever way, has to be removed here (`PendingRequests.end`). One number
that stays would make the manager store every later answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from stepwell import limits
from stepwell.client.session.calls import LargeBody
from stepwell.client.session.environment import Environment
from stepwell.domain.commands import Read
from stepwell.errors import HistoryLost, OutcomeUnknown, RuntimeLost, StepwellError
from stepwell.protocol.messages import AskStatus, AskView, Request, TransactionRequest

RequestFactory = Callable[[int, int], Request | TransactionRequest]
"""Builds a request from its number and from the smallest number that is still pending."""


class PendingRequest:
    """One message, the bodies that are uploaded before it, and what is known about the attempts to send it so far.

    It belongs to the call that made it. `sent_in` is the generation of the session in which the message was sent
    completely; None while it cannot have reached the manager.
    """

    __slots__ = ("_failures", "_until_s", "build", "message", "number", "sent_in", "uploads")

    def __init__(
        self,
        build: RequestFactory | None = None,
        uploads: Sequence[LargeBody] = (),
        message: AskStatus | AskView | None = None,
    ) -> None:
        self.build = build
        self.uploads = uploads
        self.message: Request | TransactionRequest | AskStatus | AskView | None = message
        self.number: int | None = None
        self.sent_in: int | None = None
        self._failures = 0
        self._until_s = 0.0

    def is_expired(self, generation: int) -> bool:
        """Return True if the request may have taken effect in an earlier generation of the session.

        The manager has forgotten the answers of that generation, so sending the request again could execute it twice.
        Requests that only read have no effect and never expire.
        """
        if self.sent_in is None or self.sent_in == generation:
            return False
        message = self.message
        return isinstance(message, Request | TransactionRequest) and not all(
            isinstance(command, Read) for command in message.commands
        )

    def pause_s(self, environment: Environment, *, expects_restart: bool) -> float | None:
        """Return the pause before the next attempt after a failure, in seconds; None if the request should be given up.

        The first failure is always followed by an attempt at once, because the manager may have closed only this
        connection. If the manager is expected to restart, attempts go on with growing pauses for a bounded time.
        """
        self._failures += 1
        if self._failures == 1:
            self._until_s = environment.monotonic() + limits.RECONNECT_SECONDS_MAX
            return 0.0
        if not expects_restart or environment.monotonic() >= self._until_s:
            return None
        longest_s = limits.RECONNECT_PAUSE_SECONDS * 1.5 ** min(self._failures - 2, 20)
        pause_s = min(longest_s, limits.RECONNECT_PAUSE_SECONDS_MAX)
        return pause_s * environment.jitter()

    def final_error(
        self, error: StepwellError | OSError, ended_by: StepwellError | None = None
    ) -> StepwellError | OSError:
        """Return the error to raise when the request is given up.

        That is `error` itself, or `OutcomeUnknown` if the manager may have received the request. `ended_by` is the
        reason for which the manager ended, if that is known: it is then named, and is the cause. A loss of writes
        (`HistoryLost`) is named before any other reason.
        """
        final: StepwellError
        if self.sent_in is None and (ended_by is None or isinstance(error, HistoryLost)):
            return error
        if isinstance(error, HistoryLost):
            text = f"the connection broke before the answer came: the request may have taken effect; {error.message}"
            final = OutcomeUnknown(text)
        elif ended_by is None:
            final = OutcomeUnknown("the connection broke before the answer came: the request may have taken effect")
        elif self.sent_in is None:
            final = RuntimeLost(f"the manager ended: {ended_by.message}", cause=ended_by.kind)
        else:
            text = f"the manager ended, and the request may have taken effect: {ended_by.message}"
            final = OutcomeUnknown(text, cause=ended_by.kind)
        final.__cause__ = error if ended_by is None or isinstance(error, HistoryLost) else ended_by
        return final


class PendingRequests:
    """The numbers of one session, and which of them are pending. Any number of threads may use it."""

    def __init__(self) -> None:
        self._next = 1
        self._reset()

    def _reset(self) -> None:
        """Forget the pending numbers, with a new lock."""
        self._lock = threading.Lock()
        self._outstanding: list[int] = []  # sorted, because a number is taken and appended under one lock

    def in_forked_child(self) -> None:
        """Forget the parent's pending requests.

        The numbers go on, so that a number which the child inherited in a suspended call is not given to another
        request.
        """
        self._reset()

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._outstanding)

    def message(self, pending: PendingRequest) -> Request | TransactionRequest | AskStatus | AskView:
        """Return the message to send: built with a new number at the first attempt, and unchanged at the later ones.

        The number is assigned as late as possible, so that waiting for a connection does not hold back `answered`.
        """
        if pending.message is None:
            assert pending.build is not None
            with self._lock:
                number = pending.number = self._next  # assigned first, so that an interrupted call can remove it
                self._next = number + 1
                self._outstanding.append(number)
                answered = self._outstanding[0]
            pending.message = pending.build(number, answered)
        return pending.message

    def end(self, pending: PendingRequest) -> None:
        """Remove a request whose answer has arrived or whose caller has given up.

        It needs no lock: only the owner of a request removes it, and removing from a list is one step of the
        interpreter.
        """
        if pending.number in self._outstanding:  # not if it was removed before, or belongs to the parent process
            self._outstanding.remove(pending.number)

    def next_number(self) -> int:
        """Return a number for a question that changes nothing; its answer need not be stored, so it is not pending."""
        with self._lock:
            number = self._next
            self._next = number + 1
            return number
