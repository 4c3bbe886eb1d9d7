"""The numbers of a session's requests, and the smallest one that is pending.

The manager stores its answer to each write under the number of the request, so that a request which is sent twice takes
effect once. It drops an answer when it learns that the client has received it. For that, each request carries the
smallest number that is still pending: all answers below it have arrived.

Therefore the number of a call that ends, in whatever way, has to be removed here (`RequestNumbers.end`). One number
that stays would make the manager store every later answer.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Numbered(Protocol):
    """A request that has a number from its first attempt on."""

    number: int | None


class RequestNumbers:
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

    def assign(self, request: Numbered) -> tuple[int, int]:
        """Give a request the next number. Return it, and the smallest number that is pending."""
        with self._lock:
            number = request.number = self._next  # assigned first, so that an interrupted call can remove it
            self._next = number + 1
            self._outstanding.append(number)
            return number, self._outstanding[0]

    def end(self, request: Numbered) -> None:
        """Remove the number of a request whose answer has arrived or whose caller has given up.

        It needs no lock: only the owner of a request removes it, and removing from a list is one step of the
        interpreter.
        """
        number = request.number
        if number is not None:
            try:  # noqa: SIM105 - this is part of every call, and `suppress` takes longer than the removal
                self._outstanding.remove(number)
            except ValueError:  # it was removed before, or belongs to the parent process
                pass

    def next_number(self) -> int:
        """Return a number for a question that changes nothing; its answer need not be stored, so it is not pending."""
        with self._lock:
            number = self._next
            self._next = number + 1
            return number
