"""Works on fragments of 1 KiB that exist: reading, replacing, both mixed, beside busy processes and beside a writer.

Each contender is loaded once, and may finish what it does in the background after that. Then its clients use the loaded
keys in a random order. In each round each contender has its turn at each work, under the same load of other processes,
which begins and ends with the work. Nothing is pinned to a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.busy import busy_processes
from benchmarks.contenders.base import Contender
from benchmarks.contenders.registry import BASE_MANAGER, CONTENDERS, REDIS, STEPWELL, SYNC_MANAGER
from benchmarks.contenders.stepwell_client import connect_with_scope
from benchmarks.load import Beside, ClientPool, Effort, Pace
from benchmarks.section import Figures, Goal, Section
from benchmarks.services import Services
from benchmarks.works import Keys, Work

SECONDS: Final = 0.2
WARM_UP: Final = 0.4  # the share of the seconds that the warm-up round takes
REPLACED_PER_SECOND: Final = 10_000  # by the other process
_TICKS_PER_SECOND: Final = 1_000
_PACE: Final = Pace(REPLACED_PER_SECOND // _TICKS_PER_SECOND, 1_000_000_000 // _TICKS_PER_SECOND)
PACE_MIN: Final = 0.95 * REPLACED_PER_SECOND
_PEERS: Final = (STEPWELL, SYNC_MANAGER, REDIS)
_BATCHED: Final = (STEPWELL, BASE_MANAGER, REDIS)
_HOT, _WARM = "k", "w"  # the owners of the loaded keys

Compared = tuple[float, str]
"""The least multiple of a peer that is wanted, and the peer."""


class Scale(Struct, frozen=True, kw_only=True):
    """The numbers of clients and of fragments, and the size of a batch."""

    few: int = 4
    crowd: int = 16
    batch: int = 100
    fragments: int = 10_000
    many_fragments: int = 1_000_000


class Cell(Struct, frozen=True, kw_only=True):
    """One work under one load, as a row of the table names it."""

    work: Work
    clients: int = 1
    batch: int = 1
    busy: int = 0  # processes that use the processors beside the clients
    is_warm: bool = False
    is_scoped: bool = False  # stepwell's session sees one project only
    contenders: tuple[str, ...] = _PEERS
    wanted: tuple[Compared, ...] = ()

    def __str__(self) -> str:
        parts = [
            "90 % get and 10 % replacing store" if self.work == "mix" else self.work,
            "of warm fragments" * self.is_warm,
            "in a session with a project scope" * self.is_scoped,
            "one at a time" if self.batch == 1 else f"batches of {self.batch}",
            f"{self.clients} client{'s' * (self.clients > 1)}",
            f"beside {self.busy} busy process{'es' * (self.busy > 1)}" if self.busy else "",
        ]
        return ", ".join(filter(None, parts))


class Topic(Struct, frozen=True):
    """Works that use the same services and are in the same table."""

    title: str
    cells: tuple[Cell, ...]


Efforts = dict[tuple[Cell, str], list[Effort]]
"""The efforts by cell and contender, one for each round."""


def other_works(scale: Scale) -> tuple[Cell, ...]:
    few, crowd = scale.few, scale.crowd
    return (
        Cell(work="replacing store", wanted=((2.0, SYNC_MANAGER),)),
        Cell(work="replacing store", clients=few, wanted=((1.2, SYNC_MANAGER), (1.2, REDIS))),
        Cell(work="replacing store", clients=crowd),
        Cell(
            work="replacing store",
            clients=few,
            batch=scale.batch,
            contenders=_BATCHED,
            wanted=((1.0, REDIS), (0.333, BASE_MANAGER)),
        ),
        Cell(work="mix"),
        Cell(work="mix", clients=few, wanted=((8.0, SYNC_MANAGER),)),
        Cell(work="mix", clients=crowd),
        Cell(work="store with metadata"),
        Cell(work="get of an absent id"),
        Cell(work="get", is_warm=True),
        Cell(work="get", is_scoped=True),
        Cell(work="replacing store", is_scoped=True),
    )


def beside_busy(scale: Scale) -> tuple[Cell, ...]:
    goals: tuple[tuple[Work, float], ...] = (("get", 10.0), ("replacing store", 1.0))
    return tuple(
        Cell(work=work, clients=clients, busy=busy, wanted=((at_least, SYNC_MANAGER),))
        for busy in (1, 2)
        for work, at_least in goals
        for clients in (1, scale.few)
    )


def run(
    rounds: int,
    seconds: float = SECONDS,
    scale: Scale | None = None,
    contenders: Sequence[Contender] = CONTENDERS,
) -> list[Section]:
    """Return the tables. Each contender works for about `seconds` in each work in each round."""
    scale = scale or Scale()
    used = [each for each in contenders if each.name in {*_PEERS, *_BATCHED}]
    topics = (
        Topic("1 KiB: replacing, mixed and other works, all clients together", other_works(scale)),
        Topic("1 KiB: beside busy processes, all clients together", beside_busy(scale)),
    )
    efforts, absent = _measure(rounds, seconds, scale, used, [cell for topic in topics for cell in topic.cells])
    beside_writer = _beside_writer(rounds, seconds, scale, used)
    latencies = (
        Figures(f"{cell}, {share}", name, tuple(map(value, found)))
        for share, value in _LATENCIES
        for (cell, name), found in efforts.items()
    )
    return [
        *(_rates(topic, efforts, absent) for topic in topics),
        *beside_writer,
        Section(title="1 KiB: a call in these works", unit="µs", figures=tuple(latencies), absent=absent),
    ]


_LATENCIES: Final[tuple[tuple[str, Callable[[Effort], float]], ...]] = (
    ("p50", lambda effort: effort.p50_us),
    ("p99", lambda effort: effort.p99_us),
)


def _rates(topic: Topic, efforts: Efforts, absent: dict[str, str]) -> Section:
    return Section(
        title=topic.title,
        unit="/s",
        figures=tuple(
            Figures(str(cell), name, tuple(each.rate for each in found))
            for (cell, name), found in efforts.items()
            if cell in topic.cells
        ),
        goals=tuple(
            Goal(str(cell), STEPWELL, "at least", at_least, peer)
            for cell in topic.cells
            for at_least, peer in cell.wanted
        ),
        absent=absent,
    )


def _measure(
    rounds: int, seconds: float, scale: Scale, contenders: Sequence[Contender], cells: Sequence[Cell]
) -> tuple[Efforts, dict[str, str]]:
    """Return the efforts of all cells, in rounds after a warm-up, and the reasons of the absent contenders."""
    efforts: Efforts = {}
    with Services(contenders) as services:
        for owner in (_HOT, _WARM):
            for contender in services.present():
                services.use(contender, ClientPool.load, Keys(owner, scale.fragments), is_warm=owner == _WARM)
        for number in range(rounds + 1):
            share = 1 if number else WARM_UP
            for cell in cells:
                with busy_processes(cell.busy):
                    for name, effort in _turns(services, cell, scale, share * seconds, number):
                        if number:
                            efforts.setdefault((cell, name), []).append(effort)
        absent = services.absent
    return {key: found for key, found in efforts.items() if key[1] not in absent}, absent


def _turns(services: Services, cell: Cell, scale: Scale, seconds: float, number: int) -> Iterator[tuple[str, Effort]]:
    """Run a cell for all of its contenders, and yield their efforts."""
    if cell.work in {"store with metadata", "get of an absent id"}:
        keys = [Keys(f"{cell.work}-{number}-{client}") for client in range(cell.clients)]
    else:
        owner = _WARM if cell.is_warm else _HOT
        keys = [Keys(owner, scale.fragments, seed=client) for client in range(cell.clients)]
    for contender in services.present():
        if contender.name not in cell.contenders:
            continue
        used = _with_scope(contender) if cell.is_scoped and contender.name == STEPWELL else contender
        done = services.use(used, ClientPool.run, cell.work, keys, seconds, batch=cell.batch)
        if done:
            yield contender.name, done.effort


def _with_scope(contender: Contender) -> Contender:
    """Return a contender that uses the same service by other sessions."""
    return replace(contender, variant="scope", connect=connect_with_scope)


def _beside_writer(rounds: int, seconds: float, scale: Scale, contenders: Sequence[Contender]) -> list[Section]:
    """Return the rates of one reader of very many fragments, and those of the process that replaces fragments."""
    keys = Keys(_HOT, scale.many_fragments)
    read, written = (replace(keys, seed=seed, is_zipf=True) for seed in (0, 1))
    beside = Beside("replacing store", written, _PACE)
    work = "get, one at a time, 1 client"
    reads: dict[str, list[float]] = {}
    replaced: dict[str, list[float]] = {}
    with Services([each for each in contenders if each.name in _PEERS]) as services:
        for contender in services.present():
            services.use(contender, ClientPool.load, keys)
        for number in range(rounds + 1):
            for contender in services.present():
                done = services.use(contender, ClientPool.run, "get", [read], 2 * seconds, beside=beside)
                if done and number:
                    reads.setdefault(contender.name, []).append(done.effort.rate)
                    replaced.setdefault(contender.name, []).append(done.rate_beside)
        absent = services.absent
    title = f"1 KiB: {scale.many_fragments:,} fragments, zipf keys"
    rows = (
        (f"{title}, while another process replaces {REPLACED_PER_SECOND:,} a second", work, reads),
        (f"{title}: the process that replaces", "replacing store, at a pace", replaced),
    )
    goals = Goal(work, STEPWELL, "at least", 10.0, SYNC_MANAGER), Goal(rows[1][1], STEPWELL, "at least", PACE_MIN)
    return [
        Section(
            title=title,
            unit="/s",
            figures=tuple(Figures(row, name, tuple(each)) for name, each in values.items() if name not in absent),
            goals=(goal,),
            absent=absent,
        )
        for (title, row, values), goal in zip(rows, goals, strict=True)
    ]
