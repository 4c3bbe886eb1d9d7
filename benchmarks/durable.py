"""Records of 1 KiB that survive a loss of power, from several processes at once: who writes how many a second.

Everybody's record is acknowledged only when it has been flushed to the same disk. A peer that has two ways of doing
that takes part with both.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.table import Table

import stepwell as sw

BODY_BYTES = 1024
CLIENTS = 8
OUTSTANDING = 16
_spawn = get_context("spawn")

Rates = dict[str, list[float]]

_ONE, _MANY = "stepwell, one at a time", f"stepwell, {OUTSTANDING} outstanding"
_SQLITE, _SQLITE_ALONE = "SQLite, a commit each", "SQLite, a commit each, 1 client"
_REDIS, _REDIS_MANY = "Redis, appendfsync always", f"Redis, pipelines of {OUTSTANDING}"

WANTED = {
    (_ONE, _SQLITE): 3.0,
    (_ONE, _SQLITE_ALONE): 3.0,
    (_MANY, _SQLITE): 8.0,
    (_MANY, _SQLITE_ALONE): 8.0,
    (_ONE, _REDIS): 1.0,
}
"""What each has to reach, as a multiple of a peer's rate in the same run."""

Write = Callable[[Sequence[str]], None]
Open = Callable[[str], Write]
"""Given where it is, a function that writes records under these keys. It runs in the client's process."""


class Place(Struct, frozen=True):
    """A contender: where it writes, how, and from how many processes."""

    name: str
    open: Open
    where: str
    clients: int


class Writers:
    """Processes that write when they are told to."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(place.clients):
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=_serve, args=(place.open, place.where, number, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            pipe.recv()

    def write(self, seconds: float) -> float:
        """Records a second, with everybody writing for so long."""
        for pipe in self._pipes:
            pipe.send(seconds)
        rates: list[float] = [pipe.recv() for pipe in self._pipes]
        return sum(rates)

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join()


def _serve(open_place: Open, where: str, number: int, orders: Connection) -> None:
    write = open_place(where)
    written = 0
    orders.send(None)
    while True:
        try:
            seconds = orders.recv()
        except EOFError:
            return
        begun, before = time.perf_counter(), written
        while time.perf_counter() - begun < seconds:
            write([f"{number}-{written + index}" for index in range(OUTSTANDING)])
            written += OUTSTANDING
        orders.send((written - before) / (time.perf_counter() - begun))


def _body() -> bytes:
    """Each another one: equal bodies are stored once."""
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


def _to_sqlite(path: str) -> Write:
    db = sqlite3.connect(path, isolation_level=None, timeout=60)
    db.execute("PRAGMA synchronous = FULL")

    def write(keys: Sequence[str]) -> None:
        for key in keys:
            db.execute("INSERT INTO records VALUES (?, ?)", (f"{os.getpid()}-{key}", _body()))

    return write


def _to_redis(address: str) -> Write:
    import redis  # noqa: PLC0415 - only where there is one

    connection = redis.Redis(unix_socket_path=address)

    def write(keys: Sequence[str]) -> None:
        for key in keys:
            connection.set(key, _body())

    return write


def _to_redis_together(address: str) -> Write:
    import redis  # noqa: PLC0415 - only where there is one

    connection = redis.Redis(unix_socket_path=address)

    def write(keys: Sequence[str]) -> None:
        pipeline = connection.pipeline(transaction=False)
        for key in keys:
            pipeline.set(key, _body())
        pipeline.execute()

    return write


@contextmanager
def places() -> Generator[tuple[list[Place], dict[str, str]]]:
    """Everybody on the same disk, and why some could not take part."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-bench-")))
        budget = sw.TierBudget(hot_tokens=10_000_000)
        runtime = stack.enter_context(sw.Runtime.start(workers=0, data_dir=directory / "stepwell", budget=budget))
        database = directory / "peer.sqlite"
        with sqlite3.connect(database) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("CREATE TABLE records (key TEXT PRIMARY KEY, body BLOB NOT NULL)")
        db.close()
        found = [
            Place(_ONE, _to_stepwell, runtime.address, CLIENTS),
            Place(_MANY, _to_stepwell_together, runtime.address, CLIENTS),
            Place(_SQLITE, _to_sqlite, str(database), CLIENTS),
            Place(_SQLITE_ALONE, _to_sqlite, str(database), 1),
        ]
        try:
            stack.enter_context(_redis(directory))
            found.append(Place(_REDIS, _to_redis, f"{directory}/redis", CLIENTS))
            found.append(Place(_REDIS_MANY, _to_redis_together, f"{directory}/redis", CLIENTS))
        except (ImportError, OSError) as error:
            absent[_REDIS] = str(error)
        yield found, absent


@contextmanager
def _redis(directory: Path) -> Generator[None]:
    import redis  # noqa: PLC0415 - only where there is one

    server = shutil.which("redis-server")
    if server is None:
        raise FileNotFoundError("there is no redis-server: apt-get install redis-server")
    options = ["--port", "0", "--unixsocket", f"{directory}/redis", "--save", "", "--dir", str(directory)]
    durable = ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen([server, *options, *durable], stdout=subprocess.DEVNULL)
    try:
        connection = redis.Redis(unix_socket_path=f"{directory}/redis")
        until = time.monotonic() + 10
        while True:
            try:
                connection.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def measure(rounds: int, seconds: float) -> tuple[Rates, dict[str, str]]:
    """Records a second of everybody, in rounds in which each has its turn, after one that does not count."""
    with places() as (found, absent), ExitStack() as stack:
        contenders = [Writers(place) for place in found]
        for contender in contenders:
            stack.callback(contender.close)
        rates: Rates = {contender.name: [] for contender in contenders}
        for number in range(rounds + 1):
            for contender in contenders:
                rate = contender.write(seconds)
                if number:
                    rates[contender.name].append(rate)
    return rates, absent


def ratios(rates: Rates) -> dict[tuple[str, str], float]:
    """The median rate of each, as a multiple of each other's."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {(name, peer): medians[name] / medians[peer] for name in medians for peer in medians}


def report(rates: Rates, absent: dict[str, str]) -> None:
    """A table on the terminal."""
    against = ratios(rates)
    peers = [name for name in (_SQLITE, _SQLITE_ALONE, _REDIS, _REDIS_MANY) if name in rates]
    table = Table(
        title=f"{BODY_BYTES} bytes, flushed to disk, {CLIENTS} clients, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )
    table.add_column("contender")
    for column in ("median /s", "lowest /s", "highest /s", *(f"of {peer}" for peer in peers)):
        table.add_column(column, justify="right")
    for name, values in rates.items():
        cells = [statistics.median(values), min(values), max(values)]
        shares = [f"{against[name, peer]:.2f}" for peer in peers]
        table.add_row(name, *(f"{cell:,.0f}" for cell in cells), *shares)
    Console(width=140).print(table)
    for name, reason in absent.items():
        print(f"{name} takes no part: {reason}")


def run(rounds: int, seconds: float) -> tuple[Rates, list[str]]:
    """Measure and report; the rates, and who stays behind what it has to reach."""
    rates, absent = measure(rounds, seconds)
    report(rates, absent)
    against = ratios(rates)
    return rates, [
        f"{name} has {against[name, peer]:.2f} of the rate of {peer}, {at_least} is wanted"
        for (name, peer), at_least in WANTED.items()
        if (name, peer) in against and against[name, peer] < at_least
    ]
