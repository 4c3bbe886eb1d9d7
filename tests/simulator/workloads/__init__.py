"""Workloads: what simulated clients do. Each is a coroutine that does one random operation and reports its outcome."""

from collections.abc import Awaitable, Callable

from tests.simulator.workloads.applies import take_turns
from tests.simulator.workloads.base import Actor
from tests.simulator.workloads.changesets import record_changes
from tests.simulator.workloads.counters import increment
from tests.simulator.workloads.logs import use_log
from tests.simulator.workloads.plans import drive_plan, work_on_children
from tests.simulator.workloads.pools import use_pool
from tests.simulator.workloads.state import use_state
from tests.simulator.workloads.tasks import run_task
from tests.simulator.workloads.tiers import use_batch, use_tiers, use_transaction
from tests.simulator.workloads.watchers import watch_events

WORKLOADS: dict[str, Callable[[Actor], Awaitable[None]]] = {
    "tiers": use_tiers,
    "batches": use_batch,
    "transactions": use_transaction,
    "counters": increment,
    "plans": drive_plan,
    "subplans": work_on_children,
    "applies": take_turns,
    "changesets": record_changes,
    "logs": use_log,
    "tasks": run_task,
    "watchers": watch_events,
    "pools": use_pool,
    "state": use_state,
}
