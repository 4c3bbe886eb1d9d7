"""Captures and workspaces for an event loop: the tree is read in threads, before and after an `async with` block."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Generic, TypeVar

from stepwell.aio.threads import Threads

T = TypeVar("T")


class AsyncCapture(Generic[T]):
    """An `async with` block around a blocking capture, which gives what the blocking one gives.

    The tree is read before and after the block; the loop runs on meanwhile. If the task is cancelled while the block is
    entered, nothing is recorded and nothing stays open: the reading thread cannot be stopped, so it exits the capture
    when it is done.
    """

    def __init__(self, threads: Threads, blocking: AbstractContextManager[T]) -> None:
        self._threads = threads
        self._blocking = blocking

    async def __aenter__(self) -> T:
        entering = self._threads.start(self._blocking.__enter__)
        try:
            return await asyncio.wrap_future(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(self._exit_after_cancel)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._threads.run(lambda: self._blocking.__exit__(kind, error, traceback))

    def _exit_after_cancel(self, entering: Future[T]) -> None:
        """Exit the blocking capture, whose thread entered it after the cancellation, so that nothing is recorded."""
        if not entering.cancelled() and entering.exception() is None:
            self._blocking.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)
