"""A strategy that fails again and again is not asked for a while, then once, and then again if that went well."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import product

import pytest

from stepwell import limits
from stepwell.client.breaker import (
    TRANSITIONS,
    Breaker,
    BreakerEvent,
    Breakers,
    BreakerSettings,
    BreakerState,
    Ending,
    Permit,
    after,
)
from stepwell.errors import CircuitOpen, InvalidArgument

SETTINGS = BreakerSettings(failures_max=3, pause_s=30, pause_s_max=100)
NAME = "grep"
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

EXAMPLES = {
    CLOSED: Breaker(CLOSED, failures=2, turn=4),
    OPEN: Breaker(OPEN, failures=3, pause_s=30, until_s=1_030, turn=5),
    HALF_OPEN: Breaker(HALF_OPEN, failures=3, pause_s=30, until_s=1_030, turn=6),
}


def call(breakers: Breakers, now_s: float, ending: Ending) -> None:
    breakers.settle(breakers.admit(NAME, now_s), ending, now_s)


def opened(now_s: float = 1_000.0) -> Breakers:
    """One that has just opened."""
    breakers = Breakers(SETTINGS)
    for _ in range(SETTINGS.failures_max):
        call(breakers, now_s, Ending.FAILED)
    return breakers


def retry_s(breakers: Breakers, now_s: float) -> object:
    with pytest.raises(CircuitOpen) as refused:
        breakers.admit(NAME, now_s)
    return refused.value.details["retry_s"]


@pytest.mark.parametrize("event, state", [*product(BreakerEvent, BreakerState)])
def test_every_event_in_every_state(event: BreakerEvent, state: BreakerState) -> None:
    """What the table has happens, in a turn of its own if the state changes; what it does not have does not."""
    before = EXAMPLES[state]
    found = after(before, event, SETTINGS, 2_000.0)
    expected = TRANSITIONS.get((event, state))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (found.state, found.turn) == (expected, before.turn + (expected is not state))
        assert found.failures == failures_after(before, event)
        assert (found.pause_s, found.until_s) == pause_after(before, event)


def failures_after(before: Breaker, event: BreakerEvent) -> int:
    if event is BreakerEvent.SUCCEED:
        return 0
    return before.failures + (event in {BreakerEvent.FAIL, BreakerEvent.TRIP})


def pause_after(before: Breaker, event: BreakerEvent) -> tuple[float, float]:
    if event is BreakerEvent.TRIP:
        return (30, 2_030) if before.state is CLOSED else (60, 2_060)
    return (0, 0) if event is BreakerEvent.SUCCEED else (before.pause_s, before.until_s)


def test_every_state_can_be_left() -> None:
    """A strategy is never given up for good."""
    assert {source for (_, source), target in TRANSITIONS.items() if target is not source} == {*BreakerState}


def test_opens_after_failures_in_a_row() -> None:
    """The third opens it; a success in between begins the count anew, and what is nobody's fault does not."""
    breakers = Breakers(SETTINGS)
    endings = [Ending.FAILED, Ending.FAILED, Ending.SUCCEEDED, Ending.FAILED, Ending.ABSTAINED, Ending.FAILED]
    for ending in endings:
        call(breakers, 0.0, ending)
    assert breakers.state(NAME) is CLOSED
    call(breakers, 0.0, Ending.FAILED)
    assert breakers.state(NAME) is OPEN


def test_nobody_is_let_through_during_the_pause() -> None:
    """And each is told, in whole seconds, when it is over."""
    breakers = opened(1_000.0)
    assert [retry_s(breakers, now_s) for now_s in (1_000.0, 1_000.5, 1_029.9)] == [30, 30, 1]
    breakers.admit(NAME, 1_030.0)


def test_others_are_refused_until_the_trial_is_over() -> None:
    """However long that takes; then its success lets everybody through."""
    breakers = opened(1_000.0)
    trial = breakers.admit(NAME, 1_030.0)
    assert [retry_s(breakers, now_s) for now_s in (1_030.0, 9_999.0)] == [1, 1]
    breakers.settle(trial, Ending.SUCCEEDED, 9_999.0)
    assert [breakers.admit(NAME, 9_999.0) for _ in range(3)]


