"""One run: a machine, its clients and its end. The result of a seed is always the same."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import apsw
from msgspec import Struct

from stepwell import limits
from stepwell.errors import StepwellError
from stepwell.manager.state_owner import StateBroken
from tests.simulator.client_process import ClientProcess
from tests.simulator.clock import Replacement, replaced, simulated_time
from tests.simulator.machine import Machine
from tests.simulator.manager_process import ProcessKilled
from tests.simulator.oracle import Oracle
from tests.simulator.settings import LimitSize, RunSettings, settings_of
from tests.simulator.violation import Violation
from tests.simulator.worker_process import WorkerProcess
from tests.simulator.workloads import WORKLOADS
from tests.simulator.workloads.base import Actor

FAULT_SECONDS = 3.0
FAULT_STEPS = 2_000
"""Faults happen within so many simulated seconds, or so many steps of the machine."""
PATIENCE_SECONDS = 4_000.0
"""Simulated seconds after the last fault within which every request and every task must have ended."""

_LIMITS: dict[str, float] = {"WAL_PAGES": 60, "EVENTS_KEPT": 1_000_000, "EVENTS_BUFFERED": 1_000_000}
"""Limits of every run: a short one has checkpoints too, and the judge needs all events."""
_SMALL_LIMITS: dict[str, float] = {
    "COMMANDS_PER_TURN": 2,
    "LARGE_SECONDS_PER_TURN": 0.000_02,
    "LARGE_SECONDS_ALONE": 0.000_06,
    "OUTBOX_BYTES_MAX": 8_000,
    "WATCHER_OUTBOX_BYTES": 2_000,
    "EVENTS_PER_FRAME": 8,
    "TIDY_SECONDS": 0.1,
}
"""Limits that some runs have, because a short one would not reach the real ones."""
_TINY_LIMITS: dict[str, float] = {"LARGE_SECONDS_PER_TURN": 0.000_003, "LARGE_SECONDS_ALONE": 0.000_01}
"""Limits on top of the small ones: faults then meet a large request that is executed in part."""
_SMALL_DURABLE_LIMITS: dict[str, float] = {"EVENTS_BUFFERED": 200}
"""Limits that are reached without harm only if there is a store: watchers read forgotten events from it."""


class Result(Struct, frozen=True):
    """The result of a run: a digest of all that was seen, and the violation if there was one."""

    seed: int
    digest: str
    commands: int
    turns: int
    starts: int
    faults: tuple[str, ...]
    violation: str | None = None


def run(settings: RunSettings) -> Result:
    """Run a seed to its end."""
    machine = Machine(settings)
    oracle = machine.oracle
    violation: str | None = None
    digest = ""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with _limited(settings), simulated_time(machine.clock, machine.random):
            try:
                digest = machine.loop.run_until_complete(_Run(machine, oracle).play())
                if machine.loop.defects:
                    raise Violation("; ".join(machine.loop.defects))
            finally:
                _cancel_all(machine)
    except TimeoutError:
        violation = f"a request has no answer after {PATIENCE_SECONDS:g} s"
    except (Exception, StateBroken) as error:  # noqa: BLE001 - every error of a run is a finding
        where = "".join(traceback.format_exception(error)[-6:])
        violation = f"{type(error).__name__}: {error}\n{where}" if not isinstance(error, Violation) else str(error)
    finally:
        machine.close()
        if was_enabled:
            gc.enable()
    manager = machine.manager
    return Result(
        settings.seed,
        digest,
        manager.commands,
        manager.turns,
        manager.starts,
        tuple(map(str, machine.faults.happened)),
        violation,
    )


@contextmanager
def _limited(settings: RunSettings) -> Iterator[None]:
    """Set the limits of a run, and let faults of the disk pass without a message, for the length of the block."""
    functions: list[Replacement] = [(limits, name, value) for name, value in _limits_of(settings).items()]
    with replaced((*functions, (sys, "unraisablehook", _ignore_faults))):
        yield


def _ignore_faults(unraisable: sys.UnraisableHookArgs) -> None:
    """Do not print a fault of the disk that SQLite ignores, as it does when a checkpoint fails; print all others."""
    if not isinstance(unraisable.exc_value, ProcessKilled | OSError | apsw.IOError | apsw.FullError):
        sys.__unraisablehook__(unraisable)


def _limits_of(settings: RunSettings) -> dict[str, float]:
    chosen = _LIMITS | {"SESSION_GRACE_SECONDS": settings.grace_s}
    if settings.limits is not LimitSize.REAL:
        chosen |= _SMALL_LIMITS
        if settings.is_durable:
            chosen |= _SMALL_DURABLE_LIMITS
    if settings.limits is LimitSize.TINY:
        chosen |= _TINY_LIMITS
    return chosen


def prepare_process() -> None:
    """Exempt what exists now from garbage collection, which would otherwise look at all modules after each run."""
    gc.collect()
    gc.freeze()


def run_seed(seed: int) -> tuple[Result, float]:
    """Run a seed, and return its result and the processor time that it took."""
    began_s = time.process_time()
    result = run(settings_of(seed, tuple(WORKLOADS)))
    return result, time.process_time() - began_s


def _cancel_all(machine: Machine) -> None:
    """End the tasks that a violation, or the end of the run, has left."""
    machine.is_stopped = True
    left = [*asyncio.all_tasks(machine.loop)]
    for task in left:
        task.cancel()
    if left:
        machine.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


class _Run:
    """The clients and workers of a run, and the order of its phases."""

    def __init__(self, machine: Machine, oracle: Oracle) -> None:
        self._machine = machine
        self._oracle = oracle
        self._next_pid = 1_000
        self._clients: list[ClientProcess] = []
        self._workers: list[WorkerProcess] = []
        self._actors = 0
        machine.faults.on_kill_client = self._kill_client
        machine.faults.on_kill_worker = self._kill_worker
        machine.faults.on_power_loss = self._lose_power
        machine.processes.on_kill = self._on_signal

    async def play(self) -> str:
        """Let the clients work among faults; then, without faults, everything must come to an end."""
        machine, settings = self._machine, self._machine.settings
        machine.manager.run()  # which starts it: without a data directory, a client does not wait for a manager
        machine.faults.schedule(FAULT_SECONDS, FAULT_STEPS)
        supervisors = []
        if "tasks" in settings.workloads:
            for _ in range(2):
                self._workers.append(worker := WorkerProcess(machine))
                supervisors.append(machine.loop.create_task(worker.supervise()))
        for _ in range(settings.clients):
            self._start_client(settings.operations)
        async with asyncio.timeout(PATIENCE_SECONDS):
            done = 0
            while done < len(self._clients):
                await self._clients[done].join()
                done += 1
        machine.faults.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            digest = await self._judge()
        for worker in self._workers:
            worker.is_stopped = True
            worker.kill()
        for supervisor in supervisors:
            supervisor.cancel()
        await asyncio.gather(*supervisors, return_exceptions=True)
        return digest

    def _start_client(self, operations: int) -> None:
        self._next_pid += 1
        process = ClientProcess(self._machine, self._next_pid)
        self._clients.append(process)
        for _ in range(self._machine.random.randint(*self._machine.settings.actors)):
            self._actors += 1
            process.start(self._act(Actor(process, self._actors, self._oracle), operations))

    async def _act(self, actor: Actor, operations: int) -> None:
        """Do operations, one after the other, with pauses. A refusal is an outcome like any other."""
        workloads = self._machine.settings.workloads
        for _ in range(operations):
            name = actor.random.choice(workloads)
            try:
                await WORKLOADS[name](actor)
            except StepwellError as error:
                self._oracle.note_error(name, error)
            if actor.random.random() < 0.3:
                await asyncio.sleep(actor.random.choice((0.0, 0.001, 0.05, 0.3)))

    def _kill_client(self) -> None:
        alive = [each for each in self._clients if each.is_alive]
        if alive:
            self._machine.random.choice(alive).kill()
            self._start_client(10)

    def _kill_worker(self) -> None:
        if self._workers:
            self._machine.random.choice(self._workers).kill()

    def _lose_power(self) -> None:
        """End every process of the machine, and begin with new ones."""
        for each in self._clients:
            each.kill()
        for worker in self._workers:
            worker.kill()
        self._start_client(10)

    def _on_signal(self, pid: int) -> None:
        for worker in self._workers:
            if worker.pid == pid:
                worker.kill()

    async def _judge(self) -> str:
        """Close the clients, and compare what they saw with what is there."""
        for each in self._clients:
            if each.is_alive:
                await each.client.aclose()
        self._next_pid += 1
        judge = ClientProcess(self._machine, self._next_pid)
        await judge.client.open()
        feed = self._machine.manager.owner.journal.feed
        committed, _ = feed.events_after(0, sys.maxsize, self._machine.manager.owner.revision)
        digest = await self._oracle.finish(judge.client, [*committed])
        await judge.client.aclose()
        return digest
