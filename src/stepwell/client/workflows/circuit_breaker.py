"""Circuit breakers: a strategy that fails again and again is not asked for a while.

    closed ──3 failures in a row──▶ open ──a call after its pause──▶ half open
      ▲                              ▲ └──────other calls: refused       │ │
      │                              └──the trial failed, or said nothing┘ │
      └────────────────────the trial succeeded─────────────────────────────┘

While it is half open, one call is under way, the trial, and others are refused. Only what a call says that was let
through in the present state counts: one from before the breaker opened says nothing of how the strategy is now.

What time it is comes as an argument, from a clock that does not go back.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.checks import check, checked
from stepwell.errors import CircuitOpen, InvalidArgument

_Failures = Annotated[int, Meta(ge=1, description="give the number of failures that open it, at least 1")]
_Pause = Annotated[float, Meta(gt=0, description="a pause is more than 0 seconds")]


@checked
class BreakerSettings(Struct, frozen=True, kw_only=True):
    """When a breaker opens, and for how long."""

    failures_max: _Failures = limits.BREAKER_FAILURES_MAX  # in a row
    pause_s: _Pause = limits.BREAKER_PAUSE_SECONDS  # then twice as long after each trial that fails
    pause_s_max: _Pause = limits.BREAKER_PAUSE_SECONDS_MAX

    def __post_init__(self) -> None:
        check(self)
        if not self.pause_s <= self.pause_s_max < math.inf:
            raise InvalidArgument("pause_s is at most pause_s_max, and both are finite")


class BreakerState(StrEnum):
    """Whether calls are let through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(StrEnum):
    """What happens to a breaker."""

    CALL = "call"
    RETRY = "retry"  # a call after the pause
    SUCCEED = "succeed"
    FAIL = "fail"
    TRIP = "trip"  # a failure that is one too many
    ABSTAIN = "abstain"  # a call ended in a way that says nothing of the strategy


_CLOSED, _OPEN, _HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

TRANSITIONS: Final[Mapping[tuple[BreakerEvent, BreakerState], BreakerState]] = {
    (BreakerEvent.CALL, _CLOSED): _CLOSED,
    (BreakerEvent.RETRY, _OPEN): _HALF_OPEN,
    (BreakerEvent.SUCCEED, _CLOSED): _CLOSED,
    (BreakerEvent.SUCCEED, _HALF_OPEN): _CLOSED,
    (BreakerEvent.FAIL, _CLOSED): _CLOSED,
    (BreakerEvent.TRIP, _CLOSED): _OPEN,
    (BreakerEvent.TRIP, _HALF_OPEN): _OPEN,
    (BreakerEvent.ABSTAIN, _CLOSED): _CLOSED,
    (BreakerEvent.ABSTAIN, _HALF_OPEN): _OPEN,  # whose pause is over: the next call is the trial
}
"""What is not in it does not happen: a call is refused."""


class Ending(StrEnum):
    """How a call ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABSTAINED = "abstained"


class Breaker(Struct, frozen=True):
    """One breaker as it is now."""

    state: BreakerState = _CLOSED
    failures: int = 0  # in a row
    pause_s: float = 0.0  # the last one; 0 until it opens
    until_s: float = 0.0  # the end of that
    turn: int = 0  # counts the changes of state: a call is known by the one in which it was let through


def after(breaker: Breaker, event: BreakerEvent, settings: BreakerSettings, now_s: float) -> Breaker | None:
    """The breaker after an event; None if that cannot happen to it."""
    state = TRANSITIONS.get((event, breaker.state))
    if state is None:
        return None
    turn = breaker.turn + (state is not breaker.state)
    match event:
        case BreakerEvent.SUCCEED:
            return Breaker(turn=turn)
        case BreakerEvent.FAIL:
            return replace(breaker, failures=breaker.failures + 1)
        case BreakerEvent.TRIP:
            pause_s = min(2 * breaker.pause_s or settings.pause_s, settings.pause_s_max)
            return Breaker(state, breaker.failures + 1, pause_s, now_s + pause_s, turn)
        case BreakerEvent.CALL | BreakerEvent.RETRY | BreakerEvent.ABSTAIN:
            return replace(breaker, state=state, turn=turn)


class Permit(NamedTuple):
    """A call that was let through. Whoever has it says, once, how the call ended."""

    name: str
    turn: int


class Breakers:
    """One for each name. Safe from any number of threads."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}  # of strategies that have failed; nobody can fill it with mere names

    def state(self, name: str) -> BreakerState:
        """What a strategy's breaker is; it opens half only when somebody calls."""
        return self._breakers.get(name, _NEW).state

    def admit(self, name: str, now_s: float) -> Permit:
        """Let a call through, or raise `CircuitOpen`."""
        with self._lock:
            breaker = self._breakers.get(name, _NEW)
            is_due = breaker.state is _OPEN and now_s >= breaker.until_s
            called = after(breaker, BreakerEvent.RETRY if is_due else BreakerEvent.CALL, self._settings, now_s)
            if called is None:
                raise _refusal(name, breaker, now_s)
            self._keep(name, called)
            return Permit(name, called.turn)

    def settle(self, permit: Permit, ending: Ending, now_s: float) -> None:
        """A call that was let through is over."""
        with self._lock:
            breaker = self._breakers.get(permit.name, _NEW)
            if breaker.turn != permit.turn:
                return
            settled = after(breaker, self._event(breaker, ending), self._settings, now_s)
            assert settled is not None, "an open breaker lets no call through"
            self._keep(permit.name, settled)

    def _event(self, breaker: Breaker, ending: Ending) -> BreakerEvent:
        match ending:
            case Ending.SUCCEEDED:
                return BreakerEvent.SUCCEED
            case Ending.ABSTAINED:
                return BreakerEvent.ABSTAIN
            case Ending.FAILED:
                is_last = breaker.failures + 1 >= self._settings.failures_max
                return BreakerEvent.TRIP if is_last else BreakerEvent.FAIL

    def _keep(self, name: str, breaker: Breaker) -> None:
        if breaker == _NEW:
            self._breakers.pop(name, None)
        else:
            self._breakers[name] = breaker


_NEW: Final = Breaker()


def _refusal(name: str, breaker: Breaker, now_s: float) -> CircuitOpen:
    """A trial that is under way may be over at any moment; asking each moment does not help."""
    retry_s = max(1, math.ceil(breaker.until_s - now_s))
    said = f"strategy {name!r} has failed {breaker.failures} times in a row"
    return CircuitOpen(f"{said}: it is tried again in {retry_s} s", strategy=name, retry_s=retry_s)
