"""The callers on the runtime: spawned processes with several threads each.

Each process connects, reports that it is ready over a pipe and waits, so that all callers begin at the same moment. It
sends the number of steps done now and then, and at the end the findings of its callers.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, cast

import multiprocess
from multiprocess.connection import Connection, wait
from multiprocess.process import BaseProcess
from multiprocess.resource_tracker import ensure_running

from examples.demo.job import Findings, Job, ProgressBatcher, call
from stepwell.client.client import connect
from stepwell.domain.plans.model import Plan
from stepwell.errors import RuntimeFault

_END_SECONDS_MAX: Final = 10.0
"""The time that a process has to end after it sent its findings. Then it is killed."""


@contextlib.contextmanager
def interrupts_deferred() -> Generator[None]:
    """Block SIGINT for the duration of the block, so that processes that are started in it ignore Ctrl-C.

    Ctrl-C is meant for the parent, which ends the others.
    """
    ensure_running()  # starting the resource tracker unblocks SIGINT, so it has to be started before
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def ready_processes(address: str, job: Job, plan: Plan) -> Generator[list[Connection]]:
    """Yield pipes to processes that are connected and wait for the start. None of the processes outlives the block."""
    spawn = multiprocess.get_context("spawn")
    processes: list[BaseProcess] = []
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
        for each in processes:
            each.join(_END_SECONDS_MAX)
    finally:
        for each in processes:
            each.kill()
            each.join()
            each.close()
        for pipe in pipes:
            pipe.close()


def run_callers(pipes: list[Connection], advance: Callable[[int], None]) -> Iterator[Findings]:
    """Start all callers, and yield the findings of each. `advance` is called with the number of steps done."""
    for pipe in pipes:
        with _peer_alive():
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
    """Receive one message from a process."""
    with _peer_alive():
        return pipe.recv()


@contextlib.contextmanager
def _peer_alive() -> Generator[None]:
    """Turn the end of a pipe into an error: a process that is gone is a failure, not a smaller job."""
    try:
        yield
    except (EOFError, OSError):
        raise RuntimeFault("a process of the demonstration died; see its output above") from None


def work(pipe: Connection, address: str, job: Job, plan: Plan, number: int) -> None:
    """Run one process: `job.threads` callers that share a client."""
    # A closed pipe means that the parent has ended, so there is no process left to report to.
    with contextlib.suppress(BrokenPipeError, EOFError), connect(address) as client:
        pipe.send("ready")
        pipe.recv()
        progress = ProgressBatcher(pipe.send)
        first = number * job.threads
        with ThreadPoolExecutor(job.threads) as pool:
            callers = [
                pool.submit(call, client, job, plan, caller, progress.step)
                for caller in range(first, first + job.threads)
            ]
        pipe.send([caller.result() for caller in callers])
