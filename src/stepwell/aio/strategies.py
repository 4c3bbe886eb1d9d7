"""`StrategyService` for an event loop: strategies that worker processes execute, as futures of the loop.

The blocking service of the same client does the work. Its listener thread receives the outcomes and hands them to the
loop. Submitting and cancelling wait for the manager, so they run in the client's threads.
"""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from asyncio import Future as LoopFuture
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from stepwell.aio.caller import AsyncCaller
from stepwell.client.api import strategies
from stepwell.client.api.strategies import list_strategies
from stepwell.client.api.views import View
from stepwell.client.session.task_futures import OnProgress
from stepwell.domain.replies import StrategiesFound
from stepwell.errors import StepwellError
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest


class StrategyService:
    """The strategies that the workers offer, for the tasks of one event loop."""

    def __init__(self, caller: AsyncCaller, blocking_client: strategies.StrategyService) -> None:
        self._caller = caller
        self._blocking = blocking_client

    async def list(self) -> StrategiesFound:
        """Return the offered strategies, their workers and the lengths of their queues. Internal jobs are left out.

        `problems` of the result are the installed strategies that workers could not load, with the reasons.
        """
        return await self._caller.perform(list_strategies, ())

    async def submit(
        self,
        name: str,
        request: ContextRequest,
        *,
        view: View | None = None,
        budget_tokens: int | None = None,
        priority: int = 5,
        deadline_s: float | None = None,
        parts: int = 1,
        on_progress: OnProgress | None = None,
    ) -> LoopFuture[StrategyResult]:
        """Have a worker execute a strategy: `result = await (await client.strategies.submit(name, request))`.

        The arguments are those of `stepwell.StrategyService.submit`. Cancelling this call or the returned future also
        stops the work. `on_progress` is called in a thread of the client.
        """
        submit = partial(
            self._blocking.submit,
            name,
            request,
            view=view,
            budget_tokens=budget_tokens,
            priority=priority,
            deadline_s=deadline_s,
            parts=parts,
            on_progress=on_progress,
        )
        submitting = self._caller.threads.start(submit)
        try:
            return self._awaitable(await asyncio.wrap_future(submitting))
        except asyncio.CancelledError:
            submitting.add_done_callback(_cancel_submitted)  # runs in the submitting thread, where it may wait
            raise

    async def map(
        self,
        name: str,
        requests: Iterable[ContextRequest],
        *,
        priority: int = 5,
        deadline_s: float | None = None,
    ) -> AsyncIterator[StrategyResult]:
        """Yield the results of many requests in their order.

        A consumer that stops early cancels the remaining tasks.
        """
        futures: list[LoopFuture[StrategyResult]] = []
        try:
            for request in requests:
                futures.append(await self.submit(name, request, priority=priority, deadline_s=deadline_s))  # noqa: PERF401
            for future in futures:
                yield await future
        finally:
            for future in futures:
                future.cancel()

    def _awaitable(self, task: Future[StrategyResult]) -> LoopFuture[StrategyResult]:
        """Return a future of the loop that follows a task's future; cancelling it cancels the task.

        `asyncio.wrap_future` would cancel in the loop, where `TaskFuture.cancel` would block: it waits for the manager.
        """
        loop = asyncio.get_running_loop()
        outcome: LoopFuture[StrategyResult] = loop.create_future()

        def cancel_task(outcome: LoopFuture[StrategyResult]) -> None:
            if outcome.cancelled():
                with suppress(StepwellError):  # the client was closed, which ends all tasks
                    self._caller.threads.start(task.cancel)

        outcome.add_done_callback(cancel_task)
        task.add_done_callback(partial(_forward_outcome, loop, outcome))
        return outcome


def _cancel_submitted(submitting: Future[Future[StrategyResult]]) -> None:
    """Cancel a task whose submission has completed after its caller was cancelled."""
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()


def _forward_outcome(
    loop: AbstractEventLoop, outcome: LoopFuture[StrategyResult], task: Future[StrategyResult]
) -> None:
    """Hand the outcome of a task from the listener thread to the loop.

    Futures of asyncio may be completed in their loop only.
    """
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_set_outcome, outcome, task)


def _set_outcome(outcome: LoopFuture[StrategyResult], task: Future[StrategyResult]) -> None:
    """Complete a future of the loop with the outcome of a task. It runs in the loop."""
    if outcome.done():
        return
    if task.cancelled():
        outcome.cancel()
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())
