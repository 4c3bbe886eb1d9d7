"""Waiting on a condition, never for a time."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.005

PATIENCE_SECONDS = 60.0
"""Longer than anything takes on a busy machine; a condition that does not hold by then never will."""

_PRESSURE = Path("/proc/pressure/cpu")


def eventually(condition: Callable[[], object], timeout_s: float = PATIENCE_SECONDS) -> None:
    """Return as soon as the condition holds; fail, naming it, if it does not within the time."""
    deadline = time.monotonic() + timeout_s
    never = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {_name(condition)}")
        never.wait(POLL_SECONDS)


def promptly(condition: Callable[[], object], within_s: float) -> None:
    """Return as soon as the condition holds; fail if it does not within a time that is promised.

    Time in which a process had to wait for a core does not count, because no promise holds for a machine that does not
    run the process. On an idle machine this is the promise itself.
    """
    began_s, waited_s = time.monotonic(), _waited_for_a_core_s()
    never = threading.Event()
    while not condition():
        passed_s = time.monotonic() - began_s
        own_s = passed_s - (_waited_for_a_core_s() - waited_s)
        if own_s > within_s or passed_s > PATIENCE_SECONDS:
            raise AssertionError(f"not within {within_s:g} s, but still not after {passed_s:.1f} s: {_name(condition)}")
        never.wait(POLL_SECONDS)


def _waited_for_a_core_s() -> float:
    """For how long, of all time, some process of this machine was ready and had no core."""
    try:
        some = _PRESSURE.read_text().splitlines()[0]
    except OSError:  # this kernel does not count it
        return time.monotonic()
    return int(some.rpartition("total=")[2]) / 1e6


def _name(condition: Callable[[], object]) -> str:
    return getattr(condition, "__doc__", None) or repr(condition)
