"""`AsyncCaller`: performs the calls of asynchronous services, as `Session` does for blocking ones.

A call has three steps: build, exchange, finish. The exchange never blocks the loop. Building counts tokens, and
finishing may read a body from the manager's database; both run in a thread if they take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from stepwell import limits
from stepwell.aio.channel import Channel
from stepwell.aio.threads import Threads
from stepwell.client.session.calls import Call
from stepwell.client.session.session import (
    body_moved_error,
    request_for,
    results_of,
    status_of,
    transaction_for,
    transaction_results,
)
from stepwell.domain.tiers.model import Fragment
from stepwell.errors import BodyGone, StepwellError
from stepwell.protocol.handles import IN_STORE
from stepwell.protocol.messages import CommandResult, Refusal, Result, Status

R = TypeVar("R")


class AsyncCaller:
    """Builds, sends and finishes calls for the tasks of one event loop. It belongs to one client."""

    def __init__(self, channel: Channel, threads: Threads) -> None:
        self.channel = channel
        self.threads = threads
        self._vocabulary_loaded = asyncio.Event()
        self._vocabulary_lock = asyncio.Lock()

    async def perform(self, build_call: Callable[[], Call[R]], arguments: Sequence[object]) -> R:
        """Build and send one command, and return its result or raise its refusal."""
        self.channel.require_owner()
        return await self._perform(await self.build(build_call, arguments))

    async def build(self, build_call: Callable[[], R], arguments: Sequence[object]) -> R:
        """Return what `build_call` builds from `arguments`; in a thread if it has to count the tokens of much text.

        The first count loads a vocabulary, which takes 0.1 s. One task does that in a thread; tasks that come meanwhile
        wait for it, so that they do not occupy a thread each.
        """
        size = _text_bytes(arguments)
        if size > limits.BUILT_BYTES_MAX:
            return await self.threads.run(build_call)
        if size and not self._vocabulary_loaded.is_set():
            async with self._vocabulary_lock:
                if not self._vocabulary_loaded.is_set():
                    built = await self.threads.run(build_call)
                    self._vocabulary_loaded.set()
                    return built
        return build_call()

    async def perform_each(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send several commands in one frame; return for each its result or error, and its revision."""
        return await self._finish_all(calls, results_of(await self.channel.exchange(*request_for(calls)), len(calls)))

    async def perform_together(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send several commands as one transaction; return all results, or raise the refusal of the transaction."""
        return await self._finish_all(calls, transaction_results(await self.channel.exchange(*transaction_for(calls))))

    async def status(self) -> Status:
        """Return the status of the manager."""
        return status_of(await self.channel.ask_status())

    async def _perform(self, call: Call[R]) -> R:
        """Send one call and finish it; send it again if the body of its answer was moved meanwhile."""
        for _ in range(limits.MOVED_BODY_ATTEMPTS_MAX):
            (result,) = results_of(await self.channel.exchange(*request_for((call,))), 1)
            if isinstance(result, Refusal):
                raise result.error()
            try:
                return await self._finish(call, result)
            except BodyGone:  # the manager has moved the body and freed its old place since the answer
                call = call.retried(result)
        raise body_moved_error()

    async def _finish_all(
        self, calls: Sequence[Call[R]], results: Sequence[Result]
    ) -> list[tuple[R | StepwellError, int]]:
        """Return the result or the error of each command, and its revision; repeat a command whose body was moved.

        A batch has many commands: only one that has to wait gets a coroutine.
        """
        outcomes: list[tuple[R | StepwellError, int]] = []
        for call, result in zip(calls, results, strict=True):
            outcome: R | StepwellError
            if isinstance(result, Refusal):
                outcome = result.error()
            else:
                try:
                    outcome = await self._finish(call, result) if _needs_store(result) else call.finish(result)
                except BodyGone:
                    outcome = await self._perform_again(call.retried(result))
            outcomes.append((outcome, result.revision))
        return outcomes

    async def _perform_again(self, call: Call[R]) -> R | StepwellError:
        """Send one command of several again, alone, and return its result or its error."""
        try:
            return await self._perform(call)
        except StepwellError as error:
            return error

    async def _finish(self, call: Call[R], answer: CommandResult) -> R:
        """Finish a call: in the loop if its bodies are in shared memory, in a thread if one is in the database."""
        if _needs_store(answer):
            return await self.threads.run(partial(call.finish, answer))
        return call.finish(answer)


def _needs_store(answer: CommandResult) -> bool:
    """Return True if a body of an answer is in the database."""
    handles = answer.handles
    return bool(handles) and any(handle.segment == IN_STORE for handle in handles.values())


def _text_bytes(arguments: Sequence[object]) -> int:
    """Return the number of bytes whose tokens have to be counted."""
    return sum(each.weight for each in arguments if isinstance(each, Fragment) and each.tokens is None)
