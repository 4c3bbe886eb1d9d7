"""Threads for operations that would block the loop: disk reads, tokenizing of large bodies, and workflows.

Each client has a few, which are started when they are first needed. An operation that has not begun when its task is
cancelled never begins. One that has begun goes on to its end, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from stepwell import limits
from stepwell.aio.channel import Channel
from stepwell.client.session.session_rules import client_closed_error

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Threads:
    """The thread pool of one client. It belongs to the client's event loop.

    It is apart from the loop's default executor, because a program may fill that with its own work; and closing the
    client has to wait for this work only.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pool: ThreadPoolExecutor | None = None

    def start(self, function: Callable[[], R]) -> Future[R]:
        """Have a function called in a thread, with the context variables of the caller, and return its future.

        It raises the error of a closed client, and `NotOwner` in another loop.
        """
        self._channel.require_owner()
        if self._channel.is_closed:
            raise client_closed_error().error
        if self._pool is None:
            self._pool = ThreadPoolExecutor(limits.LOOP_THREADS_MAX, thread_name_prefix="stepwell-aio")
        return self._pool.submit(contextvars.copy_context().run, function)

    async def run(self, function: Callable[[], R]) -> R:
        """Have a function called in a thread, and return its result."""
        return await asyncio.wrap_future(self.start(function))

    async def close(self, release: Callable[[], None]) -> None:
        """Wait for the work in the threads, after `release` has made it end.

        Both run in a thread of their own, because all others may be occupied by work that only `release` ends.
        """
        pool = self._pool

        def end() -> None:
            release()
            if pool is not None:
                pool.shutdown()

        with ThreadPoolExecutor(1, "stepwell-aio-close") as closer:
            await asyncio.wrap_future(closer.submit(end))


class HasThreads(Protocol):
    """An asynchronous client or service that has threads, and a blocking counterpart that is used in them."""

    @property
    def threads(self) -> Threads: ...
    @property
    def blocking_client(self) -> object: ...


class run_in_thread(Generic[P, R]):  # noqa: N801 - it stands where a method would
    """Descriptor: a method of the blocking client or service, called in a thread and awaited.

    It keeps the method's name, parameters and docstring. The owner provides the threads and the blocking counterpart.
    """

    def __init__(self, function: Callable[Concatenate[T, P], R]) -> None:
        self._function: Callable[..., R] = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: HasThreads, kind: type) -> Callable[P, Coroutine[object, None, R]]: ...

    def __get__(self, owner: HasThreads | None, kind: type) -> Self | Callable[P, Coroutine[object, None, R]]:
        if owner is None:
            return self
        blocking_client, threads, function = owner.blocking_client, owner.threads, self._function

        async def run(*args: P.args, **kwargs: P.kwargs) -> R:
            return await threads.run(lambda: function(blocking_client, *args, **kwargs))

        run.__doc__, run.__name__ = self.__doc__, function.__name__
        return run
