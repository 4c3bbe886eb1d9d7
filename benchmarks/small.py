"""Small bodies, one client: operations a second, one at a time and many at a time."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.contenders import BODY_BYTES, Contender, contenders

Rates = dict[str, dict[str, list[float]]]

WANTED = {
    ("stepwell, one at a time", "put"): 1.0,
    ("stepwell, one at a time", "get"): 1.0,
    ("stepwell, many at a time", "put"): 5.0,
    ("stepwell, many at a time", "get"): 5.0,
}
"""What each has to reach, as a multiple of the SyncManager's rate in the same run."""


def measure(peers: Sequence[Contender], rounds: int, operations: int) -> Rates:
    """Operations a second of everybody, in rounds in which each has its turn, after one that does not count."""
    rates: Rates = {peer.name: {"put": [], "get": []} for peer in peers}
    for number in range(rounds + 1):
        for peer in peers:
            keys = [f"{peer.name}-{number}-{key}" for key in range(operations)]
            works: dict[str, Callable[[Sequence[str]], None]] = {"put": peer.put, "get": peer.get}
            for work, run in works.items():
                begun = time.perf_counter()
                run(keys)
                if number:
                    rates[peer.name][work].append(operations / (time.perf_counter() - begun))
    return rates


def ratios(rates: Rates, base: str) -> dict[tuple[str, str], float]:
    """The median of each, as a multiple of the base's."""
    return {
        (name, work): statistics.median(values) / statistics.median(rates[base][work])
        for name, by_work in rates.items()
        for work, values in by_work.items()
    }


def report(rates: Rates, base: str) -> None:
    """A table on the terminal."""
    against = ratios(rates, base)
    table = Table(title=f"{BODY_BYTES} bytes, 1 client, {os.cpu_count()} cores, Python {platform.python_version()}")
    for column in ("contender", "work", "median /s", "lowest /s", "highest /s", "ratio", "wanted"):
        table.add_column(column, justify="left" if column in {"contender", "work"} else "right")
    for name, by_work in rates.items():
        for work, values in by_work.items():
            wanted = WANTED.get((name, work))
            table.add_row(
                name,
                work,
                f"{statistics.median(values):,.0f}",
                f"{min(values):,.0f}",
                f"{max(values):,.0f}",
                f"{against[name, work]:.2f}",
                f"{wanted:.0f}" if wanted else "",
            )
    Console(width=110).print(table)


def behind(rates: Rates, base: str) -> list[str]:
    """Who stays behind what it has to reach."""
    against = ratios(rates, base)
    return [
        f"{name} {work}: {against[name, work]:.2f}" for name, work in WANTED if against[name, work] < WANTED[name, work]
    ]


def run(rounds: int, operations: int) -> tuple[Rates, list[str]]:
    """Measure and report; the rates, and who stays behind."""
    with contenders() as peers:
        rates = measure(peers, rounds, operations)
    base = peers[0].name
    report(rates, base)
    return rates, behind(rates, base)
