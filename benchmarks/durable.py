"""Durable records of 1 KiB from several processes at once: records per second of each contender.

At `disk` each contender acknowledges a record only when it has been flushed to the same disk, so that it survives a
loss of power. At `process` the kernel has it, and it survives the end of every process: SQLite does that
with `synchronous = NORMAL`, Redis with `appendfsync no`. A peer that has two ways of writing takes part with both.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal

import stepwell as sw
from benchmarks import redis_server
from benchmarks.client_processes import ClientProcesses, Open, Workload
from benchmarks.section import CannotRun, Figures, Goal, Section, Turn, in_rounds

BODY_BYTES: Final = 1024
CLIENTS: Final = (1, 8, 32)
OUTSTANDING: Final = 16

Level = Literal["disk", "process"]
Write = Callable[[Sequence[str]], None]

_ONE, _MANY = "stepwell, one at a time", f"stepwell, {OUTSTANDING} outstanding"
_SQLITE, _SQLITE_ALONE = "SQLite, a commit each", "SQLite, a commit each, 1 client"
_REDIS, _REDIS_MANY = "Redis, one at a time", f"Redis, pipelines of {OUTSTANDING}"

_SYNCHRONOUS: Final[dict[Level, str]] = {"disk": "FULL", "process": "NORMAL"}
_APPENDFSYNC: Final[dict[Level, str]] = {"disk": "always", "process": "no"}

GOALS = tuple(
    Goal("8 clients", contender, "at least", value, peer)
    for contender, peer, value in (
        (_ONE, _SQLITE, 1.8),
        (_ONE, _SQLITE_ALONE, 1.8),
        (_MANY, _SQLITE, 6.0),
        (_MANY, _SQLITE_ALONE, 6.0),
        (_ONE, _REDIS, 1.0),
    )
)
"""The goals at `disk`, as multiples of a peer's rate in the same run."""


def _writing(open_place: Callable[..., Write], where: tuple[str, ...], number: int) -> Workload:
    """Return a workload that writes for some seconds and returns the records per second."""
    write = open_place(*where)
    written = 0

    def workload(seconds: float) -> float:
        nonlocal written
        begun, before = time.perf_counter(), written
        while True:
            write([f"{number}-{written + index}" for index in range(OUTSTANDING)])
            written += OUTSTANDING
            taken = time.perf_counter() - begun
            if taken >= seconds:
                return (written - before) / taken

    return workload


def _body() -> bytes:
    """Return a new body each time, because equal bodies are stored once."""
    return os.urandom(BODY_BYTES)


def _fragment(key: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=key, project="p", body=_body(), tokens=1)


def _to_stepwell(address: str) -> Write:
    tiers = sw.connect(address).tiers

    def write(keys: Sequence[str]) -> None:
        for key in keys:
            tiers.store(_fragment(key))

    return write


def _to_stepwell_together(address: str) -> Write:
    client = sw.connect(address)

    def write(keys: Sequence[str]) -> None:
        with client.batch() as batch:
            stored = [batch.tiers.store(_fragment(f"m{key}")) for key in keys]
        for each in stored:
            each.result()

    return write


def _to_sqlite(path: str, synchronous: str) -> Write:
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute(f"PRAGMA synchronous = {synchronous}")

    def write(keys: Sequence[str]) -> None:
        for key in keys:
            db.execute("INSERT INTO records VALUES (?, ?)", (key, _body()))

    return write


def _to_redis(address: str) -> Write:
    connection = redis_server.connected(address)

    def write(keys: Sequence[str]) -> None:
        for key in keys:
            connection.set(key, _body())

    return write


def _to_redis_together(address: str) -> Write:
    connection = redis_server.connected(address)

    def write(keys: Sequence[str]) -> None:
        pipeline = connection.pipeline(transaction=False)
        for key in keys:
            pipeline.set(f"m{key}", _body())
        pipeline.execute()

    return write


@contextmanager
def places(level: Level) -> Generator[tuple[dict[str, Open], dict[str, str]]]:
    """Yield the writers of all contenders on the same disk, and the reasons of the absent ones."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-bench-")))
        runtime = stack.enter_context(
            sw.Runtime.start(
                workers=0,
                data_dir=directory / "stepwell",
                durability=level,
                budget=sw.TierBudget(hot_tokens=10_000_000),
            )
        )
        database = directory / "peer.sqlite"
        with closing(sqlite3.connect(database)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE records (key TEXT PRIMARY KEY, body BLOB NOT NULL)")
        found: dict[str, Open] = {
            _ONE: partial(_writing, _to_stepwell, (runtime.address,)),
            _MANY: partial(_writing, _to_stepwell_together, (runtime.address,)),
            _SQLITE: partial(_writing, _to_sqlite, (str(database), _SYNCHRONOUS[level])),
        }
        try:
            durable = ("--appendonly", "yes", "--appendfsync", _APPENDFSYNC[level])
            address, _ = stack.enter_context(redis_server.running(directory, *durable))
        except CannotRun as error:
            absent |= dict.fromkeys((_REDIS, _REDIS_MANY), str(error))
        else:
            found[_REDIS] = partial(_writing, _to_redis, (address,))
            found[_REDIS_MANY] = partial(_writing, _to_redis_together, (address,))
        yield found, absent


def run(rounds: int, seconds: float = 2.0, clients: Sequence[int] = CLIENTS) -> list[Section]:
    """Return the records per second of all clients together, for each durability."""
    return [_section(rounds, seconds, clients, level) for level in ("disk", "process")]


def _section(rounds: int, seconds: float, clients: Sequence[int], level: Level) -> Section:
    with places(level) as (found, absent), closing(ClientProcesses(max(clients), found)) as processes:
        turns: dict[tuple[str, str], Turn] = {
            (_work(count), name): partial(_rate, processes, name, seconds, count) for count in clients for name in found
        }
        figures, failed = in_rounds(rounds, turns)
    whose = f"SQLite synchronous {_SYNCHRONOUS[level]}, Redis appendfsync {_APPENDFSYNC[level]}"
    return Section(
        title=f"Records of {BODY_BYTES:,} bytes, durability {level}; {whose}",
        unit="/s",
        figures=(*figures, *(_alone(figures) if 8 in clients else ())),
        goals=GOALS if level == "disk" else (),
        absent=absent | failed,
    )


def _work(clients: int) -> str:
    return "1 client" if clients == 1 else f"{clients} clients"


def _rate(processes: ClientProcesses, name: str, seconds: float, clients: int) -> float:
    return sum(processes.do(name, seconds, clients))


def _alone(figures: Iterable[Figures]) -> Iterable[Figures]:
    """Return SQLite's figures with one client, at which it is fastest because it has one writer at a time."""
    for each in figures:
        if (each.work, each.contender) == (_work(1), _SQLITE):
            yield Figures(GOALS[0].work, _SQLITE_ALONE, each.values)
