"""stepwell for asyncio: the same surface, with `await`.

    async with stepwell.aio.connect(address, projects=["p"]) as client:
        await client.tiers.store(stepwell.Fragment(fragment_id="a", body="hello"))
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(client.tiers.get(name))

It is imported when it is first asked for: whoever has no event loop does not pay for one.
"""

from stepwell.aio.batch import Batch, Transaction
from stepwell.aio.client import Client, connect
from stepwell.aio.services import ContextTierService, PlanExecutionContext, PlanLifecycleService, ReceiptService
from stepwell.aio.strategies import StrategyService
from stepwell.aio.watch import Watch

__all__ = [
    "Batch",
    "Client",
    "ContextTierService",
    "PlanExecutionContext",
    "PlanLifecycleService",
    "ReceiptService",
    "StrategyService",
    "Transaction",
    "Watch",
    "connect",
]
