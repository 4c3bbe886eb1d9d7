"""Batches and transactions for an event loop: many commands in one frame, sent when an `async with` block ends.

The rules are those of `stepwell.client.api.batch`; only sending differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from stepwell.aio.caller import AsyncCaller
from stepwell.client.api.batch import CommandBuffer, WriteBuffer
from stepwell.client.session.session import Session


class BufferedCalls(CommandBuffer):
    """An `async with` block. Calls inside it are not awaited: they are sent, and their answers awaited, at its end."""

    def __init__(self, session: Session, caller: AsyncCaller) -> None:
        super().__init__(session)
        self._caller = caller

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.close_for_sending(error):
            with self.outcomes_set_on_exit() as outcomes:
                outcomes.extend(await self._send())

    async def _send(self) -> Sequence[tuple[object, int]]:
        """Send all calls, and return the outcome and the revision of each."""
        raise NotImplementedError


class Batch(BufferedCalls):
    """Many commands in one frame with an outcome each; not atomic.

    `pending.result()` returns it or raises its refusal.
    """

    async def _send(self) -> Sequence[tuple[object, int]]:
        return await self._caller.perform_each(self._calls)


class Transaction(WriteBuffer, BufferedCalls):
    """Writes that take effect together at one revision, or not at all: then the block raises `TransactionAborted`."""

    async def _send(self) -> Sequence[tuple[object, int]]:
        return await self._caller.perform_together(self._calls)
