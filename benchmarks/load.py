"""Client processes that run operations on order, all from one instant on, and report their number and their times.

They are started once and are clients of every contender in turn.

Only one call in a run of calls is timed by itself: reading the clock around each would take longer than a `get` of a
fragment that the client finds in shared memory. The rate counts all calls.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final, Literal

from msgspec import Struct, field

from benchmarks.contenders.base import Connect, Contender, Place, Session
from benchmarks.works import KINDS, Calls, Keys, Work, new_body

GATE_NS: Final = 5_000_000
"""The time from an order to its start, so that every client has received the order by then."""
RUN_NS: Final = 100_000
"""A run that takes less is followed by one of twice as many calls."""
RUN_CALLS_MAX: Final = 1_000
LOAD_AT_ONCE: Final = 10_000
LOAD_SECONDS_MAX: Final = 300.0
ANSWER_SECONDS_MAX: Final = 60.0
END_SECONDS_MAX: Final = 10.0
_CPUCLOCK_SCHED: Final = 2
_spawn = get_context("spawn")

Task = Work | Literal["load", "load warm", "forget"]


class Failed(Exception):
    """An error in a client process."""


class ConnectOrder(Struct, frozen=True):
    """An order to open a session with a contender, unless the process has it."""

    session: str
    connect: Connect
    where: object


class Pace(Struct, frozen=True):
    """Some calls at every tick, and no more. A client that is late makes its calls without a pause."""

    calls: int
    tick_ns: int


class WorkOrder(Struct, frozen=True):
    """An order to run one task, with one thread for each element of `keys`."""

    session: str
    task: Task
    keys: tuple[Keys, ...]
    batch: int = 1
    begin_ns: int = 0
    until_ns: int = 0
    pace: Pace | None = None


class Beside(Struct, frozen=True):
    """The work of another client, at a pace, while a work is measured."""

    work: Work
    keys: Keys
    pace: Pace


def _no_times() -> array[int]:
    return array("q")


class Share(Struct, frozen=True):
    """The work of one thread: the number of its operations, the time of some calls, and the end of the last one."""

    operations: int = 0
    times_ns: array[int] = field(default_factory=_no_times)
    ended_ns: int = 0


class Effort(Struct, frozen=True):
    """The result of all clients together in one work."""

    rate: float  # operations a second, until the last client was done
    p50_us: float  # of a call
    p99_us: float
    cpu_us: float | None  # of the service's process, for an operation


class Outcome(Struct, frozen=True):
    """The result of one work: of all clients together, of each, and the rate of the work beside them."""

    effort: Effort
    shares: tuple[Share, ...]
    rate_beside: float


def _serve(orders: Connection) -> None:
    sessions: dict[str, Session] = {}
    with ExitStack() as stack:
        while True:
            try:
                order: ConnectOrder | WorkOrder = orders.recv()
            except (EOFError, KeyboardInterrupt):
                return
            try:
                if isinstance(order, WorkOrder):
                    answer: list[Share] | Failed | None = _execute(sessions[order.session], order)
                else:
                    if order.session not in sessions:
                        sessions[order.session] = stack.enter_context(order.connect(order.where))
                    answer = None
            except KeyboardInterrupt:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason
                answer = Failed(f"{type(error).__name__}: {error}")
            with suppress(BrokenPipeError):  # of an owner that was interrupted: the next read finds the end
                orders.send(answer)


def _execute(session: Session, order: WorkOrder) -> list[Share]:
    if len(order.keys) == 1:
        return [_perform(session, order, order.keys[0])]
    with ThreadPoolExecutor(len(order.keys)) as threads:
        return [*threads.map(partial(_perform, session, order), order.keys)]


def _perform(session: Session, order: WorkOrder, keys: Keys) -> Share:
    match order.task:
        case "forget":
            session.forget(keys.names())
            return Share()
        case "load" | "load warm":
            names = map(keys.name, range(keys.count))
            while items := [(key, new_body(key)) for key in islice(names, LOAD_AT_ONCE)]:
                session.load(items, is_warm=order.task == "load warm")
            session.finish_load(keys.name(0))
            return Share()
        case work:
            calls = KINDS[work](session, keys, order.batch)
            return _in_runs(calls, order) if order.pace is None else _at_a_pace(calls, order, order.pace)


def _in_runs(calls: Calls, order: WorkOrder) -> Share:
    """Make calls until the end time, at least one. The first call of a run is timed by itself."""
    clock, times, made, length = time.perf_counter_ns, array("q"), 0, 1
    first, others = calls.prepared(1), calls.prepared(0)
    time.sleep(max(0, order.begin_ns - clock()) / 1e9)
    while True:
        begun = clock()
        first()
        ended = clock()
        times.append(ended - begun)
        if length > 1:
            others()
            ended = clock()
        made += length
        if ended >= order.until_ns:
            return Share(made * order.batch, times, ended)
        if ended - begun < RUN_NS:
            length = min(2 * length, RUN_CALLS_MAX)
        first, others = calls.prepared(1), calls.prepared(length - 1)


def _at_a_pace(calls: Calls, order: WorkOrder, pace: Pace) -> Share:
    """Make as many calls in a tick as the pace says, until the end time."""
    clock, made, due = time.perf_counter_ns, 0, order.begin_ns
    while True:
        run = calls.prepared(pace.calls)
        time.sleep(max(0, due - clock()) / 1e9)
        run()
        made += pace.calls
        due += pace.tick_ns
        if due >= order.until_ns or clock() >= order.until_ns:
            return Share(made * order.batch, ended_ns=max(clock(), due))


class ClientPool:
    """A pool of client processes that grows to the largest number needed."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._turns = 0

    def load(self, contender: Contender, place: Place, keys: Keys, *, is_warm: bool = False) -> None:
        """Store loaded keys, from one client."""
        self._connect(contender, place, 1)
        order = WorkOrder(contender.session_name, "load warm" if is_warm else "load", (keys,))
        self._ask([order], LOAD_SECONDS_MAX)

    def run(
        self,
        contender: Contender,
        place: Place,
        work: Work,
        keys: Sequence[Keys],
        seconds: float,
        *,
        batch: int = 1,
        beside: Beside | None = None,
    ) -> Outcome:
        """Let a client for each element of `keys` work for some seconds. One more client does the work beside them."""
        processes = 1 if contender.is_threaded else len(keys)
        self._connect(contender, place, processes + (beside is not None))
        spent_ns = _cpu_ns(place.pid)
        begin_ns = time.perf_counter_ns() + GATE_NS
        until_ns = begin_ns + int(seconds * 1e9)
        order = partial(WorkOrder, contender.session_name, begin_ns=begin_ns, until_ns=until_ns)
        groups = [tuple(keys)] if contender.is_threaded else [(each,) for each in keys]
        orders = [order(work, group, batch) for group in groups]
        if beside:
            orders.append(order(beside.work, (beside.keys,), pace=beside.pace))
        shares = self._ask(orders)
        cpu_ns = _cpu_ns(place.pid) - spent_ns if place.pid else None
        return Outcome(
            _effort(shares[: len(keys)], begin_ns, cpu_ns), tuple(shares), _rate(shares[len(keys) :], begin_ns)
        )

    def turn(self, contender: Contender, place: Place, batch: int, clients: int, seconds: float) -> dict[Work, Effort]:
        """Store for some seconds, read for as long what another client has stored, and delete everything.

        After a `Failed` the pool is unusable.
        """
        self._turns += 1
        keys = [Keys(f"{self._turns}-{number}") for number in range(clients)]
        stored = self.run(contender, place, "store", keys, seconds, batch=batch)
        keys = [Keys(each.owner, share.operations) for each, share in zip(keys, stored.shares, strict=True)]
        read = self.run(contender, place, "get", keys[1:] + keys[:1], seconds, batch=batch)
        groups = [tuple(keys)] if contender.is_threaded else [(each,) for each in keys]
        self._ask([WorkOrder(contender.session_name, "forget", group) for group in groups])
        return {"store": stored.effort, "get": read.effort}

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

    def _connect(self, contender: Contender, place: Place, processes: int) -> None:
        self._grow(processes)
        self._ask([ConnectOrder(contender.session_name, contender.connect, place.where)] * processes)

    def _ask(self, orders: Sequence[ConnectOrder | WorkOrder], seconds_max: float = ANSWER_SECONDS_MAX) -> list[Share]:
        """Give each process its order, and return the shares of all."""
        pipes = self._pipes[: len(orders)]
        try:
            for pipe, order in zip(pipes, orders, strict=True):
                pipe.send(order)
            return [share for pipe in pipes for share in _answer(pipe, seconds_max)]
        except (EOFError, OSError) as error:
            raise Failed("a client process has died") from error


