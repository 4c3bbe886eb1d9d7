"""The table of token pools, which `pool list` and `status` print."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from rich import box
from rich.table import Table

from stepwell import limits
from stepwell.client.api.pools import PERIODS_MS
from stepwell.client.client import Client
from stepwell.domain.pools.model import TokenPool


def all_pools(client: Client) -> list[TokenPool]:
    """Return all pools. There are few enough for one page."""
    return [*client.pools.list(limit=limits.POOLS_MAX)]


def pool_table(pools: Sequence[TokenPool]) -> Table:
    """Return the table of pools. A pool that is low is marked."""
    names = {period_ms: name for name, period_ms in PERIODS_MS.items()}
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("pool", style="bold", overflow="fold")
    for heading in ("tokens", "spent", "leased", "free", "leases"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for pool in pools:
        per = ""
        if pool.period_ms is not None:
            per = f" per {names.get(pool.period_ms) or timedelta(milliseconds=pool.period_ms)}"
        counts = (pool.spent, pool.leased, max(0, pool.free), len(pool.leases))
        table.add_row(
            pool.name, f"{pool.tokens:,}{per}", *(f"{count:,}" for count in counts), "low" if pool.is_low else ""
        )
    return table
