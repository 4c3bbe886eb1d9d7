"""Threads for what would hold up the loop: reading a disk, counting the tokens of a large body, assembling, ingesting.

There are a few for each client, made when they are first needed. What has not begun when its caller is cancelled never
begins; what has, goes on to its end, and nobody hears of it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from stepwell import limits
from stepwell.aio.channel import Channel
from stepwell.client.session.connection_pool import client_closed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Threads:
    """Those of one client."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pool: ThreadPoolExecutor | None = None

    def start(self, function: Callable[[], R]) -> Future[R]:
        """Have something called in a thread."""
        self._channel.require_owner()
        if self._channel.is_closed:
            raise client_closed().error
        if self._pool is None:
            self._pool = ThreadPoolExecutor(limits.LOOP_THREADS_MAX, thread_name_prefix="stepwell-aio")
        return self._pool.submit(contextvars.copy_context().run, function)

    async def run(self, function: Callable[[], R]) -> R:
        """Have something called in a thread, and await what it gives."""
        return await asyncio.wrap_future(self.start(function))

    async def close(self, release: Callable[[], None]) -> None:
        """Wait for what is under way, once `release` has seen to it that it comes to an end."""
        pool = self._pool

        def end() -> None:
            release()
            if pool is not None:
                pool.shutdown()

        with ThreadPoolExecutor(1, "stepwell-aio-close") as closer:  # all others may be waiting for just that
            await asyncio.wrap_future(closer.submit(end))


class HasThreads(Protocol):
    """Somebody with threads, and with a blocking blocking_client that is used in them."""

    @property
    def threads(self) -> Threads: ...
    @property
    def blocking_client(self) -> object: ...


class run_in_thread(Generic[P, R]):  # noqa: N801 - it stands where a method would
    """A method of the blocking blocking_client, called in a thread and awaited."""

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
