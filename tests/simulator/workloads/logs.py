"""Logs: every acknowledged append is there once, in its place; every entry is popped once; a watch has no gap."""

from __future__ import annotations

import asyncio

import stepwell as sw
from stepwell.errors import OutcomeUnknown, StepwellError
from tests.simulator.log_judge import Append, Key
from tests.simulator.workloads.base import PROJECT, Actor

LOGS = 2
LARGE_CHARS = 70_000  # more than a frame carries beside others


async def use_log(actor: Actor) -> None:
    """Do one operation on one of few logs, on which other clients do theirs."""
    key = (PROJECT, f"log{actor.random.randrange(LOGS)}")
    choice = actor.random.random()
    if choice < 0.45:
        await _append(actor, key)
    elif choice < 0.6:
        await _pop(actor, key)
    elif choice < 0.8:
        await _read(actor, key)
    elif choice < 0.9:
        await _watch(actor, key)
    elif choice < 0.94:
        await actor.client.log(key[1], project=PROJECT).clear()
    else:
        await actor.client.log(key[1], project=PROJECT).retain(actor.random.choice((None, 3, 20)))


async def _append(actor: Actor, key: Key) -> None:
    """Append some entries; sometimes only if nothing has happened since the log was read."""
    log, judge = actor.client.log(key[1], project=PROJECT), actor.oracle.logs
    expected = (await log.status()).head if actor.random.random() < 0.3 else None
    texts = tuple(actor.unique() for _ in range(actor.random.choice((1, 1, 2, 5))))
    if actor.random.random() < 0.03:
        texts = (*texts, actor.unique() + "." * LARGE_CHARS)
    append = judge.ask(Append(key, texts, expected))
    try:
        appended = await log.append(*texts, expected_head=expected)
    except OutcomeUnknown:
        raise
    except StepwellError:
        append.is_refused = True
        raise
    judge.acknowledge(append, appended.first_position, appended.head)
    actor.oracle.told(appended.head, key, appended.positions)


async def _pop(actor: Actor, key: Key) -> None:
    log = actor.client.log(key[1], project=PROJECT)
    async with actor.client.transaction() as transaction:
        popped = transaction.log(key[1], project=PROJECT).pop()
    if (entry := popped.result()) is not None:
        actor.oracle.logs.note_popped(key, entry.position, entry.text, popped.revision)
        actor.oracle.told(popped.revision, key, entry.position)
    assert (await log.status()).next_position > (entry.position if entry else 0)


async def _read(actor: Actor, key: Key) -> None:
    """Read the last entries, or those behind a position."""
    log, judge = actor.client.log(key[1], project=PROJECT), actor.oracle.logs
    floor, count = judge.floors[key], actor.random.choice((1, 5, 100))
    page = await (
        log.last(count) if actor.random.random() < 0.5 else log.since(actor.random.randrange(20), limit=count)
    )
    judge.check_page(key, floor, page.head, [(entry.position, entry.text) for entry in page])


async def _watch(actor: Actor, key: Key) -> None:
    """Follow a log for a while, from its beginning or from now on: positions grow, and each entry is one of it."""
    log, judge = actor.client.log(key[1], project=PROJECT), actor.oracle.logs
    seen: list[tuple[int, str]] = []
    count = actor.random.choice((1, 20, 100))
    try:
        async with (
            asyncio.timeout(actor.random.choice((0.05, 1.0))),
            log.watch(since=actor.random.choice((None, 0))) as watch,
        ):
            while len(seen) < count:
                if (entry := await watch.get()) is not None:
                    seen.append((entry.position, entry.text))
    except (TimeoutError, sw.EntriesMissed, OutcomeUnknown, sw.RuntimeLost):
        pass
    judge.check_page(key, 0, 0, seen)
