"""`FunctionExecutor`: ordinary functions in processes of their own, with the interface of `concurrent.futures`.

Unlike `ProcessPoolExecutor` it accepts functions of a notebook and of an unguarded script, and the death of a worker
is the error of the one function that it ran: the others go on.

The executor pickles a call in the caller's thread and gives it to the scheduler. The scheduler's thread knows the
scheduler and not the executor, so an executor that the program drops finishes its calls and ends.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from itertools import chain, islice
from types import TracebackType
from typing import Final, ParamSpec, TypeVar, cast

from stepwell import limits
from stepwell.errors import InvalidArgument, NotOwner
from stepwell.pool.functions.frames import require_fits
from stepwell.pool.functions.scheduler import CallScheduler
from stepwell.pool.functions.worker_main import run_chunk
from stepwell.pool.functions.worker_process import PendingCall
from stepwell.pool.pickling import PicklingError, dumps

P = ParamSpec("P")
R = TypeVar("R")


class FunctionExecutor(Executor):
    """Calls functions in worker processes. Any number of threads may use it, in the process that made it.

    `submit` copies a function with its arguments and the globals that it names, as they are at that moment. A worker
    that dies is replaced. The workers end with the executor and with the program, however the program ends.
    """

    def __init__(self, max_workers: int | None = None) -> None:
        if max_workers is None:
            max_workers = min(len(os.sched_getaffinity(0)), limits.WORKERS_MAX)
        if type(max_workers) is not int or not 1 <= max_workers <= limits.WORKERS_MAX:
            raise InvalidArgument(f"max_workers is a number from 1 to {limits.WORKERS_MAX}, not {max_workers!r}")
        self._scheduler_thread = SchedulerThread(max_workers)
        # `_end_with_program` ends it at the end of the program, in an order that lets calls finish.
        weakref.finalize(self, self._scheduler_thread.close).atexit = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a worker call the function, and return the future of its result.

        If the call cannot be pickled, the future has a PicklingError. Raise RuntimeError after `shutdown`, and
        NotOwner in a forked child.
        """
        self._check_owner()
        if self._scheduler_thread.is_closing:
            raise RuntimeError("cannot schedule new futures after shutdown")
        name = str(getattr(fn, "__qualname__", None) or repr(fn))
        future: Future[object] = Future()
        try:
            pickled = require_fits(dumps((fn, args, kwargs)))
        except Exception as error:  # noqa: BLE001 - a `__reduce__` of the user's may raise anything
            unsent = PicklingError(f"{name} or its arguments cannot be sent to a worker: {error}")
            unsent.__cause__ = error
            future.set_exception(unsent)
        else:
            self._scheduler_thread.submit(PendingCall(name, pickled, future))
        return cast("Future[R]", future)

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]:
        """Return the results in order, as the builtin does.

        `chunksize` calls travel together, which saves time for many short calls.
        """
        if chunksize < 1:
            raise InvalidArgument(f"chunksize is at least 1, not {chunksize}")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        return chain.from_iterable(super().map(partial(run_chunk, fn), chunks, timeout=timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as inherited
        """Accept no more calls, and end the workers when the submitted calls are done. It may be called twice."""
        self._scheduler_thread.close(cancels=cancel_futures)
        if wait:
            self._scheduler_thread.join()

    def kill_workers(self) -> None:
        """End at once: pending calls are cancelled, running calls fail with WorkerDied."""
        self._scheduler_thread.close(kills=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the submitted calls, except after a Ctrl-C: then the user does not want to wait."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.kill_workers()
        try:
            self.shutdown()
        except KeyboardInterrupt:
            self.kill_workers()
            self.shutdown()
            raise

    def __reduce__(self) -> tuple[object, ...]:
        raise NotOwner("an executor stays in the process that made it: make another one there")

    def _check_owner(self) -> None:
        """Raise NotOwner in a forked child, which has neither the scheduler's thread nor its workers."""
        if self._scheduler_thread.owner_pid != os.getpid():
            raise NotOwner("this executor belongs to the process that made it: a forked child makes one of its own")


class SchedulerThread:
    """The thread of one scheduler. It starts with the first call and ends when it is closed and has no more calls.

    Any thread of the owning process may use it. In a forked child, `close` and `join` do nothing.
    """

    def __init__(self, max_workers: int) -> None:
        self.owner_pid = os.getpid()
        self._scheduler = CallScheduler(max_workers)
        self._thread: threading.Thread | None = None

    @property
    def is_closing(self) -> bool:
        """Return True once no more calls are accepted."""
        return self._scheduler.is_closing

    def submit(self, call: PendingCall) -> None:
        """Queue the call; raise RuntimeError if the executor was shut down in the meantime."""
        with self._scheduler.guard:
            if self.is_closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._thread is None:
                self._thread = self._started()
            self._scheduler.pending.append(call)
            self._scheduler.wake_up()

    def _started(self) -> threading.Thread:
        """Start the scheduler's thread. If that fails, nothing is left open, and the executor is closed."""
        # A daemon, because `threading` would otherwise join it before `_end_with_program` closes it.
        thread = threading.Thread(target=self._run, name="stepwell-functions", daemon=True)
        self._scheduler.open()
        try:
            thread.start()
        except BaseException:
            self._scheduler.close()
            raise
        _running.add(self)
        return thread

    def _run(self) -> None:
        self._scheduler.run()  # as a method of this object, which therefore stays in `_running` until it ends

    def close(self, *, cancels: bool = False, kills: bool = False) -> None:
        """Accept no more calls. Submitted calls finish; or pending ones are cancelled; or all workers are killed."""
        if self.owner_pid != os.getpid():
            return
        dropped: list[PendingCall] = []
        with self._scheduler.guard:
            self._scheduler.is_closing = True
            self._scheduler.is_killing |= kills
            if cancels or kills:
                dropped = [*self._scheduler.pending]
                self._scheduler.pending.clear()
            self._scheduler.wake_up()
        for call in dropped:  # outside the lock, because callbacks run here
            if call.future.cancel():
                call.future.set_running_or_notify_cancel()

    def join(self) -> None:
        """Wait for the end of the last worker, unless a callback calls this from the scheduler's own thread."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and self.owner_pid == os.getpid():
            thread.join()

    def end_with_program(self) -> None:
        """Finish the submitted calls, as every executor does when the program ends, except after a Ctrl-C."""
        self.close(kills=issubclass(getattr(sys, "last_type", None) or object, KeyboardInterrupt))
        try:
            self.join()
        except KeyboardInterrupt:
            self.close(kills=True)
            self.join()


_running: Final[weakref.WeakSet[SchedulerThread]] = weakref.WeakSet()
"""The threads to end with the program. Weak, because only a running thread keeps its object alive."""


@atexit.register
def _end_with_program() -> None:
    """Close the executors that still run, before the interpreter stops their daemon threads."""
    for each in [*_running]:
        each.end_with_program()


def _chunks(calls: Iterable[tuple[object, ...]], size: int) -> Iterator[list[tuple[object, ...]]]:
    """Yield lists of that many calls, read from the iterable one list at a time."""
    rest = iter(calls)
    while chunk := [*islice(rest, size)]:
        yield chunk
