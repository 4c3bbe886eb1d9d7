"""Event loops beside other processes: managers that die, workers that are asked, trees that are ingested."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio
from stepwell.process import SpawnedProcess
from stepwell.strategies.protocol import ContextRequest
from tests.support import strategies
from tests.support.event_loops import run, until
from tests.support.processes import kill
from tests.support.soak import IS_LONG

KILLS = 4 if IS_LONG else 2
ASKED = ContextRequest(projects=("p",), query="tiers and budgets")


def fragment(name: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=name, body=f"the body of {name}", tokens=3)


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    given = [strategies.everything, strategies.raising]
    with sw.Runtime.start(workers=1, strategies=given, log_level="error", encoding="estimate") as started:
        yield started


def test_manager_that_is_killed_comes_back(tmp_path: Path) -> None:
    """With a data directory: what was under way is sent again, and happens once; watching goes on without a gap."""

    async def main(runtime: sw.Runtime) -> None:
        async with aio.connect(runtime.address, projects=["p"]) as client:
            watch = await client.watch()
            names = [f"{number}" for number in range(100 * KILLS)]

            async def store(name: str) -> int:
                return (await client.tiers.store(fragment(name), expected_revision=0)).revision

            async def torment() -> None:
                for count in range(KILLS):
                    await until(partial(is_told, 30 * count), 60)
                    kill(runtime.pid)
                    await until(partial(has_restarted, count + 1), 60)

            def is_told(revision: int) -> bool:
                return watch.revision >= revision

            def has_restarted(times: int) -> bool:
                return runtime.restarts == times

            async def follow() -> list[str]:
                told = [await anext(watch) for _ in names]
                return [event.fragment_id for event in told if isinstance(event, sw.events.FragmentStored)]

            following, tormenting = asyncio.create_task(follow()), asyncio.create_task(torment())
            revisions: list[int] = []
            for start in range(0, len(names), 50):
                revisions += await asyncio.gather(*map(store, names[start : start + 50]))
                await asyncio.sleep(0.01)
            assert sorted(revisions) == [*range(1, len(names) + 1)]
            assert sorted(await following) == sorted(names)
            await tormenting
            found = await client.tiers.get_many(names)
            assert [found[name].text for name in names] == [f"the body of {name}" for name in names]
            await watch.aclose()

    with sw.Runtime.start(workers=0, data_dir=tmp_path, durability="process", log_level="error") as runtime:
        run(main(runtime), debug=False)


def test_manager_that_is_killed_for_good() -> None:
    """Without a data directory: there is nobody, and everybody is told."""

    async def main(runtime: sw.Runtime) -> None:
        async with aio.connect(runtime.address, projects=["p"]) as client:
            await client.tiers.store(fragment("a"))
            watch = await client.watch()
            kill(runtime.pid)
            await until(lambda: not runtime.is_alive())
            with pytest.raises(sw.RuntimeLost):
                await client.tiers.get("a")
            with pytest.raises(sw.RuntimeLost):
                await watch.get()

    with sw.Runtime.start(workers=0, log_level="error") as runtime:
        run(main(runtime))


def loop_of_its_own(address: str, number: int, count: int) -> None:
    async def main() -> None:
        async with aio.connect(address, projects=["p"]) as client:
            for step in range(count):
                await asyncio.gather(
                    *(
                        client.tiers.store(fragment(f"{number}-{step}-{each}"), expected_revision=0)
                        for each in range(10)
                    )
                )

    asyncio.run(main())


def test_loops_of_many_processes(runtime: sw.Runtime) -> None:
    """Share what there is, each with many requests under way."""
    processes = [SpawnedProcess(loop_of_its_own, (runtime.address, number, 5)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    assert codes == [0, 0]
    with runtime.client(projects=["p"]) as client:
        names = [f"{number}-{step}-{each}" for number in range(2) for step in range(5) for each in range(10)]
        assert len(client.tiers.get_many(names)) == 100


def test_strategies(runtime: sw.Runtime) -> None:
    """Each is a future, and those that fail raise."""

    async def main() -> None:
        async with aio.connect(runtime.address, projects=["p"]) as client:
            await client.tiers.store(fragment("asked"))
            names = {each.name for each in (await client.strategies.list()).offers}
            assert {"everything", "raising"} <= names
            result = await (await client.strategies.submit("everything", ASKED))
            assert "asked" in {each.fragment_id for each in result.fragments}
            with pytest.raises(sw.TaskFailed):
                await (await client.strategies.submit("raising", ASKED))
            with pytest.raises(sw.NotFound):
                await (await client.strategies.submit("nobody", ASKED))
            results = [each async for each in client.strategies.map("everything", [ASKED] * 3)]
            assert len(results) == 3

    run(main())


def test_strategies_that_nobody_waits_for() -> None:
    """Cancelling one stops the work, wherever it is; closing ends all, and does not wait for them."""

    async def main(address: str) -> None:
        client = await aio.connect(address, projects=["p"])
        tasks = client.blocking_client.strategies._tasks
        cancelled = await client.strategies.submit("hanging", ASKED)
        cancelled.cancel()
        submitting = asyncio.create_task(client.strategies.submit("hanging", ASKED))
        await asyncio.sleep(0)
        submitting.cancel()
        await asyncio.wait([submitting])
        await until(lambda: not tasks._futures)
        task = await client.strategies.submit("hanging", ASKED)
        assembling = asyncio.create_task(client.assemble(ASKED, strategies=["hanging"]))
        unwanted = asyncio.create_task(client.assemble(ASKED, strategies=["hanging"]))
        await until(lambda: len(tasks._futures) == 3)
        unwanted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        await client.aclose()
        late = task.cancel()
        assert not late
        for lost in (task, assembling):
            with pytest.raises(sw.RuntimeLost):
                await lost

    with sw.Runtime.start(workers=1, strategies=[strategies.hanging], log_level="error") as runtime:
        run(main(runtime.address))


def test_assembling_and_replaying(runtime: sw.Runtime) -> None:
    """What a blocking client gives, while the loop goes on."""

    async def main() -> None:
        async with aio.connect(runtime.address, projects=["p"]) as client:
            await client.tiers.store_many([fragment(f"tier {number}") for number in range(20)])
            answers = await asyncio.gather(*(client.assemble(ASKED, strategies=["everything"]) for _ in range(3)))
            assert len({answer.text for answer in answers}) == 1
            assert answers[0].receipt_id
            again = await client.replay(answers[0].receipt_id)
            assert again.text == answers[0].text
            assert (await client.receipt(answers[0].receipt_id)).request == answers[0].receipt.request
            answer = await client.assemble("what?", budget_tokens=50, strategies=["everything"])
            assert (answer.receipt.request.query, answer.budget_tokens) == ("what?", 50)
            with pytest.raises(sw.InvalidArgument, match="set budget_tokens in the ContextRequest"):
                await client.assemble(ASKED, budget_tokens=50)
            assert client.assemble.__doc__ == sw.Client.assemble.__doc__

    run(main())


def test_ingesting(runtime: sw.Runtime, tmp_path: Path) -> None:
    """In a thread, which stops when nobody waits for it; what it has stored stays, and the next one goes on."""
    for number in range(60):
        (tmp_path / f"{number:03}.txt").write_text(f"file {number}\n")
    looked, is_cancelled = threading.Event(), threading.Event()
    told: list[int] = []

    def tell(done: int, _total: int, _source: str) -> None:
        told.append(done)
        looked.set()
        is_cancelled.wait(60)

    async def main() -> None:
        async with aio.connect(runtime.address, projects=["tree"]) as client:
            ingesting = asyncio.create_task(client.ingest(tmp_path, on_progress=tell))
            await until(looked.is_set)
            ingesting.cancel()
            await asyncio.wait([ingesting])
            is_cancelled.set()
            with pytest.raises(asyncio.CancelledError):
                await ingesting
            report = await client.ingest(tmp_path)
            assert told == [1]
            assert report.added + report.unchanged == 60
            assert not (await client.ingest(tmp_path)).is_changed
            (tmp_path / "a.pem").write_text("x")
            assert (await client.ingest(tmp_path)).secrets == {"a.pem": "key or certificate"}
            assert (await client.ingest(tmp_path, include_secrets=True)).added == 1
            assert (await client.ingest(tmp_path, redact_entropy=True)).deleted == 1

    run(main())
