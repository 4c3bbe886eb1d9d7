"""The thread in which functions are given to workers, and its end: with the executor, and with the program."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Final

from stepwell.pool.functions.scheduler import CallScheduler
from stepwell.pool.functions.worker_process import PendingCall


class SchedulerThread:
    """Its thread knows it, and not the executor: one that is dropped finishes what it was given, and ends."""

    def __init__(self, max_workers: int) -> None:
        self.owner = os.getpid()
        self._scheduler = CallScheduler(max_workers)
        self._thread: threading.Thread | None = None

    @property
    def is_closing(self) -> bool:
        return self._scheduler.is_closing

    def submit(self, task: PendingCall) -> None:
        with self._scheduler.guard:
            if self.is_closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._thread is None:
                self._thread = self._started()
            self._scheduler.pending.append(task)
            self._scheduler.wake_up()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="stepwell-functions", daemon=True)
        self._scheduler.open()
        try:
            thread.start()
        except BaseException:
            self._scheduler.close()
            raise
        _living.add(self)
        return thread

    def _run(self) -> None:
        self._scheduler.run()

    def close(self, *, cancels: bool = False, kills: bool = False) -> None:
        """Take nothing more. What was submitted is finished, or cancelled, or ended with its worker."""
        if self.owner != os.getpid():  # a forked child has no say in its parent's executor
            return
        dropped: list[PendingCall] = []
        with self._scheduler.guard:
            self._scheduler.is_closing = True
            self._scheduler.is_killing |= kills
            if cancels or kills:
                dropped = [*self._scheduler.pending]
                self._scheduler.pending.clear()
            self._scheduler.wake_up()
        for task in dropped:
            if task.future.cancel():
                task.future.set_running_or_notify_cancel()

    def join(self) -> None:
        """Wait for the end of the last worker; not from a callback, which runs in the thread that would end."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self.owner == os.getpid():
            thread.join()

    def end_with_program(self) -> None:
        """What was submitted is finished first, as with any executor, unless the user does not want to wait."""
        self.close(kills=issubclass(getattr(sys, "last_type", None) or object, KeyboardInterrupt))
        try:
            self.join()
        except KeyboardInterrupt:
            self.close(kills=True)
            self.join()


_living: Final[weakref.WeakSet[SchedulerThread]] = weakref.WeakSet()


@atexit.register
def _end_with_program() -> None:
    for each in [*_living]:
        each.end_with_program()
