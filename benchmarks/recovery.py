"""The start time of a manager and the size of its directory, with many fragments and after many events.

What is timed is `Runtime.start`, from the call until the manager serves; that of an empty directory stands beside it.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import stepwell as sw
from benchmarks.fill import store_all
from benchmarks.section import Figures, Goal, Section, Turn, in_rounds

FRAGMENTS: Final = 100_000
EVENTS: Final = 1_000_000
REPLACED: Final = 500  # fragments that all of the events are of
RECOVERY_SECONDS_MAX: Final = 2.0
GROWTH_MAX: Final = 1.25
"""The growth that the second half of the events may cause, in the size of the directory and the time to open it."""

_OPENED, _SIZE = "it is opened", "its size"
_BUDGET = sw.TierBudget(hot_tokens=10_000_000)


def run(rounds: int, fragments: int = FRAGMENTS, events: int = EVENTS) -> list[Section]:
    """Measure directories: empty, with many fragments, after half of the events and after all of them."""
    full = f"stepwell, {fragments:,} fragments"
    half, whole = (f"stepwell, {count:,} events" for count in (events // 2, events // 2 * 2))
    with tempfile.TemporaryDirectory(prefix="sw-bench-") as parent:
        made = {name: Path(parent) / str(number) for number, name in enumerate(("stepwell, empty", full, half, whole))}
        _write(made[full], range(fragments))
        _replace(made[half], events // 2)
        shutil.copytree(made[half], made[whole])
        _replace(made[whole], events // 2)
        turns: dict[tuple[str, str], Turn] = {
            (_OPENED, name): partial(_open, directory) for name, directory in made.items()
        }
        seconds, _ = in_rounds(rounds, turns, warm_up=False)  # a new process is never warm
        sizes = tuple(Figures(_SIZE, name, (_mebibytes(directory),)) for name, directory in made.items())
    slower, larger = (Goal(work, whole, "at most", GROWTH_MAX, half) for work in (_OPENED, _SIZE))
    in_time = Goal(_OPENED, full, "at most", RECOVERY_SECONDS_MAX)
    title = "A data directory"
    return [
        Section(title=title, unit="s", figures=seconds, goals=(in_time, slower)),
        Section(title=title, unit="MiB", figures=sizes, goals=(larger,)),
    ]


def _write(directory: Path, numbers: Iterable[int]) -> None:
    with sw.Runtime.start(workers=0, data_dir=directory, durability="process", budget=_BUDGET) as runtime:
        with runtime.client(projects=["p"]) as client:
            salted = (
                sw.Fragment(fragment_id=f"f{number}", body=f"{time.monotonic_ns()}", tokens=1) for number in numbers
            )
            store_all(client, salted)


def _replace(directory: Path, events: int) -> None:
    _write(directory, (number % REPLACED for number in range(events)))


def _open(directory: Path) -> float:
    begun = time.perf_counter()
    with sw.Runtime.start(workers=0, data_dir=directory, durability="process"):
        return time.perf_counter() - begun


def _mebibytes(directory: Path) -> float:
    """Return the size of all files of a directory."""
    return sum(path.stat().st_size for path in directory.iterdir()) / (1 << 20)
