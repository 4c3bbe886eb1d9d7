"""Watching from an event loop: every committed event once, in order; however it ends, nothing is left of it."""

import asyncio
import gc
import os
import pickle
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import stepwell as sw
from stepwell import aio, limits
from stepwell.aio.watch import Watch
from stepwell.client.client import unconnected
from stepwell.domain.events import FragmentStored
from stepwell.domain.tiers.model import Tier
from stepwell.protocol.messages import Events, ManagerMessage, Refusal, Rejected, Response, WatchLagged
from tests.support.client.fake_manager import WELCOME, Reply, fake_manager
from tests.support.client.sessions import fragment
from tests.support.event_loops import run, ticks, until, with_client
from tests.support.managers import Stage, served
from tests.support.processes import descriptors
from tests.unit.client.api.test_watch import together

FIRST = FragmentStored(4, 0, "p", "a", Tier.HOT, None, 1, 1, b"", "text")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with served() as started:
        yield started


async def store(client: aio.Client, *names: str) -> int:
    """Fragments, one after the other; the last revision."""
    return [(await client.tiers.store(fragment(name))).revision for name in names][-1]


async def take(watch: Watch, count: int) -> list[str]:
    """The names of so many stores, which are there, or soon will be."""
    events = [await watch.get(timeout_s=60) for _ in range(count)]
    return [event.fragment_id for event in events if isinstance(event, sw.events.FragmentStored)]


def test_from_now_on(address: str, project: str) -> None:
    """What is committed after it was opened is told, and nothing from before."""

    async def main(client: aio.Client) -> None:
        await store(client, "before")
        async with client.watch() as watch:
            begun = watch.revision
            revision = await store(client, "a", "b")
            assert await take(watch, 2) == ["a", "b"]
            assert (begun, watch.revision) == (revision - 2, revision)
            assert repr(watch) == f"<stepwell.aio.Watch at revision {revision}>"
        other = await client.watch(projects=[project])
        assert await other.open() is other
        await store(client, "c")
        assert await take(other, 1) == ["c"]

    with_client(main, address, project)


def test_as_an_iterator(address: str, project: str) -> None:
    """From a revision on, until one has seen enough: nothing has to be closed then."""

    async def main(client: aio.Client) -> None:
        begun = await store(client, "a")
        await store(client, "b", "c", "d")
        seen: list[int] = []
        async for event in client.watch(since=begun):
            seen.append(event.revision)
            if len(seen) == 3:
                break
        assert seen == [begun + 1, begun + 2, begun + 3]
        gc.collect()
        await until(lambda: len(client._channel._open) == 1)

    with_client(main, address, project)


def test_closed_while_somebody_waits(address: str, project: str) -> None:
    """By the watch's own end, or its client's: the iteration ends."""

    async def follow(watch: Watch) -> list[sw.events.AnyEvent]:
        return [event async for event in watch]

    async def main() -> None:
        async with aio.connect(address, projects=[project]) as client:
            one, other = await client.watch(), await client.watch()
            waiting = [asyncio.create_task(follow(each)) for each in (one, other)]
            await store(client, "a")
            await ticks(5)
            await one.aclose()
            await one.aclose()
            assert len(await waiting[0]) <= 1
            assert [event async for event in one] == []
        await waiting[1]
        assert repr(other).endswith(", closed>")

    run(main())


def test_cancelled_at_any_moment(address: str, project: str) -> None:
    """Whoever stops waiting loses nothing: the next one gets the event."""

    async def main(client: aio.Client) -> None:
        async with client.watch() as watch:
            seen: list[str] = []
            for count in range(30):
                waiting = asyncio.create_task(take(watch, 1))
                stored = asyncio.create_task(store(client, f"{count}"))
                await ticks(count)
                waiting.cancel()
                await asyncio.wait([waiting, stored])
                seen += [] if waiting.cancelled() else waiting.result()
            while len(seen) < 30:
                seen += await take(watch, 1)
            assert seen == [f"{count}" for count in range(30)]

    with_client(main, address, project)


