"""A strict event loop: problems that asyncio would only log are errors."""

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine
from typing import TypeVar

from stepwell import aio

R = TypeVar("R")


def run(main: Coroutine[object, None, R], *, debug: bool = True) -> R:
    """Run like `asyncio.run`, and assert that no task is left and no exception was never retrieved."""
    complaints: list[object] = []

    async def watched() -> R:
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = math.inf
        loop.set_exception_handler(lambda _, complaint: complaints.append(complaint))
        try:
            return await main
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if left:
                complaints.append(left)

    try:
        return asyncio.run(watched(), debug=debug)
    finally:
        gc.collect(1)  # all that is young
        assert not complaints, complaints


async def ticks(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the kernel and other processes send no notification
            await asyncio.sleep(0.001)


def with_client(main: Callable[[aio.Client], Coroutine[object, None, None]], address: str, project: str) -> None:
    """Run a coroutine function with a client, in a strict loop of its own."""

    async def connected() -> None:
        async with aio.connect(address, projects=[project]) as client:
            await main(client)

    run(connected())
