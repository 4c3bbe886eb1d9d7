"""Tasks of one event loop."""

from __future__ import annotations

import asyncio

from behave import then, when
from behave.runner import Context

import stepwell as sw
from stepwell import aio
from tests.support.event_loops import run, ticks
from tests.support.features.work import PROJECT, make_fragments
from tests.support.wait import eventually


@when("{count:d} tasks of one loop each store a fragment, and then read it")
def step_store_and_read(context: Context, count: int) -> None:
    context.read, context.revisions = run(storing_and_reading(context.services.address, count, cancel_every=0))


@when("{count:d} tasks of one loop each store a fragment and read it, and every third is cancelled on its way")
def step_cancel(context: Context, count: int) -> None:
    context.read, context.revisions = run(storing_and_reading(context.services.address, count, cancel_every=3))


@when("a task watches while {count:d} fragments are stored by another, and then stops")
def step_watch(context: Context, count: int) -> None:
    context.told, context.expected = run(watching(context.services.address, count))


@then("each of them has read its own")
@then("each of the others has read its own")
def step_read_own(context: Context) -> None:
    assert context.read
    assert all(name.replace("-", " ") == text for name, text in context.read.items()), context.read


@then("the stores took effect one by one")
def step_one_by_one(context: Context) -> None:
    assert len({*context.revisions}) == len(context.revisions) == len(context.read)


@then("it was told of {count:d} stores, in order")
def step_told(context: Context, count: int) -> None:
    assert context.told == context.expected
    assert len(context.told) == count


@then("the manager serves nobody who watches")
def step_nobody(context: Context) -> None:
    """The manager learns of a closed connection from the kernel, which may be after it has answered a request."""
    eventually(lambda: context.services.status().peers == 1)


async def storing_and_reading(address: str, count: int, cancel_every: int) -> tuple[dict[str, str], list[int]]:
    """What each task that was not cancelled has read, by name, and the revisions of their stores."""
    read: dict[str, str] = {}
    revisions: list[int] = []

    async def deed(fragment: sw.Fragment) -> None:
        placed = await client.tiers.store(fragment)
        found = await client.tiers.get(fragment.fragment_id, project=PROJECT)
        read[fragment.fragment_id] = found.text
        revisions.append(placed.revision)

    async with aio.connect(address) as client:
        tasks = [asyncio.create_task(deed(fragment)) for fragment in make_fragments("task", count, 1)]
        for number, task in enumerate(tasks):
            if cancel_every and number % cancel_every == 0:
                await ticks(number % 5)
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes
    return read, revisions


async def watching(address: str, count: int) -> tuple[list[int], list[int]]:
    """The revisions that were told, and those that were answered."""
    async with aio.connect(address) as client:
        watch = await client.watch()

        async def follow() -> list[int]:
            return [(await anext(watch)).revision for _ in range(count)]

        following = asyncio.create_task(follow())
        answered = [(await client.tiers.store(each)).revision for each in make_fragments("watched", count, 1)]
        told = await following
        await watch.aclose()
    return told, answered
