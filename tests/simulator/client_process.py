"""A client's process on a simulated machine: the real asyncio client, with the simulated environment."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar, cast

from stepwell.aio.client import Client
from stepwell.aio.threads import Threads
from stepwell.client.client import unconnected
from stepwell.client.session.environment import Environment
from stepwell.errors import BodyGone, StepwellError
from stepwell.memory.reader.index_reader import IndexReader
from stepwell.storage.body_reader import BodyFile
from tests.simulator.disk import SimulatedDatabase
from tests.simulator.manager_process import ADDRESS
from tests.simulator.network import SimulatedSocket
from tests.simulator.store_files import DATABASE

if TYPE_CHECKING:
    from tests.simulator.machine import Machine
    from tests.simulator.workloads.tasks import Follower

R = TypeVar("R")


class SimulatedEnvironment(Environment):
    """The machine as one client's process sees it."""

    def __init__(self, machine: Machine, pid: int) -> None:
        self._machine = machine
        self._pid = pid
        self.sockets: list[SimulatedSocket] = []

    def dial(self, address: str, timeout_s: float | None) -> socket.socket:
        assert (address, timeout_s) == (ADDRESS, 0.0)
        connected = self._machine.dial(self._pid)
        self.sockets.append(connected)
        return cast("socket.socket", connected)

    def is_restarting(self, address: str) -> bool:
        return address == ADDRESS and self._machine.settings.is_durable

    def read_cause(self, address: str) -> StepwellError | None:
        assert address == ADDRESS
        return None

    def open_bodies(self, database: str) -> BodyFile:
        return _SimulatedBodyFile(self._machine, database)


class _SimulatedBodyFile(BodyFile):
    """Reads bodies from a copy of the disk, because the manager's connection has the database for itself."""

    def __init__(self, machine: Machine, database: str) -> None:
        super().__init__(database)
        self._machine = machine

    def read(self, digest: bytes, number: int) -> tuple[bool, bytes]:
        db = SimulatedDatabase(self._machine.disk.copy(), DATABASE)
        try:
            found = self._find(db, digest, number)
        finally:
            db.close()
        if found is None:
            raise BodyGone("the body is not in the store any more")
        return found


class _InlineThreads(Threads):
    """No threads: the work is done where it is asked for."""

    def start(self, function: Callable[[], R]) -> Future[R]:
        done: Future[R] = Future()
        try:
            done.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the error is the result
            done.set_exception(error)
        return done

    async def run(self, function: Callable[[], R]) -> R:
        return function()

    async def close(self, release: Callable[[], None]) -> None:
        """Do not close the blocking client, which has made no connection."""


class ClientProcess:
    """A process with one client and some tasks. It may be killed at any moment: then its tasks just end."""

    def __init__(self, machine: Machine, pid: int) -> None:
        self.machine = machine
        self.pid = pid
        self.is_alive = True
        self.follower: Follower | None = None  # of the tasks that this process has submitted
        self._environment = SimulatedEnvironment(machine, pid)
        self._tasks: list[asyncio.Task[None]] = []
        self._background: list[asyncio.Task[None]] = []
        machine.processes.start(pid)
        machine.clients.append(self)
        self.client = Client(unconnected(ADDRESS, None, self._environment), _InlineThreads)
        machine.on_close.append(self.release)

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Start a task of this process."""
        self._tasks.append(self.machine.loop.create_task(work))

    def start_background(self, work: Coroutine[object, object, None]) -> None:
        """Start a task that no one waits for: it ends by itself, or with this process. Its error fails the run."""
        task = self.machine.loop.create_task(work)
        task.add_done_callback(self._on_end)
        self._background.append(task)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if self.is_alive and not task.cancelled() and (error := task.exception()) is not None:
            self.machine.loop.defects.append(str(error))

    async def join(self) -> None:
        """Wait until all tasks have ended, and raise the first error that is no end of the process."""
        for task in self._tasks:
            try:
                await task
            except asyncio.CancelledError:
                if self.is_alive:
                    raise
            except StepwellError:
                if self.is_alive:
                    raise

    def kill(self) -> None:
        """Let the process die: its sockets are closed by the kernel, and its tasks never run again."""
        if not self.is_alive:
            return
        self.is_alive = False
        loop = self.machine.loop
        for each in self._environment.sockets:
            if each.fileno() >= 0:
                loop.remove_reader(each)
                loop.remove_writer(each)
            each.close()
        for task in (*self._tasks, *self._background):
            task.cancel()
        self.machine.processes.end(self.pid)
        self.release()

    @property
    def index(self) -> IndexReader:
        """The index of reads, as this process sees it."""
        return self.client.blocking_client.session.reads.index

    def release(self) -> None:
        """Close the descriptors and unmap the memory of this process, as its end does."""
        for connection in self.client._channel._open:
            connection._close_descriptors()
        channel = self.client.blocking_client.session.channel
        channel.reads.close()
        channel.mappings.close()
