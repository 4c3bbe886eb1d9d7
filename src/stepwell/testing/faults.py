"""Faults on purpose: what can happen to a request between a client and its manager.

A fault is armed with the number of the request at which it happens, counted from then on: `drop_reply(nth=3)` loses the
reply to the third request, `times=2` also the one to the fourth. Only requests with commands are counted, when they
reach the manager; one that is sent again counts again. With `of`, only requests with a command of that name count; with
`by`, only the requests of one client.

An armed fault has to happen: the end of the runtime, or of the fault's own `with` block, raises if it did not. So a
test cannot pass because its fault was never reached.
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
from stepwell.text import plural

Asked = Request | TransactionRequest | PartlyDecodedRequest
"""A message that has commands."""

_COMMANDS: Final = frozenset(each.__name__ for each in get_args(AnyCommand))


class FaultKind(enum.Enum):
    """The kind of a fault: see the methods of `Faults`."""

    DROP_REQUEST = "drop_request"
    DROP_REPLY = "drop_reply"
    HOLD_REPLY = "hold_reply"
    KILL_AT_REQUEST = "kill_at_request"
    KILL_AT_REPLY = "kill_at_reply"
    REFUSE = "refuse"


class Fault:
    """One armed fault. As a context manager it is disarmed at the end of the block, and has to have happened.

    The manager's thread counts requests and lets it happen; the test's threads wait for it and release it.
    """

    def __init__(self, faults: Faults, kind: FaultKind, window: range, of: str | None, by: str | None) -> None:
        self.kind = kind
        self.hits = 0
        """The number of times that it has happened."""
        self.is_released = False
        self._faults = faults
        self._window = window
        self._of = of
        self._by = by
        self._seen = 0
        self._hit = threading.Event()
        self._on_release: list[Callable[[], object]] = []

    def is_due(self, session: SessionRecord, message: Asked) -> bool:
        """Return True if the fault happens at this request. A request that the fault is meant for is counted."""
        if self._by is not None and session.session_id != self._by:
            return False
        if self._of is not None and all(type(each).__name__ != self._of for each in message.commands):
            return False
        self._seen += 1
        return self._seen in self._window

    def happen(self) -> None:
        """Record that the fault happens now; after the last time it is disarmed."""
        self.hits += 1
        if self.is_over:
            self._faults.disarm(self)
        self._hit.set()

    @property
    def is_over(self) -> bool:
        """True if the fault has happened as often as it should."""
        return self.hits == len(self._window)

    def wait(self, timeout_s: float = limits.FAULT_WAIT_SECONDS) -> None:
        """Wait until the fault has happened once. Raise `AssertionError` after the timeout."""
        if not self._hit.wait(timeout_s):
            raise AssertionError(f"{self} did not happen within {timeout_s:g} s")

    def release(self) -> None:
        """Release a held reply, and all further replies that the fault would hold."""
        self.is_released = True
        while self._on_release:
            self._on_release.pop()()

    def on_release(self, callback: Callable[[], object]) -> None:
        """Call a function on release; at once, if the fault is released already."""
        self._on_release.append(callback)
        if self.is_released:
            self.release()

    def check(self) -> None:
        """Raise `AssertionError` if the fault has not happened as often as it should."""
        if not self.is_over:
            raise AssertionError(
                f"{self} happened {plural(self.hits, 'time')}: the requests that it was meant for did not come"
            )

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
    """The faults of one runtime. Any thread may arm and release them; a lock protects the lists."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Fault] = []
        self._held: list[Fault] = []
        self.ignored: set[str] = set()
        """The sessions whose requests are not counted: those of the runtime's own worker."""

    def drop_request(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """Break the connection before the manager has seen the request. The client sends the request again, once.

        Twice in a row is `OutcomeUnknown`, and nothing has happened. With a data directory the client goes on trying.
        """
        return self._arm(FaultKind.DROP_REQUEST, nth, times, of, by)

    def drop_reply(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """Break the connection when the request has taken effect, and before the client knows.

        The client sends it again.

        It takes effect once all the same. Twice in a row is `OutcomeUnknown`, and the request has taken effect.
        """
        return self._arm(FaultKind.DROP_REPLY, nth, times, of, by)

    def hold_reply(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """Hold the reply until the fault's `release()`. Other requests are served meanwhile."""
        return self._arm(FaultKind.HOLD_REPLY, nth, times, of, by)

    def refuse(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """Answer `Busy`; the request has no effect."""
        return self._arm(FaultKind.REFUSE, nth, times, of, by)

    def kill_at_request(
        self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None
    ) -> Fault:
        """Kill the manager before it has applied the request, as `kill -9` would.

        With a data directory another manager takes its place, and clients go on; without one there is `RuntimeLost`.
        """
        return self._arm(FaultKind.KILL_AT_REQUEST, nth, times, of, by)

    def kill_at_reply(self, nth: int = 1, *, times: int = 1, of: str | None = None, by: Client | None = None) -> Fault:
        """Kill the manager when the request has taken effect and is committed, and before it is answered."""
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
        """Remove a fault: it does not happen any more."""
        with self._lock:
            if fault in self._armed:
                self._armed.remove(fault)

    def due(self, session: SessionRecord, message: Asked) -> Fault | None:
        """Return the fault that happens at this request, or None; one only, even if several are due."""
        if not self._armed or session.session_id in self.ignored:
            return None
        with self._lock:
            found = [fault for fault in self._armed if fault.is_due(session, message)]
        if not found:
            return None
        found[0].happen()
        return found[0]

    def release(self) -> None:
        """Release every held reply."""
        with self._lock:
            held, self._held = self._held, []
        for fault in held:
            fault.release()

    def check(self) -> None:
        """Raise `AssertionError` if an armed fault has not happened."""
        for fault in [*self._armed]:
            fault.check()
