"""`store` and `get` of 1 KiB: operations per second, latency, and the CPU time of the manager.

From 1, 4 and 16 client processes, one at a time and in batches of 16 and 100. Every body is new, and stays in memory;
another client reads it than the one that stored it. Each contender works for the same time in each round, and deletes
everything before the next one. Contenders whose processes are busy even while idle, as those of Ray and Dask are, have
their rounds after the others, which they would slow down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Final

from msgspec import Struct

from benchmarks.contenders.base import Contender
from benchmarks.contenders.registry import BASE_MANAGER, CONTENDERS, LOCKED, REDIS, STEPWELL, SYNC_MANAGER
from benchmarks.load import ClientPool, Effort
from benchmarks.section import Figures, Goal, Section
from benchmarks.services import Services
from benchmarks.works import Work

SECONDS: Final = 0.15
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


def measure(
    rounds: int, seconds: float, scale: Scale, contenders: Sequence[Contender]
) -> tuple[Efforts, dict[str, str]]:
    """Return the efforts of all contenders, in rounds after a warm-up, and the reasons of the absent ones."""
    efforts: Efforts = {}
    absent: dict[str, str] = {}
    for is_noisy in (False, True):
        with Services([each for each in contenders if each.is_noisy is is_noisy]) as services:
            for number in range(rounds + 1):
                for key, effort in _round(services, scale, seconds * (1 if number else WARM_UP)):
                    if number:
                        efforts.setdefault(key, []).append(effort)
        absent |= services.absent
    # The figures of a contender that failed later are not of all rounds.
    return {key: found for key, found in efforts.items() if key[1] not in absent}, absent


def _round(services: Services, scale: Scale, seconds: float) -> Iterator[tuple[tuple[Cell, str], Effort]]:
    """Run one round, in which each contender has its turn at each size, and yield what was measured."""
    for batch, clients in product(scale.batches, scale.clients):
        for contender in services.present():
            is_asked = (contender.has_batches or batch == 1) and not (contender.is_threaded and clients == scale.crowd)
            if is_asked:
                found = services.use(contender, ClientPool.turn, batch, clients, seconds) or {}
                yield from (((Cell(work, batch, clients), contender.name), each) for work, each in found.items())


def run(
    rounds: int,
    seconds: float = SECONDS,
    scale: Scale | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> list[Section]:
    """Return the tables. Each contender works for about `seconds` at each size of each work in each round."""
    scale = scale or Scale()
    efforts, absent = measure(rounds, seconds, scale, contenders)
    if REDIS in absent:
        absent[pipelined_redis(scale)] = absent[REDIS]
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
    pipelined = pipelined_redis(scale)
    wanted: tuple[tuple[Work, int, int, float, str], ...] = (
        ("get", 1, scale.alone, 20.0, SYNC_MANAGER),
        ("get", 1, scale.few, 15.0, SYNC_MANAGER),
        ("get", 1, scale.alone, 1.0, pipelined),
        ("get", 1, scale.few, 1.0, pipelined),
        ("store", 1, scale.alone, 2.0, SYNC_MANAGER),
        ("store", 1, scale.few, 1.2, SYNC_MANAGER),
        ("store", 1, scale.few, 1.2, REDIS),
        ("get", scale.large_batch, scale.few, 1.0, BASE_MANAGER),
        ("store", scale.large_batch, scale.few, 0.333, BASE_MANAGER),
        *(
            (work, scale.large_batch, scale.few, at_least, peer)
            for work in _WORKS
            for at_least, peer in ((8.0, SYNC_MANAGER), (1.0, REDIS), (1.0, LOCKED))
        ),
    )
    for work, batch, clients, at_least, peer in wanted:
        yield Goal(str(Cell(work, batch, clients)), STEPWELL, "at least", at_least, peer)


def pipelined_redis(scale: Scale) -> str:
    """Return the name under which Redis takes part in single calls with its rate in pipelines."""
    return f"{REDIS}, pipelines of {scale.large_batch}"


def _rates(efforts: Efforts, scale: Scale) -> Iterator[Figures]:
    """Return the rates. Some contenders are also listed with the rate that they have in another way.

    One without batches is among those with batches, with its rate of single calls. Redis in pipelines is among single
    calls, because a client that wants to be fast uses these.
    """
    unbatched = {name for cell, name in efforts} - {name for cell, name in efforts if cell.batch > 1}
    again = {
        (Cell(cell.work, batch, cell.clients), name): each
        for (cell, name), each in efforts.items()
        for batch in scale.batches[1:]
        if name in unbatched
    }
    pipelined = {
        (Cell(cell.work, 1, cell.clients), pipelined_redis(scale)): each
        for (cell, name), each in efforts.items()
        if name == REDIS and cell.batch == scale.large_batch
    }
    return _figures(efforts | again | pipelined, lambda effort: effort.rate)


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
        return cell.batch, cell.clients, _WORKS.index(cell.work), places.index(name.partition(", ")[0])

    for cell, name in sorted(efforts, key=place):
        values = tuple(each for each in map(value, efforts[cell, name]) if each is not None)
        if values and is_shown(cell):
            yield Figures(str(cell), name, values)
