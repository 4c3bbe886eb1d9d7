"""A client of an event loop: the same surface with `await`, and an end that leaves nothing behind."""

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio, limits
from tests.support.client.fake_manager import WELCOME, fake_manager
from tests.support.client.sessions import fragment
from tests.support.event_loops import run, ticks, until, with_client
from tests.support.processes import descriptors, in_forked_child


def test_both_ways_to_connect(address: str, project: str) -> None:
    """With `await` or without, in a block or not."""

    async def main() -> None:
        async with aio.connect(address, projects=[project]) as first:
            placed = await first.tiers.store(fragment("a"))
            assert placed.tier is sw.Tier.HOT
        async with await aio.connect(Path(address), [project]) as second:
            assert bytes((await second.tiers.get("a")).body) == b"body"
        third = await aio.connect(address)
        assert (third.projects, second.projects, third.address) == (None, (project,), address)
        assert repr(third) == f"<stepwell.aio.Client of {address!r}>"
        assert third.epoch == second.epoch
        assert third.session_id != second.session_id
        await third.aclose()

    run(main())


def test_connect_without_an_address(
    address: str, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same address as that of the blocking client: the environment's, or the default one of `stepwell serve`."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("STEPWELL_ADDRESS", raising=False)

    async def main() -> None:
        with pytest.raises(sw.RuntimeLost, match="start one with `stepwell serve`,"):
            await aio.connect()
        monkeypatch.setenv("STEPWELL_ADDRESS", address)
        async with aio.connect(projects=[project]) as client:
            assert (client.address, client.projects) == (address, (project,))

    run(main())


def test_is_imported_when_it_is_asked_for() -> None:
    """Whoever has no event loop does not pay for one; `stepwell.aio` needs no import of its own."""
    program = (
        "import sys, stepwell; stepwell.connect; stepwell.Runtime; assert 'asyncio' not in sys.modules; "
        "stepwell.aio.connect; assert 'asyncio' in sys.modules; assert 'aio' in dir(stepwell)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "projects, advice", [("p", r"give \['p'\]"), ([], "projects is empty"), (["no such name!"], "a project is")]
)
def test_arguments_are_those_of_the_blocking_one(address: str, projects: list[str], advice: str) -> None:
    async def main() -> None:
        with pytest.raises(sw.InvalidArgument, match=advice):
            await aio.connect(address, projects)

    run(main())


def test_nobody_there(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(sw.RuntimeLost, match="there is no manager"):
            await aio.connect(tmp_path / "nobody")

    run(main())


def test_turned_away() -> None:
    """What is not a welcome is said when connecting, and nothing is left open."""

    async def main(address: str, kind: type[sw.StepwellError]) -> None:
        with pytest.raises(kind):
            await aio.connect(address)

    with fake_manager([None]) as address:
        run(main(address, sw.RuntimeLost))
    with fake_manager([b"\xff\xff\xff\xff"]) as address:
        run(main(address, sw.ProtocolError))


def test_surface(address: str, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiers, plans, executions, receipts and views give what those of a blocking client give, page after page."""
    monkeypatch.setattr(limits, "PAGE_ROWS_MAX", 200)

    async def main(client: aio.Client) -> None:
        await client.tiers.store_many([fragment(f"{number}") for number in range(450)])
        assert len(await client.tiers.get_many([f"{number}" for number in range(451)])) == 450
        assert len([row async for row in client.tiers.scoped()]) == 450
        assert (await client.tiers.metrics()).hot.entries == 450
        plan = await executing(client, "surface", project)
        context = client.execution(plan.plan_id)
        changeset_id = await context.start_changeset()
        entry = await context.record_change(sw.Change(path="a.py", before=b"old\n", after=b"new\n", tool="edit"))
        for number in range(250):
            await context.record_change(sw.Change(path=f"{number}", before=None, after=b"x", tool="touch"))
        await context.close_changeset(changeset_id)
        assert await anext(aiter(context.entries(changeset_id))) == entry
        assert (await context.summary(changeset_id)).by_tool == {"edit": 1, "touch": 250}
        assert "+new" in await context.diff(changeset_id)
        assert (await context.get(changeset_id)).state is sw.ChangesetState.CLOSED
        assert await client.receipts.store("r" + plan.plan_id, [project], "title", b"data") == "r" + plan.plan_id
        assert await client.receipts.get("r" + plan.plan_id) == b"data"
        assert (await client.status()).pid
        assert len(await client.view()) == 450
        assert (await client.strategies.list()).offers == ()

    with_client(main, address, project)


def test_refusals_are_raised(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        with pytest.raises(sw.NotFound):
            await client.tiers.get("nobody")
        with pytest.raises(sw.OutOfScope):
            await client.tiers.get("a", project="elsewhere")
        with pytest.raises(sw.InvalidArgument, match="sequence of ids"):
            await client.tiers.get_many("a")
        with pytest.raises(sw.OutOfScope):
            await client.tiers.get_many(["a"], project="elsewhere")
        with pytest.raises(sw.PartlyRefused) as caught:
            theirs = sw.Fragment(fragment_id="b", project="elsewhere", body="x", tokens=1)
            await client.tiers.store_many([fragment("a"), theirs])
        assert [type(each).__name__ for each in caught.value.outcomes] == ["FragmentPlaced", "OutOfScope"]
        with pytest.raises(sw.InvalidArgument, match="lone surrogate"):
            await client.tiers.get("\udc80")
        assert (await client.tiers.get("a")).tokens == 1

    with_client(main, address, project)


def test_large_bodies_have_connections_of_their_own(address: str, project: str) -> None:
    """Beside them everything else goes on; there are not many, and they are used again."""
    bodies = {f"{number}": bytes([number]) * (3 * limits.INLINE_BODY_BYTES_MAX) for number in range(12)}

    async def main(client: aio.Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, body in bodies.items():
                tasks.create_task(client.tiers.store(fragment(name, body)))
                tasks.create_task(client.tiers.metrics())
        found = await client.tiers.get_many(bodies)
        assert {name: bytes(each.body) for name, each in found.items()} == bodies
        assert 1 < len(client._channel._open) <= 1 + limits.UPLOADING_CONNECTIONS_MAX
        assert {*client._channel._idle} < {*client._channel._open}

    with_client(main, address, project)


def test_tokens_of_long_texts_are_counted_in_a_thread(
    address: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on meanwhile. So they are the first time, when a vocabulary is loaded."""
    counted: list[str] = []

    def count(_session: object, body: bytes) -> int:
        counted.append(threading.current_thread().name.partition("_")[0])
        return len(body)

    monkeypatch.setattr("stepwell.client.session.session.Session.count_tokens", count)

    async def main(client: aio.Client) -> None:
        for body in ("short", "short", "x" * limits.BUILT_BYTES_MAX):
            await client.tiers.store(sw.Fragment(fragment_id="a", body=body))
        await client.tiers.store_many([sw.Fragment(fragment_id="b", body="x" * 40_000)] * 2)

    with_client(main, address, project)
    assert counted == ["stepwell-aio", "MainThread", "stepwell-aio", "stepwell-aio", "stepwell-aio"]


def test_closing_twice_and_at_once(address: str, project: str) -> None:
    """Is as good as once; what is asked afterwards is refused, and says why."""

    async def main() -> None:
        client = await aio.connect(address, projects=[project])
        await asyncio.gather(client.aclose(), client.aclose())
        await client.aclose()
        for late in (client.tiers.get("a"), client.status(), client.view(), client.strategies.list()):
            with pytest.raises(sw.RuntimeLost, match="this client is closed"):
                await late
        with pytest.raises(sw.RuntimeLost, match="this client is closed"):
            await anext(client.watch())

    run(main())


def test_closing_ends_the_session(address: str, project: str) -> None:
    """Its leases are free at once, for whoever wants them."""

    async def main() -> None:
        async with aio.connect(address, projects=[project]) as one:
            plan = await executing(one, "left", project)
        async with aio.connect(address, projects=[project]) as other:
            found = await other.plans.get_plan(plan.plan_id)
            assert found.lease is None

    run(main())


def test_closing_while_somebody_waits() -> None:
    """Whoever still awaits an answer is told: what was sent may have happened."""

    async def main(address: str) -> None:
        client = await aio.connect(address, projects=["p"])
        waiting = asyncio.create_task(client.tiers.store(fragment()))
        await until(lambda: client._channel._shared and client._channel._shared._awaited)
        await client.aclose()
        with pytest.raises(sw.OutcomeUnknown):
            await waiting

    with fake_manager([WELCOME, b""]) as address:
        run(main(address))


def test_two_clients_in_one_loop(address: str, project: str) -> None:
    """Are two sessions, and do not know each other."""

    async def main() -> None:
        async with aio.connect(address, [project]) as one, aio.connect(address, [project]) as other:
            await asyncio.gather(one.tiers.store(fragment("a")), other.tiers.store(fragment("b")))
            await one.aclose()
            assert (await other.tiers.get_many(["a", "b"])).keys() == {"a", "b"}

    run(main())


def test_in_a_thread(address: str, project: str) -> None:
    """A loop need not be the main thread's."""
    found: list[int] = []

    async def main(client: aio.Client) -> None:
        await client.tiers.store(fragment("a"))
        found.append((await client.tiers.get("a")).tokens)

    thread = threading.Thread(target=with_client, args=(main, address, project))
    thread.start()
    thread.join()
    assert found == [1]


def test_another_loop(address: str, project: str) -> None:
    """Is told so, whatever it asks."""
    loop = asyncio.new_event_loop()

    async def connected() -> aio.Client:
        return await aio.connect(address, projects=[project])

    client = loop.run_until_complete(connected())

    async def elsewhere() -> None:
        for late in (client.tiers.get("a"), client.status(), client.view(), client.watch().get(), client.aclose()):
            with pytest.raises(sw.NotOwner, match="another event loop"):
                await late

    run(elsewhere())
    loop.run_until_complete(client.aclose())
    loop.close()


def test_loop_that_is_gone(address: str, project: str) -> None:
    """A client that nobody closed is dropped with its loop."""

    async def forget() -> aio.Client:
        client = await aio.connect(address, projects=[project])
        await client.tiers.store(fragment("a"))
        return client

    client = asyncio.run(forget())
    for link in client._channel._open:
        link.close()
    client.blocking_client.close()


def test_in_a_forked_child(address: str, project: str) -> None:
    """It is the parent's, whose connections the child neither uses nor keeps."""

    async def main(client: aio.Client) -> None:
        await client.tiers.store(fragment("a"))

        def use() -> None:
            with pytest.raises(sw.NotOwner, match="another process"):
                client._channel.require_owner()
            assert all(link.fileno() < 0 for link in client._channel._open)

        in_forked_child(use, is_measured=True)
        assert (await client.tiers.get("a")).tokens == 1

    with_client(main, address, project)


def test_stays_where_it_is(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        with pytest.raises(sw.InvalidArgument, match="send its address"):
            pickle.dumps(client)

    with_client(main, address, project)


def test_descriptors_are_given_back(address: str, project: str) -> None:
    """However often one connects, and whatever one did."""

    async def once() -> None:
        async with aio.connect(address, projects=[project]) as client:
            await client.tiers.store(fragment("a", bytes(100_000)))
            await client.tiers.get("a")
            await client.view()
            await anext(client.watch(since=0))

    run(once())
    before = descriptors(os.getpid())
    for _ in range(3):
        run(once())
    gc.collect()
    assert descriptors(os.getpid()) == before


def test_cancelled_while_connecting(address: str) -> None:
    """Leaves nothing behind, whenever it happens."""

    async def main() -> None:
        for count in range(4):
            connecting = asyncio.ensure_future(aio.connect(address))
            await ticks(count)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting

    run(main())


async def executing(client: aio.Client, name: str, project: str) -> sw.Plan:
    plans = client.plans
    action = await plans.create_action(
        name, description="", definition_of_done="", strategy_actor="planner", execution_actor="coder"
    )
    plan_id = (await plans.use_action(action.name, projects=[project])).plan_id
    await plans.start_strategize(plan_id)
    await plans.complete_strategize(plan_id)
    await plans.execute_plan(plan_id)
    return await plans.start_execute(plan_id)


def test_parts_of_the_client_are_documented() -> None:
    """What runs in a thread says what the blocking one says."""
    assert aio.Client.view.__doc__ == sw.Client.view.__doc__


def test_cancelled_while_closing(address: str, project: str) -> None:
    """It goes on, and whoever closes it again waits for the same end."""

    async def main() -> None:
        for count in range(4):
            client = await aio.connect(address, projects=[project])
            await client.view()
            closing = asyncio.create_task(client.aclose())
            await ticks(count)
            closing.cancel()
            await asyncio.wait([closing])
            await client.aclose()
            assert not client._channel._open

    run(main())
