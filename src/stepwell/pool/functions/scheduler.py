"""Where functions are given to workers: one thread starts workers as they are needed, and sees them die.

It starts all of them itself, because a worker dies with the thread that started it. A worker has one function at a
time: its death is the error of that one alone, and of none that it had not begun with.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from stepwell import limits
from stepwell.errors import RuntimeFault, StartFailed
from stepwell.pool.functions.frames import FrameKind
from stepwell.pool.functions.results import answer, fail
from stepwell.pool.functions.worker_process import FunctionWorkerProcess, PendingCall

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class CallScheduler:
    """The public part is for any thread, under the guard; the rest is the own of the thread inside `run`."""

    def __init__(self, max_workers: int) -> None:
        self.guard = threading.RLock()  # the finalizer of an executor may run anywhere, inside it too
        self.is_closing = False
        self.is_killing = False
        self.pending: deque[PendingCall] = deque()
        self._wake_fd: int | None = None
        self._max_workers = max_workers
        self._workers: set[FunctionWorkerProcess] = set()
        self._starts_failed = 0
        self._reason = ""
        self._next_start_s = -math.inf

    def open(self) -> None:
        """Before `run`, so that it can be rung for."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def wake_up(self) -> None:
        """Have a look: there is something new."""
        with self.guard:
            if self._wake_fd is not None:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        with self.guard:
            self.is_closing = True
            if self._wake_fd is not None:
                os.close(self._wake_fd)
                self._wake_fd = None

    def run(self) -> None:
        """Until it is closing and all is done. A defect here is everybody's error, and nobody waits for ever."""
        assert self._wake_fd is not None
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._wake_fd, _READ, partial(os.eventfd_read, self._wake_fd))
            try:
                while self._step():
                    for key, _ in self._selector.select(self._pause_s()):
                        cast("Callable[[], None]", key.data)()
            except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
                self._abort(error)
            finally:
                self.close()

    def _step(self) -> bool:
        now_s = time.monotonic()
        for worker in self._workers:
            if worker.until_s <= now_s or (self.is_killing and not worker.is_killed):
                self._kill(worker)
        self._assign_calls()
        self._start_missing(now_s)
        with self.guard:
            if not self.is_closing or self.pending:
                return True
            for worker in self._workers:
                if worker.task is None and not worker.is_leaving:
                    self._stop(worker)
            return bool(self._workers)

    def _pause_s(self) -> float | None:
        until_s = min((worker.until_s for worker in self._workers), default=math.inf)
        if self._is_short:
            until_s = min(until_s, self._next_start_s)
        return None if until_s == math.inf else max(0.0, until_s - time.monotonic())

    @property
    def _is_short(self) -> bool:
        """Whether there is more to do than there are workers coming, and room for another one."""
        starting = sum(not worker.is_ready for worker in self._workers)
        return starting < len(self.pending) and len(self._workers) < self._max_workers

    def _assign_calls(self) -> None:
        idle = [worker for worker in self._workers if worker.is_idle]
        while idle and (task := self._next()):
            worker = idle.pop()
            worker.give(task)
            self._watch(worker)

    def _next(self) -> PendingCall | None:
        """The first that nobody has cancelled."""
        while True:
            with self.guard:
                task = self.pending.popleft() if self.pending else None
            if task is None or task.future.running() or task.future.set_running_or_notify_cancel():
                return task

    # Workers come.

    def _start_missing(self, now_s: float) -> None:
        while self._is_short:
            if self._starts_failed >= limits.WORKER_STARTS_FAILED_MAX:
                self._fail_pending()
                return
            if now_s < self._next_start_s or self.is_killing:
                return
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        try:
            worker = FunctionWorkerProcess()
        except OSError as error:
            self._count_failure(now_s, f"could not be started: {error}")
            return
        self._workers.add(worker)
        self._selector.register(worker.socket, _READ, partial(self._on_socket, worker))
        self._selector.register(worker.pidfd, _READ, partial(self._on_death, worker))

    def _count_failure(self, now_s: float, reason: str) -> None:
        self._reason = reason
        self._next_start_s = now_s + limits.WORKER_START_PAUSE_SECONDS * 2**self._starts_failed
        self._starts_failed += 1

    def _fail_pending(self) -> None:
        """While some worker works there is hope; without one, whoever waits is told."""
        if self._workers:
            return
        self._starts_failed = 0
        while task := self._next():
            fail(task, StartFailed(f"{task.name} was not run: the last of several workers {self._reason}"))

    # Workers talk.

    def _on_socket(self, worker: FunctionWorkerProcess) -> None:
        if worker not in self._workers or worker.is_leaving:
            return
        try:
            self._receive(worker, limits.FUNCTION_PART_BYTES)
        except EOFError:
            self._kill(worker)
        except MemoryError as error:
            if worker.task is not None:
                fail(worker.task, error)
                worker.task = None
            self._kill(worker)
        else:
            worker.send()
            self._watch(worker)

    def _receive(self, worker: FunctionWorkerProcess, part_bytes: float) -> None:
        for kind, data in worker.receive(part_bytes):
            if kind is FrameKind.READY:
                worker.is_ready, worker.until_s = True, math.inf
            elif worker.task is not None:
                self._starts_failed = 0
                task, worker.task = worker.task, None
                answer(task, kind, data)

    def _watch(self, worker: FunctionWorkerProcess) -> None:
        events = _READ | _WRITE if worker.is_sending else _READ
        key = self._selector.get_key(worker.socket)
        if key.events != events:
            self._selector.modify(worker.socket, events, key.data)

    # Workers go.

    def _kill(self, worker: FunctionWorkerProcess) -> None:
        """Whatever it still does, nobody listens any more."""
        self._forget(worker.socket)
        worker.kill()

    def _stop(self, worker: FunctionWorkerProcess) -> None:
        self._forget(worker.socket)
        worker.stop()

    def _forget(self, line: socket.socket | int) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(line)  # before it is closed: a forked child may hold a copy

    def _on_death(self, worker: FunctionWorkerProcess) -> None:
        with contextlib.suppress(EOFError, MemoryError):
            self._receive(worker, math.inf)  # the answer may have come before the end
        self._workers.remove(worker)
        self._forget(worker.socket)
        self._forget(worker.pidfd)
        death = worker.reap()
        if death.is_failed_start and not worker.is_stopping:
            self._count_failure(time.monotonic(), death.manner)
        if worker.task is None:
            return
        if death.is_caused_by_call or self.is_killing:
            fail(worker.task, death.error(worker.task.name))
        else:
            with self.guard:
                self.pending.appendleft(worker.task)

    def _abort(self, error: BaseException) -> None:
        with self.guard:
            self.is_closing = True
        left = [worker.task for worker in self._workers if worker.task is not None]
        for worker in self._workers:
            worker.kill()
            worker.reap()
        self._workers.clear()
        while task := self._next():
            left.append(task)
        for task in left:
            broken = RuntimeFault(f"{task.name} was not finished: the executor broke: {error!r}")
            broken.__cause__ = error
            fail(task, broken)
