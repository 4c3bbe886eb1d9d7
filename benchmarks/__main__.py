"""Run the benchmark: all contenders interleaved, as tables with ratios, and optionally as JSON and a chart."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from benchmarks import (
    anatomy,
    assembly,
    bodies,
    chart,
    durable,
    fairness,
    lifecycles,
    pressure,
    recovery,
    report,
    scale,
    small,
    tasks,
    workloads,
)
from benchmarks.section import Section


class Part(Struct, frozen=True):
    """One part of the benchmark: the function that measures all of it, and one that measures the smallest slice."""

    whole: Callable[[int], list[Section]]  # given the number of rounds
    slice: Callable[[int], list[Section]]


FEW_CLIENTS = small.Scale(few=2, crowd=3)
FEW_WORKLOADS = workloads.Scale(few=2, crowd=3, fragments=200, many_fragments=1_000)

PARTS = {
    "small": Part(small.run, partial(small.run, seconds=0.01, scale=FEW_CLIENTS)),
    "workloads": Part(
        workloads.run,
        partial(workloads.run, seconds=0.01, scale=FEW_WORKLOADS),
    ),
    "anatomy": Part(anatomy.run, partial(anatomy.run, frames=2)),
    "bodies": Part(bodies.run, partial(bodies.run, reads=2, sizes=bodies.SIZES[:2], readers=2)),
    "pressure": Part(pressure.run, partial(pressure.run, entries=(100, 300, 1_000), stores=50, batches=5)),
    "durable": Part(durable.run, partial(durable.run, seconds=0.01, clients=(1, 2))),
    "fairness": Part(fairness.run, partial(fairness.run, seconds=0.05, peers=2, batch=50)),
    "tasks": Part(tasks.run, partial(tasks.run, long=2, short=4)),
    "assembly": Part(assembly.run, partial(assembly.run, sizes=(300,), questions=2)),
    "lifecycles": Part(lifecycles.run, partial(lifecycles.run, lifecycles=8, records=40, clients=2)),
    "scale": Part(scale.run, partial(scale.run, fragments=3_000)),
    "recovery": Part(recovery.run, partial(recovery.run, fragments=50, events=20)),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen parts and return the exit code: 1 if a goal is missed. A slice is too small to have goals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, help="in which each has its turn; by default 5, and 1 with --quick")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a small slice of everything, which no goal is held to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="also draw those that matter most")
    options = parser.parse_args(arguments)
    if options.chart and "small" not in options.only:
        parser.error("the chart is of the part small, which is not among those to be measured")
    rounds = options.rounds or (1 if options.quick else 5)
    print(", ".join(f"{name} {version}" for name, version in report.machine().items()))
    sections: list[Section] = []
    for name in options.only:
        measure = PARTS[name].slice if options.quick else PARTS[name].whole
        for section in measure(rounds):
            sections.append(section)
            print()
            report.show(section)
            if options.json:  # after each part, so that an interrupted run leaves the results so far
                options.json.write_bytes(report.encoded(sections))
    if options.chart:
        scale = FEW_CLIENTS if options.quick else small.Scale()
        options.chart.write_text(_chart(sections, scale, rounds))
    if options.quick:
        return 0
    behind = [line for section in sections for line in section.behind()]
    print("\n".join(f"behind: {line}" for line in behind) or "everything wanted was reached")
    return 1 if behind else 0


def _chart(sections: list[Section], scale: small.Scale, rounds: int) -> str:
    """Return the chart of the usual cases: single calls of one and of several clients, and batches."""
    sizes = ((1, scale.alone), (1, scale.few), (scale.large_batch, scale.few))
    cells = [small.Cell("store", batch, clients) for batch, clients in sizes]
    panels = [
        chart.Panel(
            str(cell).removeprefix("store, ").capitalize(),
            {"store": str(cell), "get": str(cell).replace("store", "get", 1)},
        )
        for cell in cells
    ]
    found = report.machine()
    measured = f"Median of {rounds} rounds on {found['cores']} cores, Python {found['python']}"
    return chart.drawn("store and get of 1 KiB", panels, sections, [measured])


if __name__ == "__main__":
    sys.exit(main())