def _answer(pipe: Connection, seconds_max: float) -> list[Share]:
    if not pipe.poll(seconds_max):
        raise Failed(f"a client did not answer within {seconds_max:g} s")
    answer: list[Share] | Failed | None = pipe.recv()
    if isinstance(answer, Failed):
        raise answer
    return answer or []


def _effort(shares: Sequence[Share], begin_ns: int, cpu_ns: int | None) -> Effort:
    times_ns = sorted(chain.from_iterable(share.times_ns for share in shares))
    p50_us, p99_us = (times_ns[len(times_ns) * percent // 100] / 1e3 for percent in (50, 99))
    cpu_us = None if cpu_ns is None else cpu_ns / 1e3 / sum(share.operations for share in shares)
    return Effort(_rate(shares, begin_ns), p50_us, p99_us, cpu_us)


def _rate(shares: Sequence[Share], begin_ns: int) -> float:
    """Return the operations a second of all of these clients together."""
    if not shares:
        return 0.0
    elapsed_ns = max(share.ended_ns for share in shares) - begin_ns
    return sum(share.operations for share in shares) / elapsed_ns * 1e9


def _cpu_ns(pid: int | None) -> int:
    """Return the CPU time of all threads of a process; `/proc/PID/stat` has it in hundredths of a second only."""
    return 0 if pid is None else time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)  # as clock_getcpuclockid(3)
