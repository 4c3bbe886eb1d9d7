"""Large bodies that are written once and read by several processes at once: the time of one write and of one read.

A read ends when every page of the body has been touched, because a lazy mapping has not read anything yet.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import stepwell as sw
from benchmarks import redis_server
from benchmarks.client_processes import ClientProcesses, Open, Workload
from benchmarks.section import CannotRun, Goal, Section, Turn, in_rounds

KIB: Final = 1024
SIZES: Final = (64 * KIB, 1024 * KIB, 16 * 1024 * KIB)
READERS: Final = 4
_PAGE: Final = 4096
_spawn = get_context("spawn")

_MMAP, _SYNC, _REDIS = "plain mmap of a file", "SyncManager dict", "Redis"
_GET, _VIEW, _STORE = "stepwell, get", "stepwell, in a view", "stepwell, store"

GOALS = tuple(
    Goal(f"1,024 KiB, read by {READERS}", contender, "at most", value, peer)
    for contender, peer, value in ((_GET, _SYNC, 0.02), (_VIEW, _SYNC, 0.1), (_VIEW, _REDIS, 0.1), (_VIEW, _MMAP, 2.0))
)
"""The longest time of a read, as a multiple of a peer's in the same run."""

Read = Callable[[], memoryview | bytes]


def _reading(open_body: Callable[..., Read], where: object, size: int, _number: int) -> Workload:
    """Return a workload that measures the seconds of one read."""
    read = open_body(where, size)

    def workload(times: float) -> float:
        begun = time.perf_counter()
        for _ in range(int(times)):
            with memoryview(read()) as body:
                assert len(body) == size
                bytes(body[::_PAGE])
        return (time.perf_counter() - begun) / times

    return workload


def _of_stepwell(address: str, size: int) -> Read:
    tiers = sw.connect(address, projects=["p"]).tiers
    return lambda: tiers.get(f"body-{size}").body


def _of_a_view(address: str, size: int) -> Read:
    view = sw.connect(address, projects=["p"]).view()

    def read() -> memoryview:
        fragment = view.get(f"body-{size}")
        assert fragment is not None
        return fragment.body

    return read


def _of_sync_manager(shared: MutableMapping[str, bytes], size: int) -> Read:
    return lambda: shared[f"body-{size}"]


def _of_redis(address: str, size: int) -> Read:
    connection = redis_server.connected(address)

    def read() -> bytes:
        body = connection.get(f"body-{size}")
        assert isinstance(body, bytes)
        return body

    return read


def _of_a_file(directory: str, size: int) -> Read:
    def read() -> memoryview:
        with open(f"{directory}/body-{size}", "rb") as file:  # noqa: PTH123 - a Path would be timed too
            return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))

    return read


Places = dict[str, tuple[Callable[..., Read], object]]
Writes = dict[str, Callable[[str, bytes], object]]


@contextmanager
def places() -> Generator[tuple[Places, Writes, dict[str, str]]]:
    """Yield the readers and writers of all contenders, and the reasons of the absent ones."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sw-bench-")))
        runtime = stack.enter_context(sw.Runtime.start(workers=0))
        tiers = stack.enter_context(runtime.client(projects=["p"])).tiers
        shared = stack.enter_context(_spawn.Manager()).dict()
        reads: Places = {
            _MMAP: (_of_a_file, str(directory)),
            _GET: (_of_stepwell, runtime.address),
            _VIEW: (_of_a_view, runtime.address),
            _SYNC: (_of_sync_manager, shared),
        }
        writes: Writes = {
            _MMAP: lambda name, body: (directory / name).write_bytes(body),
            _STORE: lambda name, body: tiers.store(sw.Fragment(fragment_id=name, body=body, tokens=1)),
            _SYNC: shared.__setitem__,
        }
        try:
            address, _ = stack.enter_context(redis_server.running(directory, "--appendonly", "no"))
        except CannotRun as error:
            absent[_REDIS] = str(error)
        else:
            reads[_REDIS] = _of_redis, address
            writes[_REDIS] = stack.enter_context(redis_server.connected(address)).set
        yield reads, writes, absent


def run(rounds: int, reads: int = 300, sizes: Sequence[int] = SIZES, readers: int = READERS) -> list[Section]:
    """Return the microseconds of a write, and of a read while all readers read. Larger bodies are read less often."""
    with places() as (ways, writes, absent), ExitStack() as stack:
        opens: dict[str, Open] = {}
        for size in sizes:
            for write in writes.values():
                write(f"body-{size}", os.urandom(size))
            for contender, (open_body, where) in ways.items():
                opens[f"{contender}, {size}"] = partial(_reading, open_body, where, size)
        processes = stack.enter_context(closing(ClientProcesses(readers, opens)))
        turns: dict[tuple[str, str], Turn] = {}
        for size in sizes:
            times = max(1, min(reads, reads * SIZES[1] // size))
            for contender, write in writes.items():
                turns[f"{size // KIB:,} KiB, written once", contender] = partial(
                    _written, write, size, max(1, times // 20)
                )
            for contender in ways:
                name = f"{contender}, {size}"
                turns[f"{size // KIB:,} KiB, read by {readers}", contender] = partial(_read, processes, name, times)
        figures, failed = in_rounds(rounds, turns)
    title = "Large bodies: all of one in one's hands"
    return [Section(title=title, unit="µs", figures=figures, goals=GOALS, absent=absent | failed)]


def _written(write: Callable[[str, bytes], object], size: int, times: int) -> float:
    """Return the microseconds of one write. Each body is new, so that no contender can recognise it."""
    bodies = [os.urandom(size) for _ in range(times)]
    begun = time.perf_counter()
    for body in bodies:
        write("written", body)
    return (time.perf_counter() - begun) / times * 1e6


def _read(processes: ClientProcesses, name: str, times: int) -> float:
    """Return the microseconds of a read while all readers share the machine: the total time by the number of reads."""
    seconds = processes.do(name, times)
    return max(seconds) / len(seconds) * 1e6
