"""Looking again before sleeping is done where it helps, and left out where it does not."""

from itertools import count

import pytest

from stepwell.transport.busy_wait import Spin


class _Polled:
    """Something to look at, which has nothing until it is told to."""

    def __init__(self) -> None:
        self.looks = 0
        self.found: list[str] = []

    def poll(self, timeout: int) -> list[str]:
        assert timeout == 0, "it does not sleep"
        self.looks += 1
        return self.found


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> _Polled:
    """While it is looked at, a clock goes on by a quarter of a second each time that somebody asks it."""
    clock = count(0, 0.25)
    monkeypatch.setattr("stepwell.transport.busy_wait.time.monotonic", lambda: next(clock))
    return _Polled()


def test_it_looks_until_the_moment_is_over(polled: _Polled) -> None:
    """And no longer."""
    assert Spin(1.0).poll_briefly(polled.poll) == []
    assert polled.looks == 3


def test_it_gives_what_it_finds(polled: _Polled) -> None:
    polled.found = ["it"]
    assert Spin(1.0).poll_briefly(polled.poll) == ["it"]
    assert polled.looks == 1


def test_no_moment_is_no_look(polled: _Polled) -> None:
    assert Spin(0).poll_briefly(polled.poll) == []
    assert polled.looks == 0


def test_misses_leave_it_out_ever_longer(polled: _Polled) -> None:
    """After each miss it is left out for twice as many waits, up to a bound; the first hit brings it back."""
    looking = Spin(1.0)
    gaps = []
    looking.poll_briefly(polled.poll)
    for _ in range(8):
        gap, looks = 0, polled.looks
        while looking.poll_briefly(polled.poll) == [] and polled.looks == looks:
            gap += 1
        gaps.append(gap)
    assert gaps == [1, 2, 4, 8, 16, 32, 64, 64]
    polled.found = ["it"]
    while not looking.poll_briefly(polled.poll):
        pass
    polled.found = []
    looks = polled.looks
    looking.poll_briefly(polled.poll)
    assert polled.looks > looks, "back after the hit"
    looks = polled.looks
    assert looking.poll_briefly(polled.poll) == []
    assert polled.looks == looks, "left out once, as after a first miss"
    looking.poll_briefly(polled.poll)
    assert polled.looks > looks