def test_cancelled_while_it_begins(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        for count in range(6):
            watch = client.watch()
            waiting = asyncio.create_task(watch.get())
            await ticks(count)
            waiting.cancel()
            await asyncio.wait([waiting])
            await watch.aclose()
        assert len(client._channel._open) == 1

    with_client(main, address, project)


def test_closed_while_it_begins(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        for count in range(6):
            watch = client.watch()
            waiting = asyncio.create_task(watch.get())
            await ticks(count)
            await watch.aclose()
            assert await waiting is None
        assert len(client._channel._open) == 1

    with_client(main, address, project)


def test_many_share_one(address: str, project: str) -> None:
    """Each event goes to one of them."""

    async def main(client: aio.Client) -> None:
        watch = await client.watch()
        waiting = [asyncio.create_task(take(watch, 10)) for _ in range(5)]
        names = [f"{number}" for number in range(50)]
        await client.tiers.store_many([fragment(name) for name in names])
        seen = [name for each in await asyncio.gather(*waiting) for name in each]
        assert sorted(seen) == sorted(names)

    with_client(main, address, project)


def test_in_time(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        async with client.watch() as watch:
            assert await watch.get(timeout_s=0.01) is None
            await store(client, "a")
            assert await take(watch, 1) == ["a"]

    with_client(main, address, project)


def test_far_behind(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of frames is received ahead; what was forgotten meanwhile is said, and it goes on behind it."""
    monkeypatch.setattr(limits, "PUSHED_FRAMES_MAX", 2)
    monkeypatch.setattr(limits, "EVENTS_PER_FRAME", 5)

    async def main() -> None:
        async with aio.connect(stage.address, projects=["p"]) as client:
            await client.tiers.store_many([fragment(f"{number}") for number in range(100)])
            async with client.watch(since=0) as watch:
                link = watch._connection
                assert link
                await until(lambda: not link._is_reading)
                assert link._pushed
                assert len(link._pushed) >= 2
                assert await take(watch, 100) == [f"{number}" for number in range(100)]
            monkeypatch.setattr(limits, "EVENTS_BUFFERED", 5)
            await client.tiers.store_many([fragment(f"{number}") for number in range(20)])
            async with client.watch(since=2) as late:
                with pytest.raises(sw.EventsMissed) as caught:
                    await anext(late)
                assert caught.value.details["resume"] == late.revision
                assert len(await take(late, 3)) == 3

    run(main())


def test_connection_that_breaks_is_made_again(address: str, project: str) -> None:
    """Nothing is missed, and nothing told twice."""

    async def main(client: aio.Client) -> None:
        begun = await store(client, "a")
        await store(client, "b", "c")
        async with client.watch(since=begun) as watch:
            assert await take(watch, 1) == ["b"]
            for name in ("d", "e"):
                assert watch._connection
                watch._connection.interrupt()
                await store(client, name)
            assert await take(watch, 3) == ["c", "d", "e"]

    with_client(main, address, project)


@pytest.mark.parametrize("since, projects", [(-1, None), ("1", None), (None, "p"), (None, ["no such name!"])])
def test_arguments(address: str, project: str, since: int, projects: list[str]) -> None:
    """What is wrong with them is said at once."""

    async def main(client: aio.Client) -> None:
        with pytest.raises(sw.InvalidArgument):
            await anext(client.watch(since=since, projects=projects))

    with_client(main, address, project)


def test_refused(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        with pytest.raises(sw.OutOfScope):
            await anext(client.watch(projects=["elsewhere"]))
        with pytest.raises(sw.InvalidArgument, match="no revision of this epoch"):
            await anext(client.watch(since=10**9))
        with pytest.raises(sw.InvalidArgument, match="stays in its process"):
            pickle.dumps(client.watch())

    with_client(main, address, project)


@pytest.mark.parametrize(
    "message, kind",
    [(WELCOME, sw.ProtocolError), (Rejected(Refusal(0, "Busy", "later")), sw.Busy)],
)
def test_told_something_else(message: ManagerMessage, kind: type[sw.StepwellError]) -> None:
    async def main(address: str) -> None:
        async with aio.Client(unconnected(address, None)) as client:
            with pytest.raises(kind):
                await anext(client.watch())

    with fake_manager([WELCOME, together(Events((), 3), message)]) as address:
        run(main(address))


@pytest.mark.parametrize(
    "answer, kind",
    [
        (WatchLagged(3), sw.ProtocolError),
        (Response(0, (Refusal(0, "Busy", "later"),)), sw.Busy),
        (None, sw.RuntimeLost),
        (Rejected(Refusal(0, "ProtocolError", "no")), sw.ProtocolError),
    ],
)
def test_not_accepted(answer: Reply, kind: type[sw.StepwellError]) -> None:
    """Whatever the manager answers instead is raised, and nothing is left open."""

    async def main(address: str) -> None:
        async with aio.Client(unconnected(address, None)) as client:
            with pytest.raises(kind):
                await anext(client.watch())
            assert not client._channel._open

    with fake_manager([WELCOME, answer]) as address:
        run(main(address))


def test_durable_manager_is_waited_for() -> None:
    """It hangs up on us until it is there again, and then goes on from where we are; closed meanwhile, it ends."""
    durable = replace(WELCOME, database="/somewhere")

    async def main(address: str) -> None:
        async with aio.Client(unconnected(address, None)) as client:
            watch = await client.watch()
            assert watch._connection
            watch._connection.interrupt()
            event = await watch.get(timeout_s=60)
            assert event == FIRST
            waiting = asyncio.create_task(watch.get())
            watch._connection.interrupt()
            await until(lambda: watch._connection is None)
            await watch.aclose()
            assert await waiting is None

    begun: list[Reply] = [durable, Events((), 3)]
    with fake_manager(begun, [None], [durable, together(Events((), 3), Events((FIRST,), 4))]) as address:
        run(main(address))


def test_loop_that_is_gone(address: str, project: str) -> None:
    """A watch that nobody closed is dropped with its client, and leaves no descriptor."""
    before = descriptors(os.getpid())

    async def forget() -> Watch:
        async with aio.connect(address, projects=[project]) as client:
            return await client.watch()

    watch = run(forget())
    del watch
    gc.collect()
    assert descriptors(os.getpid()) == before
