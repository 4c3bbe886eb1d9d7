"""The manager's process on a simulated machine: the real loop on simulated ports, which dies when the seed says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from stepwell import limits
from stepwell.clock import StateClock
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import StepwellError, StoreFailed
from stepwell.manager.loop import Loop
from stepwell.manager.process import Settings, resume
from stepwell.manager.request_handler import AnyRequest, RequestExecution, RequestHandler, TimeBudget, Uploaded
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.state_owner import StateOwner
from stepwell.protocol.messages import Response
from stepwell.storage import sqlite
from stepwell.storage.null_store import NullStore
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import Durability, Store
from stepwell.telemetry import Logger, LogLevel
from stepwell.transport.kernel import Kernel
from tests.simulator.clock import replaced
from tests.simulator.kernel import ManagerWaits, SimulatedKernel, SimulatedPoller
from tests.simulator.network import SimulatedSocket
from tests.simulator.store_files import SimulatedStoreFiles, create_tables

if TYPE_CHECKING:
    from tests.simulator.machine import Machine

ADDRESS = "/simulated/manager.sock"
RESTART_SECONDS = 0.2


class ProcessKilled(BaseException):
    """The manager's process dies at this call. No handler of the manager may catch it."""


class CountedRequests(RequestHandler):
    """Executes requests, and counts the commands in them for the simulator's report."""

    def __init__(self, owner: StateOwner, clock: StateClock, log: Logger, on_executed: Callable[[int], None]) -> None:
        super().__init__(owner, clock, log)
        self._on_executed = on_executed

    def respond(self, message: AnyRequest, session: SessionRecord, uploads: Uploaded) -> Response:
        self._on_executed(len(message.commands))
        return super().respond(message, session, uploads)

    def advance(
        self, execution: RequestExecution, session: SessionRecord, uploads: Uploaded, budget: TimeBudget | None
    ) -> None:
        done = len(execution.results)
        super().advance(execution, session, uploads, budget)
        self._on_executed(len(execution.results) - done)


