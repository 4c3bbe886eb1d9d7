"""The supervisor of a pool of strategy workers: it starts them, replaces those that end, and reports each death.

Everything happens in the one thread that calls `run`, because the kernel kills a worker with the thread that started
it. The supervisor also watches the manager's process and kills the workers when it ends, because a strategy that is
busy in C could not notice that itself.

The end of a worker decides about its replacement:

| end | replacement | reported to the manager |
|---|---|---|
| after a long life, or for the first time | at once | unless it was expected |
| recycled, after it ran out of memory | at once | no |
| early, several times in a row | after a pause that doubles | unless it was expected |
| by itself, before it was ready, several times in a row | none: the supervisor gives up | yes |

A manager with a data directory is restarted when it dies. The supervisor then connects again and starts new workers;
with any other manager it ends.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Self

from msgspec.structs import asdict

from stepwell import limits
from stepwell.client.client import Client, unconnected
from stepwell.errors import RuntimeLost, StartFailed, StepwellError
from stepwell.pool.strategy.settings import EXIT_NO_MANAGER, EXIT_RECYCLED, PoolSettings, PoolStatus
from stepwell.pool.strategy.worker_process import StrategyWorkerProcess
from stepwell.telemetry import Logger

_EXPECTED_EXITS: Final = (0, EXIT_RECYCLED, EXIT_NO_MANAGER)


class _Slot:
    """A place for one worker, and how the workers that had this place ended."""

    def __init__(self) -> None:
        self.worker: StrategyWorkerProcess | None = None
        self.start_at_s = 0.0
        self.short_lives = 0  # in a row
        self.failed_starts = 0  # in a row: processes that ended by themselves before they were ready


class Supervisor:
    """Keeps the wanted number of workers. One thread calls `run`; any thread may use `stop` and `status`.

    `stepwell workers` runs one in its main thread; otherwise a `BackgroundPool` owns it and its thread.

    `on_change` is called in the thread of `run` with each new status. When `run` returns, no worker is left.
    """

    def __init__(self, settings: PoolSettings, on_change: Callable[[PoolStatus], None] | None = None) -> None:
        self._settings = settings
        self._on_change = on_change or _ignore
        self._log = Logger(settings.log_level, address=settings.address)
        self._slots = [_Slot() for _ in range(settings.workers)]
        self._restarts = 0
        self._problem = ""
        self._logged_problems: set[tuple[str, str]] = set()
        self._is_stopping = False
        self._wake_guard = threading.RLock()  # reentrant, because a signal handler may interrupt the thread that has it
        self._wake_fd: int | None = os.eventfd(0)

    @property
    def status(self) -> PoolStatus:
        """The status at this moment."""
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        return PoolStatus(
            wanted=len(self._slots),
            ready=sum(each.is_ready for each in workers),
            restarts=self._restarts,
            pids=tuple(each.pid for each in workers),
            problem=self._problem,
        )

    def stop(self) -> None:
        """Make `run` end all workers and return. A signal handler may call this too."""
        self._is_stopping = True
        with self._wake_guard:
            if self._wake_fd is not None:
                os.eventfd_write(self._wake_fd, 1)

    def run(self) -> None:
        """Supervise workers until `stop`, or until the manager is gone and will not be restarted.

        An error that ends the supervision is logged, and is the `problem` of the status.
        """
        try:
            while self._is_wanted():
                with _manager(self._settings.address, self._is_wanted) as manager:
                    self._supervise(manager)
                if self._is_wanted() and not manager.is_durable:
                    raise RuntimeLost("the manager is gone")
        except StepwellError as error:
            if self._is_wanted():
                self._problem = error.message
                self._log.error("pool.given_up", reason=error.message)
        finally:
            self._is_stopping = True
            self._stop_all(at_once=True)
            with self._wake_guard:  # a later `stop` must not write to a descriptor that has the number by then
                wake_fd, self._wake_fd = self._wake_fd, None
            assert wake_fd is not None
            os.close(wake_fd)
            self._on_change(self.status)

    def _is_wanted(self) -> bool:
        return not self._is_stopping

    def _supervise(self, manager: _ManagerConnection) -> None:
        """Keep workers for this manager, until it ends or the supervisor is stopped; then none of them is left."""
        with selectors.DefaultSelector() as selector:
            assert self._wake_fd is not None
            selector.register(self._wake_fd, selectors.EVENT_READ, None)
            selector.register(manager.pidfd, selectors.EVENT_READ, manager)
            try:
                while not self._is_stopping:
                    pause_s = self._start_missing(selector)
                    ready = selector.select(min(pause_s, limits.WORKER_CHECK_SECONDS))
                    if any(key.data is manager for key, _ in ready):
                        return
                    self._read(selector, manager, {key.data for key, _ in ready if key.data is not None})
            finally:
                if self._is_stopping:
                    manager.release(self.status.pids)
                self._stop_all(at_once=not self._is_stopping)

    def _start_missing(self, selector: selectors.BaseSelector) -> float:
        """Start a worker in each empty slot whose pause is over; return the time until the next pause is over."""
        now_s = time.monotonic()
        for slot in self._slots:
            if slot.worker is None and slot.start_at_s <= now_s:
                slot.worker = StrategyWorkerProcess(self._settings)
                for descriptor in slot.worker.descriptors:
                    selector.register(descriptor, selectors.EVENT_READ, slot)
        waits = [slot.start_at_s - now_s for slot in self._slots if slot.worker is None]
        return max(0.0, min(waits, default=limits.WORKER_CHECK_SECONDS))

    def _read(self, selector: selectors.BaseSelector, manager: _ManagerConnection, slots: set[_Slot]) -> None:
        """Read what the workers in these slots have sent, and reap those that have ended."""
        for slot in slots:
            worker = slot.worker
            if worker is None:
                continue
            worker.read()
            self._log_problems(worker)
            for descriptor in worker.pop_finished():
                selector.unregister(descriptor)
            if (code := worker.exit_code()) is not None:
                for descriptor in worker.descriptors:
                    selector.unregister(descriptor)
                self._reap(slot, worker, code, manager)
        self._on_change(self.status)

    def _log_problems(self, worker: StrategyWorkerProcess) -> None:
        """Log the installed strategies that a worker could not load: each once, because all workers have the same.

        It is no Python warning: a program that turns warnings into errors must not fail for a package that it does not
        use.
        """
        for problem in worker.problems:
            if problem.key not in self._logged_problems:
                self._logged_problems.add(problem.key)
                self._log.warning("strategy.not_loaded", **asdict(problem))

    def _reap(self, slot: _Slot, worker: StrategyWorkerProcess, code: int, manager: _ManagerConnection) -> None:
        """Empty the slot of a worker that has ended, report an unexpected end, and schedule the next start."""
        slot.worker = None
        evidence = worker.evidence(code)
        worker.close()
        self._restarts += 1
        if code not in _EXPECTED_EXITS:
            # No warning: the manager gives the task to another worker, or its caller gets the error, with the evidence.
            self._log.info("worker.died", pid=worker.pid, exit_code=code)
            manager.report_death(worker.pid, evidence)
        slot.start_at_s = time.monotonic() + self._pause_s(slot, worker, code)

    def _pause_s(self, slot: _Slot, worker: StrategyWorkerProcess, code: int) -> float:
        """Return the pause before the next start in the slot: none after a long life or an expected recycling.

        Raise StartFailed after several workers in a row that ended before they were ready.
        """
        if not worker.is_ready and code >= 0:  # a worker that was killed says nothing about the next one
            slot.failed_starts += 1
            if slot.failed_starts >= limits.WORKER_STARTS_FAILED_MAX:
                output = worker.last_output or "it said nothing"
                message = f"workers end before they are ready (exit code {code}): {output}"
                raise StartFailed(message[-limits.WORKER_OUTPUT_CHARS_MAX :])
        elif worker.is_ready:
            slot.failed_starts = 0
        is_short = not worker.is_ready or worker.age_s < limits.WORKER_SETTLED_SECONDS
        slot.short_lives = slot.short_lives + 1 if is_short and code != EXIT_RECYCLED else 0
        doublings = min(slot.short_lives - 1, limits.WORKER_PAUSE_DOUBLINGS_MAX)
        if doublings <= 0:
            return 0.0
        return min(limits.RESTART_PAUSE_SECONDS * 2.0**doublings, limits.WORKER_PAUSE_SECONDS_MAX)

    def _stop_all(self, *, at_once: bool) -> None:
        """End all workers: idle ones end by themselves, the others are killed after a moment, or at once."""
        workers = [slot.worker for slot in self._slots if slot.worker is not None]
        for each in workers:
            each.stop()
        until_s = time.monotonic() + (0.0 if at_once else limits.WORKER_GOODBYE_SECONDS)
        for each in workers:
            each.end(until_s)
        for slot in self._slots:
            slot.worker = None


def _ignore(_status: PoolStatus) -> None:
    """Do nothing: the owner of the supervisor gave no `on_change`."""


class _ManagerConnection:
    """The manager's process, and a session with it for reports.

    Reports are sent from threads of their own, because a manager that is stopped (SIGSTOP) must not hold up the
    supervisor.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        status = client.status()
        self.is_durable = status.database is not None  # then it is restarted when it dies
        self.pidfd = os.pidfd_open(status.pid)
        self._reports: list[threading.Thread] = []

    def report_death(self, pid: int, evidence: str) -> None:
        """Send the evidence of a worker's death, without waiting for the answer."""
        self._start_report(lambda: self.client.strategies.report_death(pid, evidence))

    def release(self, pids: Sequence[int]) -> None:
        """Tell the manager that these workers will be stopped on purpose; wait a moment until it knows."""

        def release() -> None:
            for pid in pids:
                self.client.strategies.release(pid)

        self._start_report(release).join(limits.WORKER_RELEASE_SECONDS)

    def _start_report(self, send: Callable[[], None]) -> threading.Thread:
        """Send a report in a thread and return the thread. A report that cannot be sent is dropped."""

        def send_if_there() -> None:
            with contextlib.suppress(StepwellError):
                send()

        self._reports = [each for each in self._reports if each.is_alive()]
        report = threading.Thread(target=send_if_there, daemon=True)
        self._reports.append(report)
        report.start()
        return report

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session, which ends calls that still wait, and give the reports a moment to end."""
        os.close(self.pidfd)
        self.client.close()
        for report in self._reports:
            report.join(limits.WORKER_GOODBYE_SECONDS)


def _manager(address: str, is_wanted: Callable[[], bool]) -> _ManagerConnection:
    """Return a connection to the manager, or raise RuntimeLost.

    It waits for a manager as long as a client would, unless `is_wanted` returns False before.
    """
    until_s = time.monotonic() + limits.RECONNECT_SECONDS_MAX
    while True:
        client = unconnected(address, None)
        client.belongs_to(None, is_wanted)
        try:
            client.open()
        except RuntimeLost:
            if time.monotonic() >= until_s or not is_wanted():
                raise
            time.sleep(limits.RECONNECT_PAUSE_SECONDS)
            continue
        try:
            return _ManagerConnection(client)
        except ProcessLookupError:  # it ended between its answer and our look at its process
            client.close()
