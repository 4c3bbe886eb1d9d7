"""`store` and `get` of 1 KiB: operations per second, latency, and the CPU time of the manager.

From 1, 4 and 16 client processes, one at a time and in batches of 16 and 100. Every body is new, and stays in memory;
another client reads it than the one that stored it. Each contender works for the same time in each round, and deletes
everything before the next one. Contenders whose processes are busy even while idle, as those of Ray and Dask are, have
their rounds after the others, which they would slow down.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from msgspec import Struct

from benchmarks.contenders.base import Contender, Place
from benchmarks.contenders.registry import CONTENDERS, LOCKED, REDIS, STEPWELL, SYNC_MANAGER
from benchmarks.load import ClientPool, Effort, Work
from benchmarks.section import Figures, Goal, Section

SECONDS: Final = 0.2
WARM_UP: Final = 0.5  # the share of the seconds that the warm-up round takes
_WORKS: Final[tuple[Work, ...]] = ("store", "get")


class Scale(Struct, frozen=True, kw_only=True):
    """The numbers of clients, and the sizes of batches."""

    alone: int = 1
    few: int = 4
    crowd: int = 16
    batch: int = 16
    large_batch: int = 100

    @property
    def clients(self) -> tuple[int, ...]:
        return self.alone, self.few, self.crowd

    @property
    def batches(self) -> tuple[int, ...]:
        return 1, self.batch, self.large_batch


class Cell(Struct, frozen=True):
    """One work, as a row of the table names it."""

    work: Work
    batch: int
    clients: int

    def __str__(self) -> str:
        size = "one at a time" if self.batch == 1 else f"batches of {self.batch}"
        return f"{self.work}, {size}, {self.clients} client{'s' * (self.clients > 1)}"


Efforts = dict[tuple[Cell, str], list[Effort]]
"""The efforts by work and contender, one for each round."""


class Comparison:
    """The running services and clients of all contenders."""

    def __init__(self, contenders: Sequence[Contender]) -> None:
        self.absent: dict[str, str] = {}
        self.efforts: Efforts = {}
        self._contenders = contenders
        self._places: dict[str, Place] = {}
        self._pools: dict[str, ClientPool] = {}

    def start(self, directory: Path, stack: ExitStack) -> None:
        """Start the services of all contenders that can run."""
        for contender in self._contenders:
            try:
                self._places[contender.name] = stack.enter_context(contender.start(directory))
            except Exception as error:  # noqa: BLE001 - a contender that fails must not stop the others
                self._exclude(contender, error)
        stack.callback(self._close)  # clients end before their services

    def run_round(self, scale: Scale, seconds: float, *, counts: bool) -> None:
        """Run one round: each contender has its turn at each size."""
        for batch in scale.batches:
            for clients in scale.clients:
                for contender in self._contenders:
                    is_asked = contender.has_batches or batch == 1
                    if contender.is_threaded:
                        is_asked = is_asked and clients < scale.crowd
                    if is_asked and contender.name in self._places:
                        self._turn(contender, batch, clients, seconds, counts=counts)

    def _turn(self, contender: Contender, batch: int, clients: int, seconds: float, *, counts: bool) -> None:
        group = contender.name if contender.is_noisy else ""
        pool = self._pools.setdefault(group, ClientPool())
        try:
            found = pool.turn(contender, self._places[contender.name], batch, clients, seconds)
        except Exception as error:  # noqa: BLE001 - see `start`
            self._exclude(contender, error)
            self._pools.pop(group).close()
            return
        if counts:
            for work, effort in found.items():
                self.efforts.setdefault((Cell(work, batch, clients), contender.name), []).append(effort)

    def _exclude(self, contender: Contender, error: Exception) -> None:
        """Remove a contender that failed, with its figures, because they are not of all rounds."""
        self.absent[contender.name] = str(error) or type(error).__name__
        self._places.pop(contender.name, None)
        self.efforts = {key: efforts for key, efforts in self.efforts.items() if key[1] != contender.name}

    def _close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def measure(
    rounds: int, seconds: float, scale: Scale, contenders: Sequence[Contender]
) -> tuple[Efforts, dict[str, str]]:
    """Return the efforts of all contenders, in rounds after a warm-up, and the reasons of the absent ones."""
    efforts: Efforts = {}
    absent: dict[str, str] = {}
    for is_noisy in (False, True):
        comparison = Comparison([each for each in contenders if each.is_noisy is is_noisy])
        with tempfile.TemporaryDirectory(prefix="sw-bench-", ignore_cleanup_errors=True) as directory:
            with ExitStack() as stack:
                comparison.start(Path(directory), stack)
                for number in range(rounds + 1):
                    comparison.run_round(scale, seconds * (1 if number else WARM_UP), counts=number > 0)
        efforts |= comparison.efforts
        absent |= comparison.absent
    return efforts, absent


def run(
    rounds: int,
    seconds: float = SECONDS,
    scale: Scale | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> list[Section]:
    """Return the tables. Each contender works for about `seconds` at each size of each work in each round."""
    scale = scale or Scale()
    efforts, absent = measure(rounds, seconds, scale, contenders)
    return [
        Section(
            title="1 KiB: operations, all clients together",
            unit="/s",
            figures=tuple(_rates(efforts, scale)),
            goals=tuple(_rate_goals(scale)),
            absent=absent,
        ),
        Section(title="1 KiB: a call", unit="µs", figures=tuple(_latencies(efforts)), absent=absent),
        Section(
            title="1 KiB: the slowest in a hundred calls, as a share of 3 usual ones and 200 µs",
            unit="x",
            figures=tuple(_figures(efforts, _tail, lambda cell: cell.clients == scale.crowd)),
            goals=tuple(
                Goal(str(Cell(work, batch, scale.crowd)), STEPWELL, "at most", 1.0)
                for batch in scale.batches
                for work in _WORKS
            ),
            absent=absent,
        ),
        Section(
            title="1 KiB: CPU of the manager's or server's process, for an operation",
            unit="µs",
            figures=tuple(_figures(efforts, lambda effort: effort.cpu_us)),
            goals=tuple(
                Goal(str(Cell(work, scale.large_batch, scale.few)), STEPWELL, "at most", cpu_us)
                for work, cpu_us in zip(_WORKS, (8.0, 3.0), strict=True)
            ),
            absent=absent,
        ),
    ]


def _rate_goals(scale: Scale) -> Iterator[Goal]:
    wanted = (
        (1, scale.alone, 4.0, SYNC_MANAGER),
        (1, scale.few, 2.5, SYNC_MANAGER),
        (1, scale.few, 2.5, REDIS),
        (scale.large_batch, scale.few, 8.0, SYNC_MANAGER),
        (scale.large_batch, scale.few, 1.0, REDIS),
        (scale.large_batch, scale.few, 1.0, LOCKED),
    )
    for batch, clients, at_least, peer in wanted:
        for work in _WORKS:
            yield Goal(str(Cell(work, batch, clients)), STEPWELL, "at least", at_least, peer)


def _rates(efforts: Efforts, scale: Scale) -> Iterator[Figures]:
    """Return the rates. A contender without batches is listed among the others with its rate of single calls."""
    unbatched = {name for cell, name in efforts} - {name for cell, name in efforts if cell.batch > 1}
    again = {
        (Cell(cell.work, batch, cell.clients), name): each
        for (cell, name), each in efforts.items()
        for batch in scale.batches[1:]
        if name in unbatched
    }
    return _figures(efforts | again, lambda effort: effort.rate)


def _latencies(efforts: Efforts) -> Iterator[Figures]:
    for share, value in (("p50", _p50), ("p99", _p99)):
        for each in _figures(efforts, value):
            yield Figures(f"{each.work}, {share}", each.contender, each.values)


def _p50(effort: Effort) -> float:
    return effort.p50_us


def _p99(effort: Effort) -> float:
    return effort.p99_us


def _tail(effort: Effort) -> float:
    return effort.p99_us / (3 * effort.p50_us + 200)


def _figures(
    efforts: Efforts, value: Callable[[Effort], float | None], is_shown: Callable[[Cell], bool] = lambda _: True
) -> Iterator[Figures]:
    """Return the figures in the order of sizes, and then of contenders."""
    places = [each.name for each in CONTENDERS]

    def place(key: tuple[Cell, str]) -> tuple[int, int, int, int]:
        cell, name = key
        return cell.batch, cell.clients, _WORKS.index(cell.work), places.index(name)

    for cell, name in sorted(efforts, key=place):
        values = tuple(each for each in map(value, efforts[cell, name]) if each is not None)
        if values and is_shown(cell):
            yield Figures(str(cell), name, values)
