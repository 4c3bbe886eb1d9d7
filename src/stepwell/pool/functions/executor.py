"""`FunctionExecutor`: ordinary functions in processes of their own, as `concurrent.futures` has it.

Unlike `ProcessPoolExecutor` it takes functions of a notebook and of an unguarded script, and the death of a worker
is the error of the one function that it ran: the others go on.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from itertools import chain, islice
from types import TracebackType
from typing import ParamSpec, TypeVar, cast

from stepwell import limits
from stepwell.errors import InvalidArgument, NotOwner
from stepwell.pool.functions.dispatcher import SchedulerThread
from stepwell.pool.functions.frames import bounded
from stepwell.pool.functions.worker_main import run_chunk
from stepwell.pool.functions.worker_process import PendingCall
from stepwell.pool.pickling import PicklingError, dumps

P = ParamSpec("P")
R = TypeVar("R")


class FunctionExecutor(Executor):
    """Safe from any number of threads; it belongs to the process that made it.

    A function is copied when it is submitted, with its arguments and the globals that it names, as they are then.
    """

    def __init__(self, max_workers: int | None = None) -> None:
        if max_workers is None:
            max_workers = min(len(os.sched_getaffinity(0)), limits.WORKERS_MAX)
        if type(max_workers) is not int or not 1 <= max_workers <= limits.WORKERS_MAX:
            raise InvalidArgument(f"max_workers is a number from 1 to {limits.WORKERS_MAX}, not {max_workers!r}")
        self._scheduler_thread = SchedulerThread(max_workers)
        weakref.finalize(self, self._scheduler_thread.close).atexit = False  # the dispatcher sees to that

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a worker call it. What cannot be sent to one is the error of the future that is returned."""
        self._check_owner()
        if self._scheduler_thread.is_closing:
            raise RuntimeError("cannot schedule new futures after shutdown")
        name = str(getattr(fn, "__qualname__", None) or repr(fn))
        future: Future[object] = Future()
        try:
            call = bounded(dumps((fn, args, kwargs)))
        except Exception as error:  # noqa: BLE001 - whatever somebody's `__reduce__` raises
            unsent = PicklingError(f"{name} or its arguments cannot be sent to a worker: {error}")
            unsent.__cause__ = error
            future.set_exception(unsent)
        else:
            self._scheduler_thread.submit(PendingCall(name, call, future))
        return cast("Future[R]", future)

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[R]:
        """As the builtin, in order; `chunksize` calls at a time travel together, which pays for many short ones."""
        if chunksize < 1:
            raise InvalidArgument(f"chunksize is at least 1, not {chunksize}")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        return chain.from_iterable(super().map(partial(run_chunk, fn), chunks, timeout=timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as inherited
        """Take nothing more, and end the workers when all that was submitted is done. Twice is as good as once."""
        self._scheduler_thread.close(cancels=cancel_futures)
        if wait:
            self._scheduler_thread.join()

    def kill_workers(self) -> None:
        """End at once: what has not begun is cancelled, what runs is `WorkerDied`."""
        self._scheduler_thread.close(kills=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for what was submitted; whoever presses Ctrl-C does not want to."""
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
        if self._scheduler_thread.owner != os.getpid():
            raise NotOwner("this executor belongs to the process that made it: a forked child makes one of its own")


def _chunks(calls: Iterable[tuple[object, ...]], size: int) -> Iterator[list[tuple[object, ...]]]:
    rest = iter(calls)
    while chunk := [*islice(rest, size)]:
        yield chunk
