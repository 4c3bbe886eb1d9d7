"""The simulated machine: its clock, its scheduler and its faults. One seed decides all that happens on it.

The scheduler does one thing after the other: it lets bytes arrive on a stream, runs a turn of the manager, or starts a
manager in place of a dead one. The event loop of the clients calls `wait` whenever it would wait for the kernel. If
nothing can happen now, time goes on to the next moment at which something can.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from stepwell.errors import RuntimeLost
from tests.simulator.clock import SimulatedClock
from tests.simulator.disk import SimulatedDisk
from tests.simulator.event_loop import SimulatedEventLoop
from tests.simulator.faults import FaultPlan
from tests.simulator.kernel import Processes
from tests.simulator.manager_process import ManagerProcess
from tests.simulator.network import Network, Pipe, SimulatedSocket
from tests.simulator.oracle import Oracle
from tests.simulator.settings import RunSettings

if TYPE_CHECKING:
    from tests.simulator.client_process import ClientProcess

FIRST_FD = 1_000_000
MANAGER_PID = 100


class Machine:
    """The machine of one run."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.random = random.Random(settings.seed)
        self._random = self.random.random
        self._eagerness = settings.eagerness
        self.clock = SimulatedClock()
        self._next_fd = FIRST_FD
        self.network = Network(self.new_fd)
        self.processes = Processes(self.new_fd)
        self.disk = SimulatedDisk()
        self.loop = SimulatedEventLoop(self)
        self.manager = ManagerProcess(self)
        self.faults = FaultPlan(self)
        self.oracle = Oracle(self)
        self.clients: list[ClientProcess] = []  # all that were ever started
        self.steps = 0
        self.on_close: list[Callable[[], None]] = []
        self.is_stopped = False  # the run is over, and nothing happens any more

    def new_fd(self) -> int:
        self._next_fd += 1
        return self._next_fd

    def now_s(self) -> float:
        return self.clock.now_s

    def dial(self, pid: int) -> SimulatedSocket:
        """Return a new stream of a client's process. Raise `RuntimeLost` if no manager listens."""
        low, high = self.settings.capacity
        try:
            return self.network.dial(pid, MANAGER_PID, self.random.randint(low, high))
        except ConnectionRefusedError as error:
            raise RuntimeLost("there is no manager at the simulated address") from error

    def wait(self, timeout_s: float | None, is_ready: Callable[[], bool]) -> None:
        """Let the machine go on: a step if the caller only looks, otherwise until it is ready or its time is over.

        A caller that has more to do at once lets the machine go on too, by chance, so that its tasks and the manager
        overlap in every way.
        """
        if timeout_s is not None and timeout_s <= 0:
            if self._random() < self.settings.overlap:
                self.step()
            return
        until_s = None if timeout_s is None else self.clock.now_s + timeout_s
        while not is_ready() and (until_s is None or self.clock.now_s < until_s):
            if not self.step() and not self._advance(until_s):
                return

    def step(self) -> bool:
        """Do one thing that can happen now, and return False if there is none."""
        if self.is_stopped:
            return False
        self.steps += 1
        if self.faults.is_any_left:
            self.faults.apply_due()
        now_s = self.clock.now_s
        pipes = [*self.network.news]
        if self.faults.has_frozen:
            pipes = [pipe for pipe in pipes if pipe.frozen_until_s <= now_s]
        weight = self._eagerness if self.manager.is_due(now_s) else 0.0
        if not pipes and not weight:
            return False
        choice = self._random() * (len(pipes) + weight)
        if choice < len(pipes):
            self._deliver(pipes[int(choice)])
        else:
            self.manager.run()
        return True

    def _deliver(self, pipe: Pipe) -> None:
        size = len(pipe.underway)
        if size > 1 and self._random() < self.settings.partial:
            size = self.random.randrange(1, size)
        self.network.deliver(pipe, size)

    def _advance(self, until_s: float | None) -> bool:
        """Let time go on to the next moment at which something happens; return False at the caller's own moment."""
        if self.is_stopped:
            return False
        moments = [pipe.frozen_until_s for pipe in self.network.news]
        moments += self.manager.moments()
        moments += self.faults.moments()
        if until_s is not None:
            moments.append(until_s)
        assert moments, "nothing will ever happen: a lost wake-up"
        moment_s = min(moments)
        self.clock.now_s = max(self.clock.now_s, moment_s)
        return moment_s != until_s

    def close(self) -> None:
        """End all processes, and free what they have of the real machine."""
        self.manager.close()
        self.network.close()
        for release in self.on_close:
            release()
        self.loop.close()
