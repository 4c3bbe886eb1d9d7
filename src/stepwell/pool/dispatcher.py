"""The thread in which functions are given to workers, and its end: with the executor, and with the program."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from typing import Final

from stepwell.pool.floor import Floor
from stepwell.pool.staff import Task


class Dispatcher:
    """Its thread knows it, and not the executor: one that is dropped finishes what it was given, and ends."""

    def __init__(self, max_workers: int) -> None:
        self.owner = os.getpid()
        self._floor = Floor(max_workers)
        self._thread: threading.Thread | None = None

    @property
    def is_closing(self) -> bool:
        return self._floor.is_closing

    def submit(self, task: Task) -> None:
        with self._floor.guard:
            if self.is_closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._thread is None:
                self._thread = self._started()
            self._floor.pending.append(task)
            self._floor.ring()

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="stepwell-functions", daemon=True)
        self._floor.open()
        try:
            thread.start()
        except BaseException:
            self._floor.close()
            raise
        _living.add(self)
        return thread

    def _run(self) -> None:
        self._floor.run()

    def close(self, *, cancels: bool = False, kills: bool = False) -> None:
        """Take nothing more. What was submitted is finished, or cancelled, or ended with its worker."""
        if self.owner != os.getpid():  # a forked child has no say in its parent's executor
            return
        dropped: list[Task] = []
        with self._floor.guard:
            self._floor.is_closing = True
            self._floor.is_killing |= kills
            if cancels or kills:
                dropped = [*self._floor.pending]
                self._floor.pending.clear()
            self._floor.ring()
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


_living: Final[weakref.WeakSet[Dispatcher]] = weakref.WeakSet()


@atexit.register
def _end_with_program() -> None:
    for each in [*_living]:
        each.end_with_program()
