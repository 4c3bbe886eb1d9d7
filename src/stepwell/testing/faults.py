"""Faults, on purpose: what can become of a request between a client and its manager.

A fault is armed with which request it is to happen at, counted from then on: `drop_reply(nth=3)` loses the reply to
the third, `times=2` also that to the fourth. Counted is what reaches the manager from clients with a command in it: one
that is sent again counts again. With `of`, only requests with a command of that name; with `by`, only one client's.

Whatever was armed has to happen: the runtime, or the fault's own `with` block, fails at its end if it did not.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, get_args

from stepwell import limits
from stepwell.client.client import Client
from stepwell.domain.commands import AnyCommand
from stepwell.errors import InvalidArgument
from stepwell.manager.sessions import SessionRecord
from stepwell.protocol.codec import PartlyDecodedRequest
from stepwell.protocol.messages import Request, TransactionRequest

Asked = Request | TransactionRequest | PartlyDecodedRequest
"""A message with commands in it."""

_COMMANDS: Final = frozenset(each.__name__ for each in get_args(AnyCommand))


class FaultKind(enum.Enum):
    """What happens."""

    DROP_REQUEST = "drop_request"
    DROP_REPLY = "drop_reply"
    HOLD_REPLY = "hold_reply"
    KILL_AT_REQUEST = "kill_at_request"
    KILL_AT_REPLY = "kill_at_reply"
    REFUSE = "refuse"


class Fault:
    """One that is armed. As a context manager it is disarmed at the end of the block, and has to have happened."""

    def __init__(self, faults: Faults, kind: FaultKind, window: range, of: str | None, by: str | None) -> None:
        self.kind = kind
        self.hits = 0
        self.is_released = False
        self._faults = faults
        self._window = window
        self._of = of
        self._by = by
        self._seen = 0
        self._hit = threading.Event()
        self._on_release: list[Callable[[], object]] = []

    def is_due(self, session: SessionRecord, message: Asked) -> bool:
        """Whether it happens at this request, which is counted if it is one of those that are meant."""
        if self._by is not None and session.session_id != self._by:
            return False
        if self._of is not None and all(type(each).__name__ != self._of for each in message.commands):
            return False
        self._seen += 1
        return self._seen in self._window

    def happen(self) -> None:
        """It does, now."""
        self.hits += 1
        if self.is_over:
            self._faults.disarm(self)
        self._hit.set()

    @property
    def is_over(self) -> bool:
        """Whether it has happened as often as it should."""
        return self.hits == len(self._window)

    def wait(self, timeout_s: float = limits.FAULT_WAIT_SECONDS) -> None:
        """Wait until it has happened once, in another thread."""
        if not self._hit.wait(timeout_s):
            raise AssertionError(f"{self} did not happen within {timeout_s:g} s")

    def release(self) -> None:
        """Let go of a reply that is held, and of every further one that would be."""
        self.is_released = True
        while self._on_release:
            self._on_release.pop()()

    def on_release(self, callback: Callable[[], object]) -> None:
        """What lets a reply go that is held."""
        self._on_release.append(callback)
        if self.is_released:
            self.release()

    def check(self) -> None:
        """Fail if it has not happened as often as it should."""
        if not self.is_over:
            raise AssertionError(f"{self} happened {self.hits} times: the requests that it was meant for did not come")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._faults.disarm(self)
        self.release()
        if error is None:
            self.check()

    def __repr__(self) -> str:
        meant = "".join(f", {name}={value!r}" for name, value in (("of", self._of), ("by", self._by)) if value)
        return f"{self.kind.value}(nth={self._window.start}, times={len(self._window)}{meant})"


class Faults:
    """Those of one runtime. Safe from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._held: list[Fault] = []
        self.ignored: set[str] = set()  # sessions that are no clients of the test

    def drop_request(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """The connection breaks before the manager has seen the request. The client sends it again, once.

        Twice in a row is `OutcomeUnknown`, and nothing has happened; with a data directory the client goes on trying.
        """
        return self._arm(FaultKind.DROP_REQUEST, nth, times, of, by)

    def drop_reply(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """The connection breaks when the request has taken effect, and before the client knows. It sends it again.

        It takes effect once all the same. Twice in a row is `OutcomeUnknown`, and it has happened.
        """
        return self._arm(FaultKind.DROP_REPLY, nth, times, of, by)

    def hold_reply(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """The reply does not come before the fault's `release()`; others are served meanwhile."""
        return self._arm(FaultKind.HOLD_REPLY, nth, times, of, by)

    def refuse(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """`Busy`, and nothing has happened."""
        return self._arm(FaultKind.REFUSE, nth, times, of, by)

    def kill_at_request(
        self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None
    ) -> Fault:
        """The manager dies before it has applied the request, as at `kill -9`.

        With a data directory another one takes its place, and clients go on; without one there is `RuntimeLost`.
        """
        return self._arm(FaultKind.KILL_AT_REQUEST, nth, times, of, by)

    def kill_at_reply(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """The manager dies when the request has taken effect and is committed, and before it is answered."""
        return self._arm(FaultKind.KILL_AT_REPLY, nth, times, of, by)

    def _arm(self, kind: FaultKind, nth: int, times: int, of: str | None, by: Client | None) -> Fault:
        if nth < 1 or times < 1:
            raise InvalidArgument(f"nth and times are counted from 1: nth={nth}, times={times} is never")
        if of is not None and of not in _COMMANDS:
            raise InvalidArgument(f"there is no command {of!r}: of= is one of {', '.join(sorted(_COMMANDS))}")
        fault = Fault(self, kind, range(nth, nth + times), of, None if by is None else by.session_id)
        with self._lock:
            self._armed.append(fault)
            if kind is FaultKind.HOLD_REPLY:
                self._held.append(fault)
        return fault

    def disarm(self, fault: Fault) -> None:
        """It does not happen any more."""
        with self._lock:
            if fault in self._armed:
                self._armed.remove(fault)

    def due(self, session: SessionRecord, message: Asked) -> Fault | None:
        """What happens at this request: one thing, even if several were meant to."""
        if not self._armed or session.session_id in self.ignored:
            return None
        with self._lock:
            found = [fault for fault in self._armed if fault.is_due(session, message)]
        if not found:
            return None
        found[0].happen()
        return found[0]

    def release(self) -> None:
        """Let go of every reply that is held."""
        with self._lock:
            held, self._held = self._held, []
        for fault in held:
            fault.release()

    def check(self) -> None:
        """Fail if anything that was armed has not happened."""
        for fault in [*self._armed]:
            fault.check()
