"""Callers in processes of their own, spawned, several threads in each."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import multiprocess
from multiprocess.connection import Connection, wait
from multiprocess.context import SpawnProcess
from multiprocess.resource_tracker import ensure_running

from examples.demo.job import Findings, Job, Tally, call
from stepwell.client.client import connect
from stepwell.domain.plans.model import Plan
from stepwell.errors import RuntimeFault

_END_SECONDS_MAX: Final = 10.0


@contextlib.contextmanager
def interrupts_deferred() -> Generator[None]:
    """Start processes that Ctrl-C does not reach: it is for us, and they end when we do."""
    ensure_running()  # once: whoever starts it lets interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ready_processes(address: str, job: Job, plan: Plan) -> Generator[list[Connection]]:
    """Processes that are connected and wait for their start; whatever happens, none of them outlives the block."""
    spawn = multiprocess.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    try:
        for number in range(job.processes):
            ours, theirs = spawn.Pipe()
            pipes.append(ours)
            with theirs, interrupts_deferred():
                process = spawn.Process(target=work, args=(theirs, address, job, plan, number))
                process.start()
                processes.append(process)
        for pipe in pipes:
            _receive(pipe)
        yield pipes
        for process in processes:
            process.join(_END_SECONDS_MAX)
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()
        for pipe in pipes:
            pipe.close()


def run_callers(pipes: list[Connection], advance: Callable[[int], None]) -> Iterator[Findings]:
    """Let all callers begin at the same moment, and give what each saw. `advance` is told of steps done."""
    for pipe in pipes:
        with _partner():
            pipe.send("go")
    waiting = {*pipes}
    while waiting:
        for pipe in cast("list[Connection]", wait([*waiting])):
            told = _receive(pipe)
            if isinstance(told, int):
                advance(told)
            else:
                waiting.discard(pipe)
                yield from cast("list[Findings]", told)


def _receive(pipe: Connection) -> object:
    with _partner():
        return pipe.recv()


@contextlib.contextmanager
def _partner() -> Generator[None]:
    """The other end has to be there: a caller that is gone is a failure, not a smaller job."""
    try:
        yield
    except (EOFError, OSError):
        raise RuntimeFault("a process of the demonstration died; see its output above") from None


def work(pipe: Connection, address: str, job: Job, plan: Plan, number: int) -> None:
    """One process: `job.threads` callers that share a client."""
    with contextlib.suppress(BrokenPipeError, EOFError), connect(address) as client:  # then nobody waits for us
        pipe.send("ready")
        pipe.recv()
        progress = Tally(pipe.send)
        first = number * job.threads
        with ThreadPoolExecutor(job.threads) as pool:
            callers = [
                pool.submit(call, client, job, plan, caller, progress.step)
                for caller in range(first, first + job.threads)
            ]
        pipe.send([caller.result() for caller in callers])