class ManagerProcess:
    """The manager, from its first start over all restarts.

    `dies_at` counts the calls of the kernel until the process dies; None: it does not die.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._log = Logger(LogLevel.ERROR if machine.settings.seed >= 0 else LogLevel.DEBUG, pid=0)
        self._poller = SimulatedPoller(machine.random, machine.now_s, self._on_call)
        self.loop: Loop | None = None
        self.requests: RequestHandler | None = None
        self._owner: StateOwner | None = None
        self._sockets: list[SimulatedSocket] = []
        self.dies_at: int | None = None
        self.loses_power = False
        self._is_killed = False
        self._restart_at_s = 0.0
        self.starts = 0
        self.turns = 0
        self.commands = 0  # of clients, executed or refused
        machine.disk.on_call = self._on_call

    @property
    def owner(self) -> StateOwner:
        assert self._owner is not None
        return self._owner

    def _on_call(self) -> None:
        """Count a call of the kernel, and die if it is the last one."""
        if self._is_killed:
            raise ProcessKilled
        if self.dies_at is not None:
            self.dies_at -= 1
            if self.dies_at < 0:
                self._is_killed = True
                raise ProcessKilled

    def is_due(self, now_s: float) -> bool:
        """Return True if the manager has something to do, or is to be started."""
        if self.loop is None:
            return now_s >= self._restart_at_s
        return self._poller.is_ready or now_s >= self._poller.wake_at_s

    def moments(self) -> list[float]:
        return [self._restart_at_s if self.loop is None else self._poller.wake_at_s]

    def run(self) -> None:
        """Run a turn, or start a manager if there is none. A death, or a failure of the disk, ends the process."""
        try:
            if self.loop is None:
                self._start()
            else:
                self.loop.turn()
                self.turns += 1
                self._machine.oracle.check_turn()
        except ManagerWaits:
            return
        except (ProcessKilled, StoreFailed) as error:
            self._end(error)
        except StepwellError as error:
            if not self._is_killed and not self._machine.disk.has_failed:
                raise
            self._end(error)

    def _start(self) -> None:
        """Start a manager on what the disk has."""
        settings = Settings(address=ADDRESS, budget=self._budget(), encoding="estimate")
        self._poller = SimulatedPoller(self._machine.random, self._machine.now_s, self._on_call)
        kernel: Kernel = SimulatedKernel(self._poller, self._machine.processes)
        store = self._open_store()
        try:
            owner = StateOwner(settings.budget_after(TierBudget()), store, has_index=self._machine.settings.has_index)
        except BaseException:
            store.close()
            raise
        self._owner = owner
        clock = StateClock(owner.stored.clock_ms if owner.stored else 0)
        self.requests = CountedRequests(owner, clock, self._log, self._count)
        listener = self._machine.network.listen(self._poller)
        self._poller.sockets[listener.fileno()] = listener
        listener.on_accept = self._on_accept
        self.loop = Loop(listener, self.requests, log=self._log, spin_s=0.0, kernel=kernel)
        resume(settings, self.loop, self.requests)
        self.starts += 1
        self._machine.oracle.check_start()

    def _count(self, commands: int) -> None:
        self.commands += commands

    def _budget(self) -> TierBudget:
        return TierBudget(hot_tokens=self._machine.settings.hot_tokens, arena_bytes=4 * limits.MIB, warm_entries=40)

    def _open_store(self) -> Store:
        if not self._machine.settings.is_durable:
            return NullStore("estimate", epoch="simulated")
        files = SimulatedStoreFiles(self._machine.disk, f"boot-{self._machine.processes.boot}")
        if self.starts:
            return SqliteStore(files, Durability.DISK, "estimate")
        # No fault comes before the first start has ended, so that it can create the tables in fewer steps.
        with replaced([(sqlite, "migrate", create_tables)]):
            return SqliteStore(files, Durability.DISK, "estimate")

    def _on_accept(self, accepted: SimulatedSocket) -> None:
        accepted.watcher = self._poller
        accepted.on_call = self._on_call
        self._poller.sockets[accepted.fileno()] = accepted
        self._sockets.append(accepted)

    def cut_connection(self) -> None:
        """Cut a random connection of a client, as a proxy or a debugger does."""
        live = [each for each in self._sockets if each.fileno() >= 0 and each.outgoing.reader is not None]
        if live:
            reader = self._machine.random.choice(live).outgoing.reader
            assert reader is not None
            reader.incoming.is_eof = True
            reader.mark()

    def _end(self, cause: BaseException) -> None:
        """Let the process end: the kernel closes its sockets, and the disk has what it has."""
        machine = self._machine
        self._is_killed = True
        self.dies_at = None
        if self.loses_power:
            machine.disk.lose_power(machine.random)
        else:
            machine.disk.kill()
        if machine.network.listener is not None:
            machine.network.listener.close()
            machine.network.listener = None
        for each in self._sockets:
            each.on_call = None
            each.close()
        self._sockets.clear()
        self._close_quietly()
        self.loop = None
        self._is_killed = False
        self._restart_at_s = machine.clock.now_s + RESTART_SECONDS
        machine.oracle.note_end(cause)
        if self.loses_power:
            self.loses_power = False
            machine.processes.boot += 1
            machine.faults.on_power_loss()

    def _close_quietly(self) -> None:
        """Free the memory of the dead process. Its disk and its sockets change nothing any more."""
        if self.loop is not None:
            for connection in self.loop._connections.values():
                connection.peer.close()
                with suppress(Exception):  # the state may be half changed; only the memory has to be let go
                    connection.uploads.close()
            self._poller.close()
            self.loop._sessions._by_id.clear()
            self.loop._acceptor.close()
        if self._owner is not None:
            self._owner.close()
            self._owner.journal.store.close()
            self._owner = None

    def close(self) -> None:
        """End the process at the end of a run. A power failure that was still to come does not come."""
        self.loses_power = False
        if self._owner is not None:  # also if its start has failed
            self._end(ProcessKilled())
