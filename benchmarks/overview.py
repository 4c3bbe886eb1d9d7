"""The chart of a run: single calls of one and of several clients, a mix of reads and stores, and batches."""

from __future__ import annotations

from typing import Final

from benchmarks import chart, small, workloads
from benchmarks.report import Results

_PIPELINES: Final = frozenset({"Redis, pipelines of 100"})
_WITHOUT_BATCHES: Final = frozenset({"RLock in one process", "SyncManager dict"})
"""Contenders that have no batches: their figures are those of single calls."""


def _panels() -> tuple[chart.Panel, ...]:
    scale, existing = small.Scale(), workloads.Scale()
    sizes = ((1, scale.alone), (1, scale.few), (scale.large_batch, scale.few))
    alone, few, batches = (
        chart.Panel(
            heading=str(small.Cell("store", batch, clients)).removeprefix("store, ").capitalize(),
            works={"store": str(small.Cell("store", batch, clients)), "get": str(small.Cell("get", batch, clients))},
            without=_PIPELINES if batch == 1 else _WITHOUT_BATCHES,
        )
        for batch, clients in sizes
    )
    replaced, mixed = (str(workloads.Cell(work=work, clients=existing.few)) for work in ("replacing store", "mix"))
    mix = chart.Panel(
        heading=f"Fragments that exist, one at a time, {existing.few} clients",
        works={"store": replaced, "90 % get, 10 % store": mixed},
    )
    return alone, few, mix, batches


PANELS: Final = _panels()


def drawn(results: Results) -> str:
    """Return the SVG. Raises `ValueError` if the results have none of these works."""
    works = {work for panel in PANELS for work in panel.works.values()}
    rounds = max(
        (section.rounds for section in results.sections if works.intersection(each.work for each in section.figures)),
        default=0,
    )
    machine = results.machine
    measured = f"Median of {rounds} rounds on {machine['cores']} cores, Python {machine['python']}"
    return chart.drawn("store and get of 1 KiB", PANELS, results.sections, [measured])
