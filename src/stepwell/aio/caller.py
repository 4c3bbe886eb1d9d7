"""How the calls of services are performed for those who await them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from stepwell import limits
from stepwell.aio.channel import Channel
from stepwell.aio.threads import Threads
from stepwell.client.session.calls import Call
from stepwell.client.session.session import (
    moved_too_often,
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
    """Builds calls, sends them and finishes them: in the loop, but for what takes long, which is done in a thread."""

    def __init__(self, channel: Channel, threads: Threads) -> None:
        self.channel = channel
        self.threads = threads
        self._vocabulary_loaded = asyncio.Event()  # the first time, a vocabulary is loaded
        self._vocabulary_lock = asyncio.Lock()

    async def perform(self, build_call: Callable[[], Call[R]], arguments: Sequence[object]) -> R:
        """Send one command and finish it, or raise its refusal."""
        self.channel.require_owner()
        return await self._perform(await self.build(build_call, arguments))

    async def build(self, build_call: Callable[[], R], arguments: Sequence[object]) -> R:
        """What is built from what was arguments, in a thread if tokens of much text have to be counted for it."""
        size = _text_bytes(arguments)
        if size > limits.BUILT_BYTES_MAX:
            return await self.threads.run(build_call)
        if size and not self._vocabulary_loaded.is_set():
            async with self._vocabulary_lock:  # those who come meanwhile wait, and need no thread of their own
                if not self._vocabulary_loaded.is_set():
                    built = await self.threads.run(build_call)
                    self._vocabulary_loaded.set()
                    return built
        return build_call()

    async def perform_each(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send many commands in one frame: for each its result or its error, and its revision."""
        results = results_of(await self.channel.exchange(*request_for(calls)), len(calls))
        return [await self._finish_or_retry(call, result) for call, result in zip(calls, results, strict=True)]

    async def perform_together(self, calls: Sequence[Call[R]]) -> list[tuple[R | StepwellError, int]]:
        """Send many commands as one transaction: all results at one revision, or its refusal raised."""
        results = transaction_results(await self.channel.exchange(*transaction_for(calls)))
        return [await self._finish_or_retry(call, result) for call, result in zip(calls, results, strict=True)]

    async def status(self) -> Status:
        """How the manager is."""
        return status_of(await self.channel.ask_status())

    async def _perform(self, call: Call[R]) -> R:
        for _ in range(limits.ASK_AGAIN_MAX):
            (result,) = results_of(await self.channel.exchange(*request_for((call,))), 1)
            if isinstance(result, Refusal):
                raise result.error()
            with suppress(BodyGone):  # it was moved, and its old place arguments up, between the answer and now
                return await self._finish(call, result)
        raise moved_too_often()

    async def _finish_or_retry(self, call: Call[R], result: Result) -> tuple[R | StepwellError, int]:
        if isinstance(result, Refusal):
            return result.error(), result.revision
        with suppress(BodyGone):
            return await self._finish(call, result), result.revision
        try:
            return await self._perform(call), result.revision
        except StepwellError as error:
            return error, result.revision

    async def _finish(self, call: Call[R], answer: CommandResult) -> R:
        """Bodies in shared memory are there; those in the database have to be read from a disk."""
        if any(handle.segment == IN_STORE for handle in answer.handles.values()):
            return await self.threads.run(partial(call.finish, answer))
        return call.finish(answer)


def _text_bytes(arguments: Sequence[object]) -> int:
    return sum(each.weight for each in arguments if isinstance(each, Fragment) and each.tokens is None)
