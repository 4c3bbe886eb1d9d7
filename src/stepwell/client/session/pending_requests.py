"""Errands: what a call sends, numbered, for as long as it may have to be sent again.

The manager remembers what it answered to a write until it is told that the answer has arrived: every request says
below which number all have been answered. Whatever ends a call, its number has to be given up, or the manager would
remember everything behind it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from stepwell import limits
from stepwell.client.session.calls import LargeBody
from stepwell.domain.commands import Read
from stepwell.errors import OutcomeUnknown, StepwellError
from stepwell.protocol.messages import AskStatus, AskView, Request, TransactionRequest

RequestFactory = Callable[[int, int], Request | TransactionRequest]
"""Makes a request of its number and of the one below which all have been answered."""


class PendingRequest:
    """A message on its way, the bodies that go before it, and what became of the attempts so far."""

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
        self.sent_in: int | None = None  # the session's generation in which it may have arrived
        self._failures = 0
        self._until_s = 0.0

    def is_expired(self, generation: int) -> bool:
        """Whether it may have taken effect in a session that is forgotten. What only reads has no effect."""
        if self.sent_in is None or self.sent_in == generation:
            return False
        message = self.message
        return isinstance(message, Request | TransactionRequest) and not all(
            isinstance(command, Read) for command in message.commands
        )

    def pause_s(self, *, expects_restart: bool) -> float | None:
        """After a failure: how long to wait before the next attempt; None, if there should be none.

        A manager that does not come back may still be there, and have cut us off: that is worth one more attempt.
        """
        self._failures += 1
        if self._failures == 1:
            self._until_s = time.monotonic() + limits.RECONNECT_SECONDS_MAX
            return 0.0
        if not expects_restart or time.monotonic() >= self._until_s:
            return None
        longest_s = limits.RECONNECT_PAUSE_SECONDS * 1.5 ** min(self._failures - 2, 20)
        pause_s = min(longest_s, limits.RECONNECT_PAUSE_SECONDS_MAX)
        return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - only so that not all come at once

    def final_error(self, error: StepwellError | OSError) -> StepwellError | OSError:
        """What to raise when there is no further attempt: why, or, if it may have arrived, that nobody knows."""
        if self.sent_in is None:
            return error
        unknown = OutcomeUnknown("the connection broke before the answer came: the request may have taken effect")
        unknown.__cause__ = error
        return unknown


class PendingRequests:
    """Those of one session: their numbers, and which of them are still on their way."""

    def __init__(self) -> None:
        self._next = 1
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._outstanding: list[int] = []  # sorted, since a number is taken and entered in one step

    def in_forked_child(self) -> None:
        """What was on its way is the parent's; the numbers go on, so that none means two things."""
        self._reset()

    def __len__(self) -> int:
        """How many are on their way."""
        return len(self._outstanding)

    def message(self, pending: PendingRequest) -> Request | TransactionRequest | AskStatus | AskView:
        """What to send: numbered when it is sent first, as late as can be, and the same from then on."""
        if pending.message is None:
            assert pending.build is not None
            with self._lock:
                number = pending.number = self._next  # first, so that an interrupted call can give it up
                self._next = number + 1
                self._outstanding.append(number)
                answered = self._outstanding[0]
            pending.message = pending.build(number, answered)
        return pending.message

    def end(self, pending: PendingRequest) -> None:
        """Its answer has arrived, or nobody waits for it any more. Nobody else removes it, and that is one step."""
        if pending.number in self._outstanding:  # or it is over already, or the parent's of this process
            self._outstanding.remove(pending.number)

    def next_number(self) -> int:
        """For a question: nothing of it has to be remembered."""
        with self._lock:
            number = self._next
            self._next = number + 1
            return number
