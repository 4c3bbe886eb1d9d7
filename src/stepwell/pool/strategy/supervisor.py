"""The supervisor: starts workers, starts another where one died, and says of each death what is left of it.

Everything happens in the one thread that calls `run`: the kernel ends a worker with the thread that started it. Workers
end with their manager, too: it is watched here, because a strategy that is busy in C could not do that itself.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from msgspec import Struct

from stepwell import limits
from stepwell.client.client import Client, connect
from stepwell.errors import RuntimeLost, StartFailed, StepwellError
from stepwell.pool.strategy.settings import EXIT_NO_MANAGER, EXIT_RECYCLED
from stepwell.pool.strategy.worker_process import StrategyWorkerProcess
from stepwell.telemetry import Logger, LogLevel

_EXPECTED: Final = (0, EXIT_RECYCLED, EXIT_NO_MANAGER)
_TICK_SECONDS: Final = 1.0
_RELEASE_SECONDS: Final = 0.2  # that the manager has to hear of it; Ctrl-C should not take longer than two


class PoolSettings(Struct, frozen=True, kw_only=True):
    """Which workers to have."""

    address: str
    workers: int
    strategies: tuple[str, ...] = ()  # `module:attr`
    pickled_strategies: bytes | None = None  # pickled ones, of this program
    max_memory_bytes: int | None = None
    nice: int | None = None
    log_level: LogLevel = LogLevel.WARNING


class PoolStatus(Struct, frozen=True):
    """How the workers are."""

    wanted: int
    ready: int
    restarts: int
    pids: tuple[int, ...]
    problem: str = ""  # why there are none, if they were given up


class _Slot:
    """A place for a worker, and how those fared that had it."""

    def __init__(self) -> None:
        self.worker: StrategyWorkerProcess | None = None
        self.start_at_s = 0.0
        self.short_lives = 0  # in a row
        self.false_starts = 0  # in a row: ended before they were ready


class Supervisor:
    """Keeps as many workers as are wanted. `run` in one thread; the rest from any."""

    def __init__(self, settings: PoolSettings, on_change: Callable[[PoolStatus], None] | None = None) -> None:
        self._settings = settings
        self._on_change = on_change or _unheard
        self._log = Logger(settings.log_level, address=settings.address)
        self._slots = [_Slot() for _ in range(settings.workers)]
        self._restarts = 0
        self._problem = ""
        self._is_stopping = False
        self._waking = threading.RLock()
        self._wake: int | None = os.eventfd(0)

    @property
    def status(self) -> PoolStatus:
        """How it is, at this moment."""
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        return PoolStatus(
            wanted=len(self._slots),
            ready=sum(each.is_ready for each in workers),
            restarts=self._restarts,
            pids=tuple(each.pid for each in workers),
            problem=self._problem,
        )

    def stop(self) -> None:
        """From any thread, or a signal's handler: have `run` end, and all workers before it."""
        self._is_stopping = True
        with self._waking:  # reentrant: the handler of a signal may interrupt whoever has it
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Have workers until told to stop, or until the manager is gone for good; then there are none."""
        try:
            while self._is_wanted():
                with _manager(self._settings.address, self._is_wanted) as manager:
                    self._serve(manager)
                if self._is_wanted() and not manager.comes_back:
                    raise RuntimeLost("the manager is gone")
        except StepwellError as error:
            if self._is_wanted():
                self._problem = error.message
                self._log.error("pool.given_up", reason=error.message)
        finally:
            self._is_stopping = True
            self._stop_all(at_once=True)
            with self._waking:  # whoever stops us later must not write to what has its number then
                wake, self._wake = self._wake, None
            assert wake is not None
            os.close(wake)
            self._on_change(self.status)

    def _is_wanted(self) -> bool:
        return not self._is_stopping

    def _serve(self, manager: _ManagerLink) -> None:
        """For as long as that manager is there."""
        with selectors.DefaultSelector() as selector:
            assert self._wake is not None
            selector.register(self._wake, selectors.EVENT_READ, None)
            selector.register(manager.pidfd, selectors.EVENT_READ, manager)
            try:
                while not self._is_stopping:
                    pause_s = self._start_missing(selector)
                    ready = selector.select(min(pause_s, _TICK_SECONDS))
                    if any(key.data is manager for key, _ in ready):
                        return
                    self._attend(selector, manager, {key.data for key, _ in ready if key.data is not None})
            finally:
                if self._is_stopping:
                    manager.release(self.status.pids)
                self._stop_all(at_once=not self._is_stopping)

    def _start_missing(self, selector: selectors.BaseSelector) -> float:
        """Start who may be started by now; how long until the next."""
        now_s = time.monotonic()
        for slot in self._slots:
            if slot.worker is None and slot.start_at_s <= now_s:
                slot.worker = StrategyWorkerProcess(self._settings)
                for descriptor in slot.worker.descriptors:
                    selector.register(descriptor, selectors.EVENT_READ, slot)
        waits = [slot.start_at_s - now_s for slot in self._slots if slot.worker is None]
        return max(0.0, min(waits, default=_TICK_SECONDS))

    def _attend(self, selector: selectors.BaseSelector, manager: _ManagerLink, slots: set[_Slot]) -> None:
        for slot in slots:
            worker = slot.worker
            if worker is None:
                continue
            worker.listen()
            for descriptor in worker.pop_finished():
                selector.unregister(descriptor)
            if (code := worker.exit_code()) is not None:
                for descriptor in worker.descriptors:
                    selector.unregister(descriptor)
                self._reap(slot, worker, code, manager)
        self._on_change(self.status)

    def _reap(self, slot: _Slot, worker: StrategyWorkerProcess, code: int, manager: _ManagerLink) -> None:
        """Say what is left of a worker, and when there will be another one in its place."""
        slot.worker = None
        evidence = worker.evidence(code)
        worker.close()
        self._restarts += 1
        if code not in _EXPECTED:
            self._log.warning("worker.died", pid=worker.pid, exit_code=code)
            manager.report_death(worker.pid, evidence)
        slot.start_at_s = time.monotonic() + self._pause_s(slot, worker, code)

    def _pause_s(self, slot: _Slot, worker: StrategyWorkerProcess, code: int) -> float:
        """None after a long life or a good end; else the longer, the more ended early in a row."""
        if not worker.is_ready and code >= 0:  # by itself: who was killed says nothing about the next
            slot.false_starts += 1
            if slot.false_starts >= limits.WORKER_STARTS_FAILED_MAX:
                last = worker.last_output or "it said nothing"
                raise StartFailed(f"workers end before they are ready (exit code {code}): {last}"[-2000:])
        elif worker.is_ready:
            slot.false_starts = 0
        is_short = not worker.is_ready or worker.age_s < limits.WORKER_SETTLED_SECONDS
        slot.short_lives = slot.short_lives + 1 if is_short and code != EXIT_RECYCLED else 0
        doublings = min(slot.short_lives - 1, 10)
        return (
            min(limits.RESTART_PAUSE_SECONDS * 2**doublings, limits.WORKER_PAUSE_SECONDS_MAX) if doublings > 0 else 0.0
        )

    def _stop_all(self, *, at_once: bool) -> None:
        """Let go of all workers: those that are idle end by themselves, the others are killed after a moment."""
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        for each in workers:
            each.stop()
        until_s = time.monotonic() + (0.0 if at_once else limits.WORKER_GOODBYE_SECONDS)
        for each in workers:
            each.end(until_s)
        for slot in self._slots:
            slot.worker = None


def _unheard(_status: PoolStatus) -> None:
    """Nobody wants to know."""


class _ManagerLink:
    """The manager that the workers work for, and a session of our own with it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        status = client.status()
        self.comes_back = status.database is not None
        self.pidfd = os.pidfd_open(status.pid)
        self._reports: list[threading.Thread] = []

    def report_death(self, pid: int, evidence: str) -> None:
        """What is left of a worker. Nobody waits until it is known."""
        self._run_report(lambda: self.client.strategies.report_death(pid, evidence))

    def release(self, pids: Sequence[int]) -> None:
        """That these will be stopped, which has to be known before, if it can be."""

        def release() -> None:
            for pid in pids:
                self.client.strategies.release(pid)

        self._run_report(release).join(_RELEASE_SECONDS)

    def _run_report(self, tell: Callable[[], None]) -> threading.Thread:
        """In a thread: a manager that is stopped must not stop us."""

        def tell_if_there() -> None:
            with contextlib.suppress(StepwellError):
                tell()

        self._reports = [each for each in self._reports if each.is_alive()]
        report = threading.Thread(target=tell_if_there, daemon=True)
        self._reports.append(report)
        report.start()
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.pidfd)
        self.client.close()
        for report in self._reports:
            report.join(limits.WORKER_GOODBYE_SECONDS)


def _manager(address: str, is_wanted: Callable[[], bool]) -> _ManagerLink:
    """Wait for one, as long as a client would and somebody wants it."""
    until_s = time.monotonic() + limits.RECONNECT_SECONDS_MAX
    while True:
        try:
            client = connect(address)
        except RuntimeLost:
            if time.monotonic() >= until_s or not is_wanted():
                raise
            time.sleep(limits.RECONNECT_PAUSE_SECONDS)
            continue
        try:
            return _ManagerLink(client)
        except ProcessLookupError:
            client.close()
