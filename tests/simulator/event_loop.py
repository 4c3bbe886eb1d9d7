"""An event loop of asyncio without a kernel: it waits by letting the simulated machine go on."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol, TypeVarTuple, Unpack

from tests.simulator.clock import SimulatedClock
from tests.simulator.network import SimulatedSocket

Ts = TypeVarTuple("Ts")

_RESOLUTION_S = 1e-9

_Watched = dict[int, tuple[SimulatedSocket, asyncio.Handle]]
"""The sockets that are watched for one direction, by descriptor, with the callbacks."""


class Machine(Protocol):
    """The machine, as far as an event loop waits for it."""

    @property
    def clock(self) -> SimulatedClock: ...
    def wait(self, timeout_s: float | None, is_ready: Callable[[], bool]) -> None: ...


class SimulatedEventLoop(asyncio.BaseEventLoop):
    """Runs the tasks of all simulated processes. Callbacks run in the order in which they became ready.

    `_run_once` and `call_soon` do what those of asyncio do, without what only a loop with threads, real descriptors and
    a debug mode needs.
    """

    _ready: deque[asyncio.Handle]  # the callbacks of asyncio that are to run next
    _scheduled: list[asyncio.TimerHandle]  # a heap
    _stopping: bool

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._clock = machine.clock
        self._readers: _Watched = {}
        self._writers: _Watched = {}
        self._marked: dict[int, None] = {}
        self.defects: list[str] = []  # errors of callbacks, which no task could raise
        self.set_exception_handler(self._on_error)

    @staticmethod
    def _on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note an error of a callback. A task whose error was not awaited belongs to a run that has failed already."""
        assert isinstance(loop, SimulatedEventLoop)
        if "task" not in context and "future" not in context:
            loop.defects.append(f"{context['message']}: {context.get('exception')!r}")

    def time(self) -> float:
        return self._clock.now_s

    def mark(self, fd: int) -> None:
        """Note that a socket may be ready."""
        self._marked[fd] = None

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        """Let the machine go on, and run what is ready then."""
        ready, scheduled = self._ready, self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        if ready or self._stopping:
            timeout_s: float | None = 0.0
        else:
            timeout_s = max(0.0, scheduled[0].when() - self._clock.now_s) if scheduled else None
        self._machine.wait(timeout_s, self._is_ready)
        if self._marked:
            for fd in [*self._marked]:
                ready.extend(self._callbacks_of(fd))
        end_s = self._clock.now_s + _RESOLUTION_S
        while scheduled and scheduled[0].when() < end_s:
            ready.append(heapq.heappop(scheduled))
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _is_ready(self) -> bool:
        """Return True if a task can run: a fault has woken one, or a socket is ready."""
        if self._ready:
            return True
        for fd in [*self._marked]:  # noqa: SIM110 - a generator costs more than the loop, and this is asked at each step
            if self._callbacks_of(fd):
                return True
        return False

    def _callbacks_of(self, fd: int) -> list[asyncio.Handle]:
        """Return the callbacks of a marked socket; without any, it is not examined again before it is marked."""
        callbacks: list[asyncio.Handle] = []
        if (reader := self._readers.get(fd)) is not None:
            incoming = reader[0].incoming
            if incoming.arrived or incoming.is_eof:
                callbacks.append(reader[1])
        if (writer := self._writers.get(fd)) is not None and writer[0].is_writable:
            callbacks.append(writer[1])
        if not callbacks:
            del self._marked[fd]
        return callbacks

    def add_reader(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:  # noqa: ANN401
        self._watch(self._readers, fd, asyncio.Handle(callback, args, self))

    def add_writer(self, fd: Any, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:  # noqa: ANN401
        self._watch(self._writers, fd, asyncio.Handle(callback, args, self))

    def _watch(self, watched: _Watched, sock: SimulatedSocket, callback: asyncio.Handle) -> None:
        self._ignore(watched, sock)
        sock.watcher = self
        watched[sock.fileno()] = (sock, callback)
        self.mark(sock.fileno())

    def remove_reader(self, fd: Any) -> bool:  # noqa: ANN401
        return self._ignore(self._readers, fd)

    def remove_writer(self, fd: Any) -> bool:  # noqa: ANN401
        return self._ignore(self._writers, fd)

    @staticmethod
    def _ignore(watched: _Watched, sock: SimulatedSocket) -> bool:
        """Stop watching a socket, and return True if it was watched.

        The callback is cancelled, as asyncio does it, because it may be due in this same round.
        """
        found = watched.pop(sock.fileno(), None)
        if found is not None:
            found[1].cancel()
        return found is not None

    def _write_to_self(self) -> None:
        """Do nothing: there is no other thread that could have called."""
