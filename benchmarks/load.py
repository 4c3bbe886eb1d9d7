"""Client processes that run operations on order, all from one instant on, and report the time of each call.

They are started once and are clients of every contender in turn. Each reads what another one has stored.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, count, cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

from msgspec import Struct

from benchmarks.contenders.base import BODY_BYTES, Connect, Contender, Place, Session

GATE_NS = 5_000_000
"""The time from an order to its start, so that every client has received the order by then."""
ANSWER_SECONDS_MAX = 60.0
END_SECONDS_MAX = 10.0
_CPUCLOCK_SCHED = 2
_spawn = get_context("spawn")

Work = Literal["store", "get", "forget"]


class Failed(Exception):
    """An error in a client process."""


class Keys(Struct, frozen=True):
    """The keys that one thread stored in one turn, numbered from 0."""

    owner: str
    count: int = 0

    def names(self) -> list[str]:
        return [f"{self.owner}-{number}" for number in range(self.count)]


class ConnectOrder(Struct, frozen=True):
    """An order to connect to a contender, unless the process is connected."""

    contender: str
    connect: Connect
    where: object


class WorkOrder(Struct, frozen=True):
    """An order to run one kind of work, with one thread for each element of `keys`."""

    contender: str
    work: Work
    batch: int
    begin_ns: int
    until_ns: int
    keys: tuple[Keys, ...]


class Share(Struct, frozen=True):
    """The work of one thread: its keys, the time of each call, and the end of the last one."""

    keys: Keys
    times_ns: array[int]
    ended_ns: int


class Effort(Struct, frozen=True):
    """The result of all clients together in one work."""

    rate: float  # operations a second, until the last client was done
    p50_us: float  # of a call
    p99_us: float
    cpu_us: float | None  # of the service's process, for an operation


def _serve(orders: Connection) -> None:
    sessions: dict[str, Session] = {}
    with ExitStack() as stack:
        while True:
            try:
                order: ConnectOrder | WorkOrder = orders.recv()
            except EOFError:
                return
            try:
                if isinstance(order, WorkOrder):
                    orders.send(_execute(sessions[order.contender], order))
                else:
                    if order.contender not in sessions:
                        sessions[order.contender] = stack.enter_context(order.connect(order.where))
                    orders.send(None)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
                orders.send(Failed(f"{type(error).__name__}: {error}"))


def _execute(session: Session, order: WorkOrder) -> list[Share]:
    if len(order.keys) == 1:
        return [_work(session, order, order.keys[0])]
    with ThreadPoolExecutor(len(order.keys)) as threads:
        return [*threads.map(partial(_work, session, order), order.keys)]


def _work(session: Session, order: WorkOrder, keys: Keys) -> Share:
    """Run calls until the end time, at least one. Time between the calls is not measured."""
    if order.work == "forget":
        session.forget(keys.names())
        return Share(keys, array("q"), 0)
    if order.work == "store":
        steps, expected = _stores(session, order.batch, keys.owner), None
    else:
        steps, expected = _gets(session, order.batch, keys.names()), order.batch * BODY_BYTES
    clock, times, ended = time.perf_counter_ns, array("q"), 0
    time.sleep(max(0, order.begin_ns - clock()) / 1e9)
    for step in steps:
        begun = clock()
        found = step()
        ended = clock()
        assert found == expected, found
        times.append(ended - begun)
        if ended >= order.until_ns:
            break
    return Share(Keys(keys.owner, len(times) * order.batch), times, ended)


def _stores(session: Session, batch: int, owner: str) -> Iterator[Callable[[], int | None]]:
    """Yield the stores. Each body is new, because equal bodies may be stored once."""
    for first in count(0, batch):
        keys = [f"{owner}-{number}" for number in range(first, first + batch)]
        items = [(key, key.encode().ljust(BODY_BYTES, b".")) for key in keys]
        yield partial(session.put, *items[0]) if batch == 1 else partial(session.put_many, items)


def _gets(session: Session, batch: int, keys: Sequence[str]) -> Iterator[Callable[[], int | None]]:
    for first in cycle(range(0, len(keys), batch)):
        some = keys[first : first + batch]
        yield partial(session.get, some[0]) if batch == 1 else partial(session.get_many, some)


class ClientPool:
    """A pool of client processes that grows to the largest number needed."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._turns = 0

    def turn(self, contender: Contender, place: Place, batch: int, clients: int, seconds: float) -> dict[Work, Effort]:
        """Store for some seconds, read for as long, and delete everything. After a `Failed` the pool is unusable."""
        self._turns += 1
        processes = 1 if contender.is_threaded else clients
        self._grow(processes)
        self._ask([ConnectOrder(contender.name, contender.connect, place.where)] * processes)
        found: dict[Work, Effort] = {}
        keys = [Keys(f"{self._turns}-{number}") for number in range(clients)]
        works: tuple[Work, ...] = ("store", "get")
        for work in works:
            spent_ns = _cpu_ns(place.pid)
            begin_ns = time.perf_counter_ns() + GATE_NS
            until_ns = begin_ns + int(seconds * 1e9)
            order = partial(WorkOrder, contender.name, work, batch, begin_ns, until_ns)
            shares = self._share(order, keys, processes)
            found[work] = _effort(shares, begin_ns, batch, _cpu_ns(place.pid) - spent_ns if place.pid else None)
            if work == "store":
                stored = [share.keys for share in shares]
                keys = stored[1:] + stored[:1]
        self._share(partial(WorkOrder, contender.name, "forget", batch, 0, 0), keys, processes)
        return found

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        until = time.monotonic() + END_SECONDS_MAX
        for process in self._processes:
            process.join(max(0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def _grow(self, size: int) -> None:
        while len(self._processes) < size:
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=_serve, args=(theirs,), daemon=True)
            self._pipes.append(ours)
            try:
                process.start()
            finally:
                theirs.close()
            self._processes.append(process)

    def _share(
        self, order: Callable[[tuple[Keys, ...]], WorkOrder], keys: Sequence[Keys], processes: int
    ) -> list[Share]:
        """Give each process one element of `keys`, or all of them to a single process, and return the shares."""
        orders = [order((each,)) for each in keys] if processes == len(keys) else [order(tuple(keys))]
        return [share for shares in self._ask(orders) for share in shares]

    def _ask(self, orders: Sequence[ConnectOrder | WorkOrder]) -> list[list[Share]]:
        pipes = self._pipes[: len(orders)]
        try:
            for pipe, order in zip(pipes, orders, strict=True):
                pipe.send(order)
            return [_answer(pipe) for pipe in pipes]
        except (EOFError, OSError) as error:
            raise Failed("a client process has died") from error


def _answer(pipe: Connection) -> list[Share]:
    if not pipe.poll(ANSWER_SECONDS_MAX):
        raise Failed(f"a client did not answer within {ANSWER_SECONDS_MAX:g} s")
    answer: list[Share] | Failed | None = pipe.recv()
    if isinstance(answer, Failed):
        raise answer
    return answer or []


def _effort(shares: Sequence[Share], begin_ns: int, batch: int, cpu_ns: int | None) -> Effort:
    times_ns = sorted(chain.from_iterable(share.times_ns for share in shares))
    operations = len(times_ns) * batch
    elapsed_ns = max(share.ended_ns for share in shares) - begin_ns
    p50_us, p99_us = (times_ns[len(times_ns) * percent // 100] / 1e3 for percent in (50, 99))
    cpu_us = None if cpu_ns is None else cpu_ns / 1e3 / operations
    return Effort(operations / elapsed_ns * 1e9, p50_us, p99_us, cpu_us)


def _cpu_ns(pid: int | None) -> int:
    """Return the CPU time of all threads of a process; `/proc/PID/stat` has it in hundredths of a second only."""
    return 0 if pid is None else time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)  # as clock_getcpuclockid(3)
