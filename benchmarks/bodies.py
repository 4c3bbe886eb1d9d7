"""One large body, read by several processes at once: what it costs each of them to have all of it in its hands.

A read ends when every page of the body has been touched: whoever only promises the bytes has not read them.
"""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, MutableMapping
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.table import Table

import stepwell as sw

BODY_BYTES = 1024 * 1024
READERS = 4
_PAGE = 4096
_spawn = get_context("spawn")

Seconds = dict[str, list[float]]

_MMAP, _SYNC, _REDIS = "plain mmap of a file", "SyncManager dict", "Redis GET"
_PEERS = (_MMAP, _SYNC, _REDIS)

WANTED = {
    ("stepwell, get", _SYNC): 0.1,
    ("stepwell, in a view", _SYNC): 0.1,
    ("stepwell, in a view", _REDIS): 0.1,
    ("stepwell, in a view", _MMAP): 2.0,
}
"""What a read may cost, as a multiple of a peer's in the same run. A `get` is a request, and counts as an access."""

Where = str | MutableMapping[str, bytes]
Read = Callable[[], memoryview | bytes]
Open = Callable[[Where], Read]
"""Given where the body is, a function that reads it. It runs in the reader's process."""


class Place(Struct, frozen=True):
    """A contender: where its body is, and how it is read there."""

    name: str
    open: Open
    where: Where


class Readers:
    """Processes that read when they are told to."""

    def __init__(self, place: Place) -> None:
        self.name = place.name
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for _ in range(READERS):
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=_serve, args=(place.open, place.where, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def read(self, times: int) -> float:
        """Seconds for one read, with everybody reading."""
        begun = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(times)
        for pipe in self._pipes:
            pipe.recv()
        return (time.perf_counter() - begun) / (times * READERS)

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join()


def _serve(open_body: Open, where: Where, orders: Connection) -> None:
    read = open_body(where)
    while True:
        try:
            times = orders.recv()
        except EOFError:
            return
        for _ in range(times):
            with memoryview(read()) as body:
                assert len(body) == BODY_BYTES
                bytes(body[::_PAGE])
        orders.send(None)


def _of_stepwell(address: Where) -> Read:
    tiers = sw.connect(str(address), projects=["p"]).tiers
    return lambda: tiers.get("body").body


def _of_a_view(address: Where) -> Read:
    view = sw.connect(str(address), projects=["p"]).view()

    def read() -> memoryview:
        fragment = view.get("body")
        assert fragment is not None
        return fragment.body

    return read


def _of_sync_manager(where: Where) -> Read:
    assert not isinstance(where, str)
    return lambda: where["body"]


def _of_redis(address: Where) -> Read:
    import redis  # noqa: PLC0415 - only where there is one

    connection = redis.Redis(unix_socket_path=str(address))

    def read() -> bytes:
        body = connection.get("body")
        assert isinstance(body, bytes)
        return body

    return read


def _of_a_file(path: Where) -> Read:
    def read() -> memoryview:
        with open(str(path), "rb") as file:  # noqa: PTH123 - a Path would be timed too
            return memoryview(mmap.mmap(file.fileno(), BODY_BYTES, prot=mmap.PROT_READ))

    return read


@contextmanager
def places() -> Generator[tuple[list[Place], dict[str, str]]]:
    """Everybody with the same body, and why some could not take part."""
    body = os.urandom(BODY_BYTES)
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-bench-"))
        file = Path(directory) / "body"
        file.write_bytes(body)
        runtime = stack.enter_context(sw.Runtime.start(workers=0))
        client = stack.enter_context(runtime.client(projects=["p"]))
        client.tiers.store(sw.Fragment(fragment_id="body", body=body, tokens=1))
        shared = stack.enter_context(_spawn.Manager()).dict()
        shared["body"] = body
        found = [
            Place(_MMAP, _of_a_file, str(file)),
            Place("stepwell, get", _of_stepwell, runtime.address),
            Place("stepwell, in a view", _of_a_view, runtime.address),
            Place(_SYNC, _of_sync_manager, shared),
        ]
        try:
            stack.enter_context(_redis(f"{directory}/redis", body))
            found.append(Place(_REDIS, _of_redis, f"{directory}/redis"))
        except (ImportError, OSError) as error:
            absent[_REDIS] = str(error)
        yield found, absent


@contextmanager
def _redis(address: str, body: bytes) -> Generator[None]:
    import redis  # noqa: PLC0415 - only where there is one

    server = shutil.which("redis-server")
    if server is None:
        raise FileNotFoundError("there is no redis-server: apt-get install redis-server")
    options = ["--port", "0", "--unixsocket", address, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
    try:
        connection = redis.Redis(unix_socket_path=address)
        until = time.monotonic() + 10
        while True:
            try:
                connection.set("body", body)
                break
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def measure(rounds: int, reads: int) -> tuple[Seconds, dict[str, str]]:
    """Seconds for one read, of everybody, in rounds in which each has its turn, after one that does not count."""
    with places() as (found, absent), ExitStack() as stack:
        contenders = [Readers(place) for place in found]
        for contender in contenders:
            stack.callback(contender.close)
        seconds: Seconds = {contender.name: [] for contender in contenders}
        for number in range(rounds + 1):
            for contender in contenders:
                taken = contender.read(reads)
                if number:
                    seconds[contender.name].append(taken)
    return seconds, absent


def ratios(seconds: Seconds) -> dict[tuple[str, str], float]:
    """The median cost of each, as a multiple of each other's."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {(name, peer): medians[name] / medians[peer] for name in medians for peer in medians}


def report(seconds: Seconds, absent: dict[str, str]) -> None:
    """A table on the terminal."""
    against = ratios(seconds)
    table = Table(
        title=f"{BODY_BYTES // 1024:,} KiB, read by {READERS} processes at once, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}"
    )
    table.add_column("contender")
    for column in ("median µs", "lowest µs", "highest µs", *(f"of {peer}" for peer in _PEERS if peer in seconds)):
        table.add_column(column, justify="right")
    for name, values in seconds.items():
        cells = [statistics.median(values), min(values), max(values)]
        shares = [f"{against[name, peer]:.3f}" for peer in _PEERS if peer in seconds]
        table.add_row(name, *(f"{cell * 1e6:,.1f}" for cell in cells), *shares)
    Console(width=120).print(table)
    for name, reason in absent.items():
        print(f"{name} takes no part: {reason}")


def run(rounds: int, reads: int) -> tuple[Seconds, list[str]]:
    """Measure and report; the seconds, and what costs more than it may."""
    seconds, absent = measure(rounds, reads)
    report(seconds, absent)
    against = ratios(seconds)
    return seconds, [
        f"{name} costs {against[name, peer]:.3f} of {peer}, at most {at_most} is wanted"
        for (name, peer), at_most in WANTED.items()
        if against.get((name, peer), 0) > at_most
    ]
