"""Plans captured, applied and rolled back from an event loop."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio
from stepwell.testing import LocalRuntime
from stepwell.trees import capture
from stepwell.trees.root import Root
from stepwell.trees.walk import WalkResult, walk
from tests.support.client.applicable_plans import AFTER, BEFORE, change_into, executed_plan, executing
from tests.support.event_loops import run
from tests.support.trees import build, discard, kept, read


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
            with pytest.raises(sw.AlreadyRolledBack):
                await context.apply(root)

    run(work())
    assert (read(root), kept(root)) == (BEFORE, set())


def test_workspace(client: sw.Client, root: Path) -> None:
    """A copy of its own, which is gone afterwards; the tree is as it was until the plan is applied."""

    async def work() -> None:
        async with await aio.connect(client.address, projects=["p"]) as loop:
            action = client.plans.get_plan(executing(client).plan_id).action_name
            plan = await loop.plans.begin(action, projects=["p"])
            assert str(plan.position) == "execute/processing"
            context = loop.execution(plan.plan_id)
            async with context.workspace(root, tool="editor") as path:
                change_into(path, AFTER)
            assert not path.exists()
            assert read(root) == BEFORE
            with pytest.raises(ZeroDivisionError):
                async with context.workspace(root) as path:
                    raise ZeroDivisionError
            assert not path.exists()
            await loop.plans.complete_execute(plan.plan_id)
            assert (await context.apply(root)).applied is not None

    run(work())
    assert (read(root), kept(root)) == (AFTER, set())


def test_failed_validation(client: sw.Client, root: Path) -> None:
    """It is raised from an event loop, too, each time."""
    context = executed_plan(client, root.parent, validations=[sw.Validation("no", ("sh", "-c", "echo no; exit 2"))])

    async def work() -> None:
        async with await aio.connect(client.address, projects=["p"]) as loop:
            for _ in range(2):
                with pytest.raises(sw.ValidationFailed) as raised:
                    await loop.execution(context.plan_id).apply(root)
                assert (raised.value.exit_code, raised.value.output) == (2, "no\n")

    run(work())
    assert (read(root), kept(root)) == (BEFORE, set())


def test_overlapping_captures(client: sw.Client, root: Path) -> None:
    """Of two tasks that capture one tree, the second is refused."""

    async def work() -> None:
        (first, lease), (second, other_lease) = given(client), given(client)
        async with await aio.connect(client.address, projects=["p"]) as loop:
            async with loop.execution(first, lease=lease).capture(root):
                with pytest.raises(sw.TreeInUse, match=first):
                    async with loop.execution(second, lease=other_lease).capture(root):
                        raise AssertionError("it was refused")
            async with loop.execution(second, lease=other_lease).capture(root):
                pass

    run(work())


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

    def slow(root: Root, **_: object) -> WalkResult:
        begun.set()
        goes_on.wait(60)
        if fails:
            raise OSError(5, "input/output error")
        return walk(root)

    monkeypatch.setattr(capture, "walk", slow)

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