def test_pause_grows_with_each_trial_that_fails() -> None:
    """Twice as long each time, up to a maximum; from the beginning after a success."""
    breakers, now_s = opened(0.0), 0.0
    pauses: list[object] = []
    for ending in (Ending.FAILED, Ending.FAILED, Ending.FAILED, Ending.SUCCEEDED):
        pauses.append(retry_s(breakers, now_s))
        now_s += 100
        call(breakers, now_s, ending)
    assert pauses == [30, 60, 100, 100]
    for _ in range(SETTINGS.failures_max):
        call(breakers, now_s, Ending.FAILED)
    assert retry_s(breakers, now_s) == 30


def test_trial_that_says_nothing_makes_way_for_another() -> None:
    """At once: the pause is over already."""
    breakers = opened(1_000.0)
    breakers.settle(breakers.admit(NAME, 1_030.0), Ending.ABSTAINED, 1_031.0)
    assert breakers.state(NAME) is OPEN
    breakers.admit(NAME, 1_031.0)


@pytest.mark.parametrize("late", Ending)
def test_call_from_before_it_opened_counts_no_more(late: Ending) -> None:
    """Neither does its success close the breaker, nor does its failure prolong the pause, whenever it comes."""
    breakers = Breakers(SETTINGS)
    stragglers = [breakers.admit(NAME, 999.0) for _ in range(3)]
    for _ in range(3):
        call(breakers, 1_000.0, Ending.FAILED)
    breakers.settle(stragglers[0], late, 1_001.0)
    assert (breakers.state(NAME), retry_s(breakers, 1_001.0)) == (OPEN, 29)
    trial = breakers.admit(NAME, 1_030.0)
    breakers.settle(stragglers[1], late, 1_031.0)
    assert breakers.state(NAME) is HALF_OPEN
    breakers.settle(trial, Ending.SUCCEEDED, 1_032.0)
    breakers.settle(stragglers[2], late, 1_033.0)
    for _ in range(2):
        call(breakers, 1_034.0, Ending.FAILED)
    assert breakers.state(NAME) is CLOSED


def test_each_strategy_has_its_own() -> None:
    """And a name that never failed leaves nothing behind, so that names alone fill no memory."""
    breakers = opened()
    for number in range(100):
        for ending in (Ending.ABSTAINED, Ending.FAILED, Ending.SUCCEEDED):
            breakers.settle(breakers.admit(f"s{number}", 1_000.0), ending, 1_000.0)
    assert [*breakers._breakers] == [NAME]


class Meeting(dict[str, Breaker]):
    """Each thread that looks something up waits until another one does, too, for as long as it has patience."""

    def __init__(self, known: dict[str, Breaker], patience_s: float) -> None:
        super().__init__(known)
        self._both = threading.Barrier(2, timeout=patience_s)

    def get(self, name: str, default: object = None, /) -> Breaker:  # noqa: ARG002 - it is a new one
        found = super().get(name) or Breaker()
        with suppress(threading.BrokenBarrierError):
            self._both.wait()
        return found


@pytest.mark.parametrize(
    "lock, let_through, patience_s",
    [(threading.Lock, 1, 0.2), (nullcontext, 2, 60.0)],
    ids=["locked", "unsynchronised twin"],
)
def test_one_of_two_threads_has_the_trial(
    lock: Callable[[], AbstractContextManager[object]],
    let_through: int,
    patience_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both find the pause over; without the lock, both are let through."""
    breakers = opened(1_000.0)
    monkeypatch.setattr(breakers, "_lock", lock())
    monkeypatch.setattr(breakers, "_breakers", Meeting(breakers._breakers, patience_s))
    permits: list[Permit] = []

    def ask() -> None:
        with suppress(CircuitOpen):
            permits.append(breakers.admit(NAME, 1_030.0))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(permits) == let_through


def test_defaults_are_the_limits() -> None:
    """One place for defaults."""
    settings = BreakerSettings()
    assert (settings.failures_max, settings.pause_s, settings.pause_s_max) == (
        limits.BREAKER_FAILURES_MAX,
        limits.BREAKER_PAUSE_SECONDS,
        limits.BREAKER_PAUSE_SECONDS_MAX,
    )


@pytest.mark.parametrize(
    "failures_max, pause_s, pause_s_max",
    [(0, 1, 1), (1, 0, 1), (1, -1, 1), (1, 2, 1), (1, 1, float("inf")), (1, float("nan"), 1), (1, 1, float("nan"))],
)
def test_settings_are_valid(failures_max: int, pause_s: float, pause_s_max: float) -> None:
    """A breaker that never lets anybody through again, or always, is none."""
    with pytest.raises(InvalidArgument):
        BreakerSettings(failures_max=failures_max, pause_s=pause_s, pause_s_max=pause_s_max)
