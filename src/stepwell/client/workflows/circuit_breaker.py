"""Circuit breakers: a strategy that fails repeatedly is not called for a while.

    closed ──3 failures in a row──▶ open ──a call after its pause──▶ half open
      ▲                              ▲ └──────other calls: refused       │ │
      │                              └──the trial failed, or said nothing┘ │
      └────────────────────the trial succeeded─────────────────────────────┘

While a breaker is half open, one call, the trial, is in progress and others are refused. The ending of a call counts
only in the state in which the call was admitted: a call from before the breaker opened says nothing about how the
strategy is now. A generation number, which counts changes of state, tells such calls apart.

The transitions are a table of pure data; `Breakers` adds the lock and one breaker for each strategy. The time is an
argument, from a monotonic clock, so that tests need not wait.
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
from stepwell.text import plural

_Failures = Annotated[int, Meta(ge=1, description="give the number of failures that open it, at least 1")]
_Pause = Annotated[float, Meta(gt=0, description="a pause is more than 0 seconds")]


@checked
class BreakerSettings(Struct, frozen=True, kw_only=True):
    """Settings of a breaker: it opens after `failures_max` failures in a row, and stays open for `pause_s`.

    The pause doubles with each failed trial, up to `pause_s_max`.
    """

    failures_max: _Failures = limits.BREAKER_FAILURES_MAX
    pause_s: _Pause = limits.BREAKER_PAUSE_SECONDS
    pause_s_max: _Pause = limits.BREAKER_PAUSE_SECONDS_MAX

    def __post_init__(self) -> None:
        check(self)
        if not self.pause_s <= self.pause_s_max < math.inf:
            raise InvalidArgument("pause_s is at most pause_s_max, and both are finite")


class BreakerState(StrEnum):
    """The state of a breaker: it admits all calls, none, or one trial."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerEvent(StrEnum):
    """An event of a breaker: a call that asks for admission, or the ending of an admitted one."""

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
"""The next state by event and state. An event that is missing here is impossible in that state: a call is refused."""


class Ending(StrEnum):
    """The ending of an admitted call; an abstained call says nothing about its strategy."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABSTAINED = "abstained"


class Breaker(Struct, frozen=True):
    """The present values of one breaker.

    `failures` are those in a row. `pause_s` is the latest pause, 0 until the breaker opens for the first time, and
    `until_s` its end. `generation` counts the changes of state.
    """

    state: BreakerState = _CLOSED
    failures: int = 0
    pause_s: float = 0.0
    until_s: float = 0.0
    generation: int = 0


def after(breaker: Breaker, event: BreakerEvent, settings: BreakerSettings, now_s: float) -> Breaker | None:
    """Return the breaker after an event; None if the event is impossible in its state."""
    state = TRANSITIONS.get((event, breaker.state))
    if state is None:
        return None
    generation = breaker.generation + (state is not breaker.state)
    match event:
        case BreakerEvent.SUCCEED:
            return Breaker(generation=generation)
        case BreakerEvent.FAIL:
            return replace(breaker, failures=breaker.failures + 1)
        case BreakerEvent.TRIP:
            pause_s = min(2 * breaker.pause_s or settings.pause_s, settings.pause_s_max)
            return Breaker(state, breaker.failures + 1, pause_s, now_s + pause_s, generation)
        case BreakerEvent.CALL | BreakerEvent.RETRY | BreakerEvent.ABSTAIN:
            return replace(breaker, state=state, generation=generation)


class Permit(NamedTuple):
    """An admitted call, known by the generation that admitted it. Its holder records its ending exactly once."""

    name: str
    generation: int


class Breakers:
    """One breaker for each strategy. Any thread may use it: a lock makes each call one step.

    It stores only breakers that differ from a new one, so that calls of strategies that work cost no memory.
    """

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}

    def state(self, name: str) -> BreakerState:
        """Return the state of a strategy's breaker. It becomes half open at the next call, not when its pause ends."""
        return self._breakers.get(name, _NEW).state

    def admit(self, name: str, now_s: float) -> Permit:
        """Return a permit for a call; raise `CircuitOpen`, with the seconds until the next trial, if it is refused."""
        with self._lock:
            breaker = self._breakers.get(name, _NEW)
            is_due = breaker.state is _OPEN and now_s >= breaker.until_s
            called = after(breaker, BreakerEvent.RETRY if is_due else BreakerEvent.CALL, self._settings, now_s)
            if called is None:
                raise _refusal(name, breaker, now_s)
            self._store(name, called)
            return Permit(name, called.generation)

    def record(self, permit: Permit, ending: Ending, now_s: float) -> None:
        """Record the ending of an admitted call. If the state has changed since its admission, it does not count."""
        with self._lock:
            breaker = self._breakers.get(permit.name, _NEW)
            if breaker.generation != permit.generation:
                return
            ended = after(breaker, self._event(breaker, ending), self._settings, now_s)
            assert ended is not None, "an open breaker admits no call"
            self._store(permit.name, ended)

    def _event(self, breaker: Breaker, ending: Ending) -> BreakerEvent:
        match ending:
            case Ending.SUCCEEDED:
                return BreakerEvent.SUCCEED
            case Ending.ABSTAINED:
                return BreakerEvent.ABSTAIN
            case Ending.FAILED:
                is_last = breaker.failures + 1 >= self._settings.failures_max
                return BreakerEvent.TRIP if is_last else BreakerEvent.FAIL

    def _store(self, name: str, breaker: Breaker) -> None:
        if breaker == _NEW:
            self._breakers.pop(name, None)
        else:
            self._breakers[name] = breaker


_NEW: Final = Breaker()


def _refusal(name: str, breaker: Breaker, now_s: float) -> CircuitOpen:
    """Return the error for a refused call; during a trial it says one second, so that callers do not poll faster."""
    retry_s = max(1, math.ceil(breaker.until_s - now_s))
    reason = f"strategy {name!r} has failed {plural(breaker.failures, 'time')} in a row"
    return CircuitOpen(f"{reason}: it is tried again in {retry_s} s", strategy=name, retry_s=retry_s)
