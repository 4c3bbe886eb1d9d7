"""Plans captured, applied and rolled back from an event loop."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio
from stepwell.testing import LocalRuntime
from stepwell.trees import recording
from stepwell.trees.directories import Root
from stepwell.trees.walking import Walked, walk
from tests.loops import run
from tests.unit.client.planting import AFTER, BEFORE, change_into, executing
from tests.unit.trees.support import build, discard, kept, read


@pytest.fixture
def client() -> Iterator[sw.Client]:
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as connected:
        yield connected


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "root", BEFORE)
    discard(tmp_path / "root")


def given(client: sw.Client) -> tuple[str, int]:
    """A plan that executes, and its lease."""
    plan = client.plans.get_plan(executing(client).plan_id)
    assert plan.lease is not None
    return plan.plan_id, plan.lease.token


def test_whole_way(client: sw.Client, root: Path) -> None:
    """Captured, applied by one of many tasks, and rolled back."""

    async def work() -> None:
        plan_id, lease = given(client)
        async with await aio.connect(client.address, projects=["p"]) as loop:
            context = loop.execution(plan_id, lease=lease)
            async with context.capture(root, tool="editor") as captured:
                change_into(root, AFTER)
            assert {each.tool for each in captured.entries} == {"editor"}
            await loop.plans.complete_execute(plan_id, lease=lease)
            build(root, BEFORE)
            plans = await asyncio.gather(*(context.apply(root) for _ in range(5)))
            assert plans[0].applied is not None
            assert plans == [plans[0]] * 5
            assert read(root) == AFTER
            assert (await context.rollback(root, reason="no")).rolled_back is not None

    run(work())
    assert (read(root), kept(root)) == (BEFORE, set())


def test_exception_in_the_block(client: sw.Client, root: Path) -> None:
    """It is raised as it is, and nothing is recorded; a refusal at the end is raised, too."""

    async def work() -> None:
        plan_id, lease = given(client)
        async with await aio.connect(client.address, projects=["p"]) as loop:
            context = loop.execution(plan_id, lease=lease)
            mistake = ZeroDivisionError("mine")
            with pytest.raises(ZeroDivisionError) as raised:
                async with context.capture(root):
                    raise mistake
            assert raised.value is mistake
            with pytest.raises(sw.InvalidArgument):
                async with context.capture(root):
                    (root / "e\u0301").touch()
            with pytest.raises(sw.LeaseLost):
                async with loop.execution(plan_id).capture(root):
                    pass

    run(work())


@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_on_the_way_in(
    client: sw.Client,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    fails: bool,  # noqa: FBT001
) -> None:
    """What has begun in its thread comes to its end there, and leaves nothing open."""
    begun, goes_on = threading.Event(), threading.Event()

    def slow(root: Root) -> Walked:
        begun.set()
        goes_on.wait(60)
        if fails:
            raise OSError(5, "input/output error")
        return walk(root)

    monkeypatch.setattr(recording, "walk", slow)

    async def enter(context: aio.PlanExecutionContext) -> None:
        async with context.capture(root):
            raise AssertionError("it was cancelled before")

    async def work() -> None:
        plan_id, lease = given(client)
        async with await aio.connect(client.address, projects=["p"]) as loop:
            task = asyncio.create_task(enter(loop.execution(plan_id, lease=lease)))
            assert await asyncio.to_thread(begun.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            goes_on.set()

    run(work())
