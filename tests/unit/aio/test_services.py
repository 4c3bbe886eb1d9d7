"""What is made of several calls, awaited: children worked on and merged, a plan's diff."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell as sw
from stepwell import aio
from tests.support.client.subplans import record
from tests.support.event_loops import with_client


def test_children(address: str, project: str) -> None:
    """Agents work in threads of the client; the rest gives what its blocking counterpart gives."""

    async def main(client: aio.Client) -> None:
        plans = client.plans
        action = await plans.create_action(
            f"aio-{project}".lower()[:60],
            description="",
            definition_of_done="",
            strategy_actor="planner",
            execution_actor="coder",
        )
        plan_id = (await plans.use_action(action.name, projects=[project])).plan_id
        await plans.start_strategize(plan_id)
        await plans.proceed(plan_id)
        names = ("first", "second")
        children = [sw.subplan(action.name, alias=name, labels="gpu") for name in names]
        declared = await plans.declare_subplans(plan_id, children, retries=1)
        assert declared.subplans is not None
        aliases = {child.plan_id: child.alias for child in declared.subplans.children}

        def run(plan: sw.Plan, context: sw.WorkContext) -> None:
            if (aliases[plan.plan_id], plan.attempt) == ("first", 1):
                raise ZeroDivisionError("mine")
            record(context, {"f": (b"base\n", aliases[plan.plan_id].encode() + b"\n")}, "editor")

        unable = await plans.work_on(plan_id, run, labels=())
        assert (unable.completed, unable.is_for_others) == ((), True)
        assert (await plans.start_ready(plan_id, labels=["cpu"])).is_for_others
        assert len(await plans.list_plans(label="gpu")) == len(names)
        with pytest.raises(ZeroDivisionError, match="mine"):
            await plans.work_on(plan_id, run, on_error="raise")
        done = await plans.work_on(plan_id, run, actors=["coder"], labels=["gpu"], read_only=False)
        assert (done.completed, done.is_over) == (tuple(aliases), True)
        context = client.execution(plan_id)
        assert len((await context.merge_children()).open_conflicts) == 1
        assert (await context.conflict_sides("f")).theirs == b"second\n"
        assert await context.conflict_text("f") == "<<<<<<< ours\nfirst\n=======\nsecond\n>>>>>>> theirs (second)\n"
        with pytest.raises(sw.MergeConflicts):
            await plans.complete_execute(plan_id)
        assert (await context.resolve("f", accept="theirs")).open_conflicts == ()
        assert [*await context.net_changes()] == ["f"]
        assert (await context.plan_diff(tools=["editor"])).endswith("-base\n+second\n")
        assert (await context.plan_summary()).by_tool == {"editor": 1, "merge": 1}
        await plans.complete_execute(plan_id)

    with_client(main, address, project)


def test_pools(address: str, project: str) -> None:
    """The same, of a task."""

    async def main(client: aio.Client) -> None:
        name = f"aio-{client.session_id}"
        await client.pools.create(name, tokens=100, soft_percent=100)
        async with client.pools.leased(name, 60) as held:
            await held.use(20)
            assert held.left == 40
        assert (await client.pools.get(name)).free == 80
        assert name in [each.name for each in await client.pools.list()]

    with_client(main, address, project)


def test_apply_in_its_turn(address: str, project: str, tmp_path: Path) -> None:
    """The place is told in a thread of the client; the calls on the queue are awaited like all others."""
    root = tmp_path / "root"
    root.mkdir()
    places: list[int] = []

    async def main(client: aio.Client) -> None:
        plans = client.plans
        action = await plans.create_action(
            f"turn-{project}".lower()[:60],
            description="",
            definition_of_done="",
            strategy_actor="planner",
            execution_actor="coder",
        )
        first, second = [(await plans.begin(action.name, projects=[project])).plan_id for _ in range(2)]
        for plan_id in (first, second):
            await plans.complete_execute(plan_id)
            await plans.apply_plan(plan_id)
        other = await plans.join_apply_queue(second, str(root), priority=-1)
        applied = await client.execution(first).apply(
            root, wait=True, on_place=lambda found: places.append(found.place)
        )
        assert applied.applied is not None
        assert (await plans.apply_queue(str(root))).tickets[0].place == 1
        with pytest.raises(sw.TreeQueued):
            await plans.start_apply((await _third(client, action.name, project)), tree=str(root))
        assert await plans.leave_apply_queue(other.ticket.ticket_id) is not None

    with_client(main, address, project)
    assert places == [1]


async def _third(client: aio.Client, action: str, project: str) -> str:
    plan_id = (await client.plans.begin(action, projects=[project])).plan_id
    await client.plans.complete_execute(plan_id)
    return (await client.plans.apply_plan(plan_id)).plan_id
