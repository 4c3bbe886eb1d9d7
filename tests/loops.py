"""An event loop that is strict: whatever it would only complain of is an error."""

import asyncio
import gc
import math
from collections.abc import Callable, Coroutine
from typing import TypeVar

from stepwell import aio

R = TypeVar("R")


def run(main: Coroutine[object, None, R], *, debug: bool = True) -> R:
    """As `asyncio.run`. No task is left at the end, and no exception is one that nobody has seen."""
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
        while not condition():  # noqa: ASYNC110 - of what the kernel or another process does, nobody tells us
            await asyncio.sleep(0.001)


def with_client(main: Callable[[aio.Client], Coroutine[object, None, None]], address: str, project: str) -> None:
    """Run something with a client, in a strict loop of its own."""

    async def connected() -> None:
        async with aio.connect(address, projects=[project]) as client:
            await main(client)

    run(connected())
