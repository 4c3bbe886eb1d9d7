"""`stepwell status`: show how a running manager is doing.

It prints three tables:

- the manager: address, process, revision, durability, uptime, requests, peers, workers and tasks, strategies, and the
  installed strategies that workers could not load;
- the tiers: entries, tokens and bytes of each, beside the bound that the budget sets;
- the memory: shared segments, cold bodies on disk, and bodies that wait to be compressed or expanded.

With `--json` it prints one object with the same numbers, for monitoring. Exit code 1 means that no manager answers at
the address; a script can use that as a health check.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.output import print_struct
from stepwell.cli.common.parameters import JsonFlag
from stepwell.cli.common.tables.pools import all_pools, pool_table
from stepwell.client.client import connect
from stepwell.domain.replies import StrategiesFound, TierUsage
from stepwell.protocol.messages import Status
from stepwell.storage.store import Durability
from stepwell.text import plural

_SURVIVED: Final[dict[str, str]] = {
    Durability.DISK: "a loss of power (durability: disk)",
    Durability.PROCESS: "the death of every process (durability: process)",
    Durability.NONE: "nothing: they are in memory (durability: none)",
}
"""The events that acknowledged writes survive, by durability."""


app: Final = command_app()


@app.command(cls=ShellCommand)
def run(*, address: Address = None, json: JsonFlag = False) -> int:
    """Exit code 1 means that no manager answers at the address; a script can use that as a health check."""
    address = resolve_address(address)
    with connect(address) as client:
        # Three requests: the numbers of the manager, of the workers and of the pools can be a moment apart.
        status, pool, token_pools = client.status(), client.strategies.list(), all_pools(client)
    if json:
        pools = {"pools": [msgspec.structs.asdict(each) for each in token_pools]}
        print_struct(_manager_object(address, status) | _pool_object(pool) | pools)
        return 0
    console = result_console()
    console.print(_manager(address, status, pool))
    console.print(_tiers(status))
    if token_pools:
        console.print(pool_table(token_pools))
    console.print(_memory(status))
    return 0


def _manager_object(address: str, status: Status) -> dict[str, object]:
    """Return the manager's part of the object for `--json`."""
    metrics = status.metrics
    return {
        "address": address,
        "pid": status.pid,
        "epoch": status.epoch,
        "revision": status.revision,
        "uptime_s": status.uptime_s,
        "peers": status.peers,
        "sessions": status.sessions,
        "requests": status.requests,
        "evicted": status.evicted,
        "tiers": {name: msgspec.structs.asdict(usage) for name, usage in _by_name(status)},
        "body_bytes": metrics.body_bytes,
        "memory": msgspec.structs.asdict(status.memory),
        "encoding": status.encoding,
        "durability": status.durability,
        "database": status.database,
        "budget": metrics.budget,
    }


def _pool_object(pool: StrategiesFound) -> dict[str, object]:
    """Return the part of the object that is about workers, tasks and strategies."""
    return {
        "workers": [worker.pid for worker in pool.workers],
        "tasks": {"leased": pool.leased, "queued": pool.queued},
        "strategies": [each.name for each in pool.offers],
        "strategies_not_loaded": [msgspec.structs.asdict(each) for each in pool.problems],
    }


def _by_name(status: Status) -> list[tuple[str, TierUsage]]:
    """Return the use of each tier, hot first, and of the fragments with `keep`, which are in none."""
    metrics = status.metrics
    return [("hot", metrics.hot), ("warm", metrics.warm), ("cold", metrics.cold), ("kept", metrics.kept)]


def _manager(address: str, status: Status, pool: StrategiesFound) -> Table:
    """Return the table about the manager itself."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("manager", address)
    table.add_row("process", str(status.pid))
    table.add_row("epoch", status.epoch)
    table.add_row("revision", f"{status.revision:,}")
    table.add_row("writes survive", _SURVIVED.get(status.durability, status.durability))
    if status.database is not None:
        table.add_row("stored in", Text(status.database))
    table.add_row("up for", str(timedelta(seconds=round(status.uptime_s))))
    table.add_row("requests", f"{status.requests:,}")
    table.add_row("peers", f"{status.peers:,} (sessions: {status.sessions:,}, evicted so far: {status.evicted:,})")
    table.add_row("workers", f"{len(pool.workers)} (tasks under way: {pool.leased:,}, waiting: {pool.queued:,})")
    table.add_row("strategies", ", ".join(each.name for each in pool.offers) or "none")
    for problem in pool.problems:
        table.add_row(Text("not loaded", style="bold red"), Text(str(problem)))
    return table


def _tiers(status: Status) -> Table:
    """Return the table of tiers, with the bound that the budget sets for each."""
    budget = status.metrics.budget
    bounds = {
        "hot": plural(budget.hot_tokens, "token"),
        "warm": plural(budget.warm_entries, "entry", "entries"),
        "cold": plural(budget.cold_entries, "entry", "entries"),
        "kept": plural(budget.kept_entries, "entry", "entries"),
    }
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("tier", style="bold")
    for heading in ("fragments", "files", "tokens", "bytes", "of at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, usage in _by_name(status):
        counts = (usage.entries, usage.files, usage.tokens, usage.bytes)
        table.add_row(name, *(f"{count:,}" for count in counts), bounds[name])
    table.add_section()
    table.add_row("bodies", "", "", "", f"{status.metrics.body_bytes:,}", f"{budget.bodies_bytes:,} bytes")
    return table


def _memory(status: Status) -> Table:
    """Return the table about shared memory and cold bodies."""
    memory = status.memory
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row(
        "shared memory",
        f"{memory.arena_bytes:,} of {memory.arena_limit:,} bytes in {plural(memory.segments, 'segment')}, "
        f"{memory.live_bytes:,} live",
    )
    table.add_row("cold bodies", f"{plural(memory.file_bytes, 'byte')} on disk")
    index = status.index
    if answered := index.hits + index.misses:
        reads = f"{index.hits / answered:.0%} of {plural(answered, 'read')} needed no request"
        table.add_row("index of reads", f"{plural(index.fragments, 'fragment')} in {index.bytes:,} bytes; {reads}")
    table.add_row("in another form soon", plural(memory.waiting, "body", "bodies"))
    # A retired segment is freed when the last client unmaps it. A growing number points to clients that never do.
    retired = f"{plural(memory.retired_bytes, 'byte')} in {plural(memory.retired_segments, 'segment')}"
    table.add_row("retired, still mapped", retired)
    table.add_row("tokens counted by", status.encoding)
    return table
