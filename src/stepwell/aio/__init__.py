"""stepwell for asyncio: the same surface, with `await`.

    async with stepwell.aio.connect(address, projects=["p"]) as client:
        await client.tiers.store(stepwell.Fragment(fragment_id="a", body="hello"))
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(client.tiers.get(name))

Structure: an asynchronous client contains a blocking one (`blocking_client`) and shares its session: the rules for
resending, the leases, the request numbers and the mapped memory. `channel.Channel` drives these rules for plain calls,
over `connection.AsyncConnection`, in the loop. Workflows that wait or compute for long (`assemble`, `apply`, `ingest`,
…) run the blocking client's methods in a few threads (`threads.run_in_thread`).

Entry points: `connect`, and the classes below. Imports: `client`, `transport` and what is below them; no other package
imports this one. It is imported when it is first asked for, so that programs without an event loop do not load asyncio.

Invariants:
- A client belongs to the loop in which it was made; another loop or process gets `NotOwner`.
- Nothing blocks the loop: disk reads, tokenizing of large bodies and workflows run in threads.
- A cancelled task gets no answer, and never the answer of another task. Its request may have taken effect.
"""

from stepwell.aio.batch import Batch, Transaction
from stepwell.aio.client import Client, connect
from stepwell.aio.log_watch import LogWatch
from stepwell.aio.services import (
    ContextTierService,
    Log,
    LogService,
    PlanExecutionContext,
    PlanLifecycleService,
    ReceiptService,
)
from stepwell.aio.strategies import StrategyService
from stepwell.aio.watch import Watch

__all__ = [
    "Batch",
    "Client",
    "ContextTierService",
    "Log",
    "LogService",
    "LogWatch",
    "PlanExecutionContext",
    "PlanLifecycleService",
    "ReceiptService",
    "StrategyService",
    "Transaction",
    "Watch",
    "connect",
]
