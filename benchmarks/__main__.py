"""Run the benchmark: all contenders interleaved, as tables with ratios, and optionally as JSON and a chart."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from benchmarks import (
    anatomy,
    assembly,
    bodies,
    durable,
    fairness,
    lifecycles,
    overview,
    page,
    pressure,
    recovery,
    report,
    scale,
    shell,
    small,
    summary,
    tasks,
    workloads,
)
from benchmarks.section import Section


class Part(Struct, frozen=True):
    """One part of the benchmark: the function that measures all of it, and one that measures the smallest slice.

    `rounds` is chosen so that the whole benchmark takes about a quarter of an hour on two cores.
    """

    whole: Callable[[int], list[Section]]  # given the number of rounds
    slice: Callable[[int], list[Section]]
    rounds: int = 5


FEW_CLIENTS = small.Scale(few=2, crowd=3)
FEW_WORKLOADS = workloads.Scale(few=2, crowd=3, fragments=200, many_fragments=1_000)
FEW_SIZES = (assembly.Size(fragments=300), assembly.million(fragments=600))

PARTS = {
    "small": Part(small.run, partial(small.run, seconds=0.01, scale=FEW_CLIENTS)),
    "workloads": Part(workloads.run, partial(workloads.run, seconds=0.01, scale=FEW_WORKLOADS)),
    "anatomy": Part(anatomy.run, partial(anatomy.run, frames=2)),
    "bodies": Part(bodies.run, partial(bodies.run, reads=2, sizes=bodies.SIZES[:2], readers=2)),
    "pressure": Part(pressure.run, partial(pressure.run, entries=(100, 300, 1_000), stores=50, batches=5), rounds=3),
    "durable": Part(partial(durable.run, seconds=0.4), partial(durable.run, seconds=0.01, clients=(1, 2))),
    "fairness": Part(partial(fairness.run, seconds=1.0), partial(fairness.run, seconds=0.05, peers=2, batch=50)),
    "tasks": Part(partial(tasks.run, short=1_000), partial(tasks.run, long=2, short=4), rounds=2),
    "assembly": Part(assembly.run, partial(assembly.run, sizes=FEW_SIZES, questions=2), rounds=2),
    "shell": Part(shell.run, partial(shell.run, files=40, changes=(1, 5))),
    "lifecycles": Part(
        partial(lifecycles.run, lifecycles=1_000, records=10_000),
        partial(lifecycles.run, lifecycles=8, records=40, clients=2),
        rounds=3,
    ),
    "scale": Part(scale.run, partial(scale.run, fragments=3_000), rounds=1),
    "recovery": Part(recovery.run, partial(recovery.run, fragments=50, events=20), rounds=3),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen parts and return the exit code: 1 if a goal is missed. A slice is too small to have goals."""
    options = _parser().parse_args(arguments)
    if options.given:
        _write(report.decoded(options.given.read_bytes()), options)
        return 0
    if options.chart and not {"small", "workloads"} & {*options.only}:
        _parser().error("the chart is of the parts small and workloads, of which none is to be measured")
    machine = report.machine()
    print(", ".join(f"{name} {version}" for name, version in machine.items()))
    sections: list[Section] = []
    results = report.Results(machine, ())
    for name in options.only:
        begun, part = time.monotonic(), PARTS[name]
        rounds = options.rounds or (1 if options.quick else part.rounds)
        for section in (part.slice if options.quick else part.whole)(rounds):
            sections.append(section)
            print()
            report.show(section)
        print(f"\n{name} took {time.monotonic() - begun:.0f} s", flush=True)
        # After each part, so that an interrupted run leaves the results so far.
        results = report.Results(machine, tuple(sections))
        if options.json:
            options.json.write_bytes(report.encoded(results))
    _write(results, options)
    if options.quick:
        return 0
    behind = [line for section in sections for line in section.behind()]
    print("\n".join(f"behind: {line}" for line in behind) or "everything wanted was reached")
    return 1 if behind else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, help="in which each has its turn; by default as many as a part needs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a small slice of everything, which no goal is held to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="also draw those that matter most")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="also write a page with all tables and goals")
    parser.add_argument("--readme", type=Path, metavar="FILE.md", help="also write the tables of the README there")
    parser.add_argument(
        "--from", dest="given", type=Path, metavar="FILE", help="measure nothing: the figures are those of this file"
    )
    return parser


def _write(results: report.Results, options: argparse.Namespace) -> None:
    """Write the chart, the page and the tables that are asked for."""
    if options.chart:
        options.chart.write_text(overview.drawn(results))
    if options.page:
        options.page.write_text(page.written(results))
    if options.readme:
        options.readme.write_text(summary.written(options.readme.read_text(), results))


if __name__ == "__main__":
    sys.exit(main())
