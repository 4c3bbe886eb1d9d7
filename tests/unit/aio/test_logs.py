"""Logs from an event loop: the same calls, awaited, and watches that a cancelled task does not make lose an entry."""

import asyncio
from collections.abc import Iterable

import pytest

import stepwell as sw
from stepwell import aio
from stepwell.domain.logs.model import LogEntry
from tests.support.event_loops import with_client
from tests.support.memory.bodies import noise


def texts(entries: Iterable[sw.StoredLogEntry]) -> list[str]:
    return [entry.text for entry in entries]


def test_calls(address: str, project: str) -> None:
    """They give what those of a blocking client give."""

    async def main(client: aio.Client) -> None:
        log = client.log("log")
        assert (await log.append("a", LogEntry("b", kind="note"), noise(100_000))).positions == range(1, 4)
        assert texts((await log.since(limit=2)).entries) == ["a", "b"]
        assert [bytes(entry.body) for entry in await log.last()] == [noise(100_000)]
        popped = await log.pop()
        assert popped is not None
        assert bytes(popped.body) == noise(100_000)
        head = (await log.status()).head
        with pytest.raises(sw.Conflict):
            await log.clear(expected_head=head - 1)
        assert [each.first_position for each in await log.extend(str(number) for number in range(300))] == [4, 260]
        assert len([entry async for entry in log.entries(since=2)]) == 300
        assert (await log.retain(2, age_ms=1_000_000)).entries == 2
        assert [each.name for each in await client.logs.list()] == ["log"]
        assert (await log.clear()).entries == 0
        async with client.batch() as batch:
            found = batch.log("log").status()
        assert found.result().entries == 0
        async with client.transaction() as transaction:
            appended = transaction.log("log").append("x")
            also = transaction.log("other").append("y")
        assert appended.result().head == also.result().head
        assert repr(log) == f"<stepwell.aio.Log 'log' of {project!r}>"
        await log.delete()
        assert (await log.status()).head == 0

    with_client(main, address, project)


def test_watch(address: str, project: str) -> None:
    """Each entry once, from a position on and from now on, to its end."""

    async def main(client: aio.Client) -> None:
        log = client.log("log")
        await log.append("a", "b")
        async with log.watch(since=1) as watch, log.watch() as later:
            await client.log("other").append("elsewhere")
            await log.append("c")
            async for entry in watch:
                if entry.text == "c":
                    break
            assert watch.position == 3
            got = await later.get(60)
            assert got is not None
            assert got.text == "c"
            waiting = asyncio.create_task(watch.get())
            assert await watch.get(0) is None
            waiting.cancel()
            await log.append("d")
            got = await watch.get(60)
            assert got is not None
            assert got.text == "d"
            assert repr(watch) == "<stepwell.aio.LogWatch of 'log' at position 4>"
        assert await watch.get() is None
        assert [entry async for entry in watch] == []

    with_client(main, address, project)


def test_watch_that_missed_entries(address: str, project: str) -> None:
    """It is told once, and goes on behind them."""

    async def main(client: aio.Client) -> None:
        log = client.log("log")
        await log.append("a", "b", "c")
        watch = log.watch(since=1)
        await log.clear()
        with pytest.raises(sw.EntriesMissed, match="entries 2 to 3"):
            await watch.get(60)
        await log.append("d")
        got = await watch.get(60)
        assert got is not None
        assert got.position == 4
        await watch.aclose()
        with pytest.raises(sw.InvalidArgument, match="since=9 is no position"):
            await log.watch(since=9).get(60)

    with_client(main, address, project)
