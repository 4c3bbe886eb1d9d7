"""The scheduler of an executor: one thread that starts workers, gives them calls, and sees them die.

One thread starts all workers, because the kernel kills a worker with the thread that started it. A worker has one
call at a time, so its death is the error of that call alone. Workers are started when calls wait for them, up to the
maximum. A start that fails is tried again after a pause that doubles; after several failures in a row, and without
any living worker, the waiting calls fail.

The life of a worker, as the scheduler sees it:

    starting --READY--> idle --CALL--> running --RESULT or FAILURE--> idle
        |                 |               |
        +----- killed ----+----- dead ----+      at a deadline, by `kill_workers`, or by the call itself
                          |
                          +--- stopped           when the executor is closing and no calls are left

The thread sleeps in a selector on a wake-up descriptor, on the workers' sockets and on their sentinels. The sentinel
alone decides that a worker is dead. The end of its socket does not, because a child that a function has forked may
hold a copy of the socket, and because a function may close it.
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
from stepwell.pool.functions.results import complete, fail
from stepwell.pool.functions.worker_process import FunctionWorkerProcess, PendingCall

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE


class CallScheduler:
    """The queue of calls and the workers that run them.

    Any thread that holds `guard` may use the public attributes and methods, except `run`, which is the scheduler's
    thread. That thread alone uses the private part. Every call that was put into `pending` is completed, unless the
    caller cancels its future: a defect in the scheduler fails all calls, so that no caller waits for ever.
    """

    def __init__(self, max_workers: int) -> None:
        self.guard = threading.RLock()  # reentrant, because the finalizer of an executor may run inside of it
        self.is_closing = False
        self.is_killing = False
        self.pending: deque[PendingCall] = deque()
        self._wake_fd: int | None = None
        self._max_workers = max_workers
        self._workers: set[FunctionWorkerProcess] = set()
        self._starts_failed = 0  # in a row
        self._last_failure = ""
        self._next_start_s = -math.inf

    def open(self) -> None:
        """Make the wake-up descriptor. It has to be there before the thread, so that `wake_up` is never lost."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def wake_up(self) -> None:
        """Have the thread look at `pending` and the flags again."""
        with self.guard:
            if self._wake_fd is not None:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Refuse further calls and close the wake-up descriptor; the thread has ended, or did not start."""
        with self.guard:
            self.is_closing = True
            if self._wake_fd is not None:
                os.close(self._wake_fd)
                self._wake_fd = None

    def run(self) -> None:
        """Schedule calls until `is_closing` is set and all of them are completed; then no worker is left."""
        assert self._wake_fd is not None
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._wake_fd, _READ, partial(os.eventfd_read, self._wake_fd))
            try:
                while self._step():
                    for key, _ in self._selector.select(self._pause_s()):
                        cast("Callable[[], None]", key.data)()
            except BaseException as error:  # noqa: BLE001 - the callers of the futures have to hear of it
                self._abort(error)
            finally:
                self.close()

    def _step(self) -> bool:
        """Do what can be done now; return False when the scheduler is closing and everything has ended."""
        now_s = time.monotonic()
        for worker in self._workers:
            if worker.deadline_s <= now_s or (self.is_killing and not worker.is_killed):
                self._kill(worker)
        self._assign_calls()
        self._start_missing(now_s)
        with self.guard:
            if not self.is_closing or self.pending:
                return True
            for worker in self._workers:
                if worker.call is None and not worker.is_leaving:
                    self._stop(worker)
            return bool(self._workers)

    def _pause_s(self) -> float | None:
        """Return the time until the next deadline or start, or None if there is none."""
        until_s = min((worker.deadline_s for worker in self._workers), default=math.inf)
        if self._is_short_of_workers:
            until_s = min(until_s, self._next_start_s)
        return None if until_s == math.inf else max(0.0, until_s - time.monotonic())

    @property
    def _is_short_of_workers(self) -> bool:
        """Return True if more calls wait than workers are starting, and another worker is allowed."""
        starting = sum(not worker.is_ready for worker in self._workers)
        return starting < len(self.pending) and len(self._workers) < self._max_workers

    def _assign_calls(self) -> None:
        """Give the first pending calls to the idle workers."""
        idle = [worker for worker in self._workers if worker.is_idle]
        while idle and (call := self._next_call()):
            worker = idle.pop()
            worker.assign(call)
            self._watch(worker)

    def _next_call(self) -> PendingCall | None:
        """Return the first pending call that is not cancelled, or None.

        From here on its future is running and cannot be cancelled. It is running already if a worker died before it
        began the call.
        """
        while True:
            with self.guard:
                call = self.pending.popleft() if self.pending else None
            if call is None or call.future.running() or call.future.set_running_or_notify_cancel():
                return call

    # Workers start.

    def _start_missing(self, now_s: float) -> None:
        """Start the workers that the pending calls need, unless a pause is not over or too many starts have failed."""
        while self._is_short_of_workers:
            if self._starts_failed >= limits.WORKER_STARTS_FAILED_MAX:
                self._fail_pending()
                return
            if now_s < self._next_start_s or self.is_killing:
                return
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        """Start a worker and watch it. A start that fails at once counts like a process that ends while starting."""
        try:
            worker = FunctionWorkerProcess()
        except OSError as error:
            self._count_failed_start(now_s, f"could not be started: {error}")
            return
        self._workers.add(worker)
        self._selector.register(worker.socket, _READ, partial(self._on_socket, worker))
        self._selector.register(worker.sentinel, _READ, partial(self._on_death, worker))

    def _count_failed_start(self, now_s: float, reason: str) -> None:
        """Delay the next start; the delay doubles with each failure until a worker has answered a call."""
        self._last_failure = reason
        self._next_start_s = now_s + limits.WORKER_START_PAUSE_SECONDS * 2**self._starts_failed
        self._starts_failed += 1

    def _fail_pending(self) -> None:
        """Fail all pending calls because no worker starts, unless one still lives and may run them later."""
        if self._workers:
            return
        self._starts_failed = 0
        while call := self._next_call():
            fail(call, StartFailed(f"{call.name} was not run: the last of several workers {self._last_failure}"))

    # Workers answer.

    def _on_socket(self, worker: FunctionWorkerProcess) -> None:
        """Receive and send what is possible now; replace a worker whose stream cannot be used any more.

        There may be too little memory for a large result. That is the error of its call, and the rest of the result
        cannot be skipped, so the worker is killed.
        """
        if worker not in self._workers or worker.is_leaving:
            return
        try:
            self._receive(worker, limits.FUNCTION_PART_BYTES)
        except EOFError:
            self._kill(worker)
        except MemoryError as error:
            if worker.call is not None:
                fail(worker.call, error)
                worker.call = None
            self._kill(worker)
        else:
            worker.send()
            self._watch(worker)

    def _receive(self, worker: FunctionWorkerProcess, part_bytes: float) -> None:
        """Handle the frames that have arrived; `part_bytes` bounds the turn of one worker, so that none starves."""
        for kind, data in worker.receive(part_bytes):
            if kind is FrameKind.READY:
                worker.is_ready, worker.deadline_s = True, math.inf
            elif worker.call is not None:
                self._starts_failed = 0
                call, worker.call = worker.call, None
                complete(call, kind, data)

    def _watch(self, worker: FunctionWorkerProcess) -> None:
        """Wake up for a writable socket only while there is something to write."""
        events = _READ | _WRITE if worker.is_sending else _READ
        key = self._selector.get_key(worker.socket)
        if key.events != events:
            self._selector.modify(worker.socket, events, key.data)

    # Workers end.

    def _kill(self, worker: FunctionWorkerProcess) -> None:
        """Kill the worker and read nothing more from it; `_on_death` follows."""
        self._unregister(worker.socket)
        worker.kill()

    def _stop(self, worker: FunctionWorkerProcess) -> None:
        """Let an idle worker end by itself; `_on_death` follows, or `_kill` at its deadline."""
        self._unregister(worker.socket)
        worker.stop()

    def _unregister(self, descriptor: socket.socket | int) -> None:
        with contextlib.suppress(KeyError):
            # Closing alone does not remove it from epoll, because a forked child may hold a copy.
            self._selector.unregister(descriptor)

    def _on_death(self, worker: FunctionWorkerProcess) -> None:
        """Reap a dead worker, and decide about the call that it had.

        A call that the worker had begun fails with WorkerDied, because it may have had effects. A call that the
        worker had not begun goes back to the head of the queue.
        """
        with contextlib.suppress(EOFError, MemoryError):
            self._receive(worker, math.inf)  # an answer that came before the death counts
        self._workers.remove(worker)
        self._unregister(worker.socket)
        self._unregister(worker.sentinel)
        ended = worker.reap()
        if ended.is_failed_start and not worker.is_stopping:
            self._count_failed_start(time.monotonic(), ended.description)
        if worker.call is None:
            return
        if ended.is_caused_by_call or self.is_killing:
            fail(worker.call, ended.error(worker.call.name))
        else:
            with self.guard:
                self.pending.appendleft(worker.call)

    def _abort(self, error: BaseException) -> None:
        """Kill all workers and fail all calls with a RuntimeFault whose cause is the error."""
        with self.guard:
            self.is_closing = True
        left = [worker.call for worker in self._workers if worker.call is not None]
        for worker in self._workers:
            worker.kill()
            worker.reap()
        self._workers.clear()
        while call := self._next_call():
            left.append(call)
        for call in left:
            broken = RuntimeFault(f"{call.name} was not finished: the executor broke: {error!r}")
            broken.__cause__ = error
            fail(call, broken)
