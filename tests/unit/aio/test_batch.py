"""Batches and transactions of an event loop: enlisted without waiting, sent and awaited at the end of the block."""

import asyncio

import pytest

import stepwell as sw
from stepwell import aio
from tests.support.client.sessions import fragment
from tests.support.event_loops import ticks, with_client

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


def test_each_has_its_outcome(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        async with client.batch() as batch:
            stored = batch.tiers.store(fragment("a"))
            missing = batch.tiers.get("nobody")
            with pytest.raises(sw.InvalidArgument, match="not sent yet"):
                stored.result()
        assert stored.revision == stored.result().revision
        with pytest.raises(sw.NotFound):
            missing.result()
        async with client.batch():
            pass

    with_client(main, address, project)


def test_all_or_nothing(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        async with client.transaction() as transaction:
            stored = [transaction.tiers.store(fragment(name)) for name in "ab"]
            with pytest.raises(sw.InvalidArgument, match="no reads"):
                transaction.tiers.get("a")
        assert stored[0].revision == stored[1].revision
        with pytest.raises(sw.TransactionAborted):
            async with client.transaction() as transaction:
                transaction.tiers.store(fragment("c"))
                transaction.tiers.delete("nobody")
        with pytest.raises(sw.NotFound):
            await client.tiers.get("c")

    with_client(main, address, project)


def test_an_exception_in_the_block_sends_nothing(address: str, project: str) -> None:
    async def main(client: aio.Client) -> None:
        with pytest.raises(ZeroDivisionError):
            async with client.batch() as batch:
                stored = batch.tiers.store(fragment("a"))
                raise ZeroDivisionError
        with pytest.raises(sw.InvalidArgument, match="never sent"):
            stored.result()
        with pytest.raises(sw.InvalidArgument, match="sent already"):
            batch.tiers.store(fragment("b"))
        with pytest.raises(sw.NotFound):
            await client.tiers.get("a")

    with_client(main, address, project)


def test_cancelled_while_it_is_sent(address: str, project: str) -> None:
    """Nobody knows whether it happened, and each of its results says so."""

    async def main(client: aio.Client) -> None:
        pending: list[sw.types.Pending[object]] = []

        async def send() -> None:
            async with client.batch() as batch:
                pending.append(batch.tiers.store(fragment("a")))

        task = asyncio.create_task(send())
        await ticks(2)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(sw.OutcomeUnknown, match="interrupted"):
            pending[0].result()

    with_client(main, address, project)


def test_context_inside_a_bundle(address: str, project: str) -> None:
    """It is the same context there: what it started outside is its active changeset."""

    async def main(client: aio.Client) -> None:
        action = await client.plans.create_action(
            "bundled", description="", definition_of_done="", strategy_actor="p", execution_actor="c"
        )
        plan = await client.plans.use_action(action.name, projects=[project])
        await client.plans.start_strategize(plan.plan_id)
        await client.plans.complete_strategize(plan.plan_id)
        await client.plans.execute_plan(plan.plan_id)
        await client.plans.start_execute(plan.plan_id)
        context = client.execution(plan.plan_id)
        changeset_id = await context.start_changeset()
        async with client.transaction() as transaction:
            recorded = transaction.execution(context).record_change(sw.Change(path="a", before=None, after=b"x"))
            closed = transaction.execution(context).close_changeset(changeset_id)
        assert recorded.result().path == "a"
        assert closed.result().changeset_id == changeset_id

    with_client(main, address, project)
