"""The simulated kernel of a manager: which descriptors are ready, in an order that the seed decides, and which
processes live.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable

from stepwell.transport.address import Credentials
from stepwell.transport.kernel import DescriptorBounds, Kernel, Poller
from stepwell.transport.stream_socket import StreamSocket
from tests.simulator.network import READ, SimulatedListener, SimulatedSocket


class ManagerWaits(BaseException):
    """The manager would sleep in its poll. The machine goes on, and the manager begins its turn anew when it wakes."""


class SimulatedPoller:
    """The descriptors of one manager. `wake_at_s` is when the manager wants to be woken at the latest.

    It cannot sleep: a poll that would wait raises `ManagerWaits`. Descriptors that may be ready are in `_marked`. Only
    the manager's own calls end a readiness, so that it is not examined again while `_is_known_ready`.
    """

    def __init__(self, generator: random.Random, now_s: Callable[[], float], on_call: Callable[[], None]) -> None:
        self._random = generator
        self._now_s = now_s
        self._on_call = on_call
        self._interest: dict[int, int] = {}
        self._marked: dict[int, None] = {}
        self.sockets: dict[int, SimulatedSocket | SimulatedListener] = {}
        self.dead: set[int] = set()  # pidfds whose process has died
        self.wake_at_s = 0.0
        self._is_known_ready = False

    def mark(self, fd: int) -> None:
        self._marked[fd] = None

    @property
    def is_ready(self) -> bool:
        """True if a poll would return a descriptor."""
        if self._is_known_ready:
            return True
        for fd in [*self._marked]:
            if self._events(fd):
                self._is_known_ready = True
                return True
        return False

    def register(self, fd: int, eventmask: int, /) -> None:
        if fd in self._interest:
            raise FileExistsError(17, "File exists")
        self._interest[fd] = eventmask
        self.mark(fd)

    def modify(self, fd: int, eventmask: int, /) -> None:
        self._is_known_ready = False
        self._interest[fd] = eventmask
        self.mark(fd)

    def unregister(self, fd: int, /) -> None:
        self._is_known_ready = False
        del self._interest[fd]
        self._marked.pop(fd, None)
        self.sockets.pop(fd, None)

    def poll(self, timeout: float, /) -> list[tuple[int, int]]:
        self._on_call()
        self._is_known_ready = False
        ready = [(fd, events) for fd in [*self._marked] if (events := self._events(fd))]
        if len(ready) > 1:
            self._random.shuffle(ready)
        self.wake_at_s = self._now_s() + timeout
        if timeout > 0 and not ready:
            raise ManagerWaits
        return ready

    def _events(self, fd: int) -> int:
        """Return the events of a descriptor; without any, it is not examined again before it is marked."""
        interest = self._interest.get(fd, 0)
        if fd in self.dead:
            events = READ & interest
        else:
            found = self.sockets.get(fd)
            events = 0 if found is None else found.events(interest)
        if not events:
            self._marked.pop(fd, None)
        return events

    def close(self) -> None:
        self._is_known_ready = False
        self._interest.clear()
        self._marked.clear()


class SimulatedKernel(Kernel):
    """The kernel as a manager sees it, with simulated processes."""

    def __init__(self, poller: SimulatedPoller, processes: Processes) -> None:
        self._poller = poller
        self._processes = processes

    def poller(self) -> Poller:
        return self._poller

    def has_input(self, descriptors: Iterable[int]) -> bool:
        return any(self._poller.sockets[each].is_readable for each in descriptors if each in self._poller.sockets)

    def kill(self, pidfd: int) -> None:
        self._processes.kill(pidfd)

    def credentials(self, accepted: StreamSocket) -> Credentials:
        assert isinstance(accepted, SimulatedSocket)
        return Credentials(accepted.pid, os.geteuid(), 0)

    def descriptor_bounds(self) -> DescriptorBounds:
        return DescriptorBounds(64, 64)

    def process_identity(self, pid: int) -> str:
        return self._processes.identity(pid)

    def open_pidfd(self, pid: int) -> int | None:
        return self._processes.open_pidfd(pid, self._poller)

    def close_pidfd(self, pidfd: int) -> None:
        self._processes.close_pidfd(pidfd)


class Processes:
    """The living processes of a machine, and the pidfds that managers have of them."""

    def __init__(self, new_fd: Callable[[], int]) -> None:
        self._new_fd = new_fd
        self._alive: dict[int, int] = {}  # by pid, the start
        self._pidfds: dict[int, tuple[int, SimulatedPoller]] = {}
        self._starts = 0
        self.on_kill: Callable[[int], None] = self.end
        self.boot = 1

    def start(self, pid: int) -> None:
        self._starts += 1
        self._alive[pid] = self._starts

    def end(self, pid: int) -> None:
        """Let a process die; its pidfds become readable."""
        if self._alive.pop(pid, None) is not None:
            for pidfd, (watched, poller) in self._pidfds.items():
                if watched == pid:
                    poller.dead.add(pidfd)
                    poller.mark(pidfd)

    def is_alive(self, pid: int) -> bool:
        return pid in self._alive

    def identity(self, pid: int) -> str:
        return f"boot-{self.boot}/{self._alive[pid]}" if pid in self._alive else ""

    def open_pidfd(self, pid: int, poller: SimulatedPoller) -> int | None:
        if pid not in self._alive:
            return None
        fd = self._new_fd()
        self._pidfds[fd] = (pid, poller)
        return fd

    def kill(self, pidfd: int) -> None:
        """Kill the process of a pidfd, as its owner has said what that means."""
        self.on_kill(self._pidfds[pidfd][0])

    def close_pidfd(self, pidfd: int) -> None:
        _, poller = self._pidfds.pop(pidfd)
        if pidfd in poller._interest:
            poller.unregister(pidfd)  # as the kernel does when the last descriptor is closed
        poller.dead.discard(pidfd)
