"""The report: both proofs side by side, as text or as one JSON object."""

from __future__ import annotations

import sys

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from examples.demo.dicts import SWITCH_SECONDS
from examples.demo.job import Job
from examples.demo.proof import Proof


def report_json(job: Job, runtime: Proof, dicts: Proof) -> None:
    """Print both proofs as one JSON object."""
    facts = {
        "processes": job.processes,
        "threads": job.threads,
        "holds": runtime.holds,
        "runtime": runtime,
        "dicts": dicts,
    }
    sys.stdout.write(f"{msgspec.json.encode(facts).decode()}\n")


def report(console: Console, job: Job, runtime: Proof, dicts: Proof) -> None:
    """Print the table, an explanation of the method, the errors of calls that broke, and the verdict."""
    console.print(_table(job, runtime, dicts))
    console.print(
        f"How it was seen: every fragment, action and changeset was read back and compared. Each caller read hot's "
        f"tokens at the very revision of each of its stores ({runtime.revisions:,} revisions), and a reader "
        f"{runtime.readings:,} times in between.\n"
        f"The dicts had the same callers as threads of one process, which took turns every {SWITCH_SECONDS * 1e6:g} "
        "microsecond instead of every 5,000; no interleaving was forced, so what they lose differs each time."
    )
    for error in runtime.broken[:5]:
        console.print(f"broken: {error}", markup=False, style="red")
    console.print(_verdict(runtime), style="bold green" if runtime.holds else "bold red")


def _verdict(runtime: Proof) -> str:
    return "The runtime lost nothing." if runtime.holds else "The runtime LOST something: this is a defect."


def _table(job: Job, runtime: Proof, dicts: Proof) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    table.add_column(f"runtime\n{job.processes} processes of {job.threads} threads", justify="right", no_wrap=True)
    table.add_column(f"unsynchronised\ndicts, {job.callers} threads", justify="right", no_wrap=True)
    for label, cells in _rows(runtime, dicts):
        table.add_row(label, *(f"[{'green' if fine else 'red'}]{text}[/]" for text, fine in cells))
    table.add_row("seconds", f"{runtime.seconds:.1f}", f"{dicts.seconds:.1f}")
    return table


Cell = tuple[str, bool]


def _rows(runtime: Proof, dicts: Proof) -> list[tuple[str, list[Cell]]]:
    """Return the rows of the table: a label, and a cell for the runtime and for the dicts."""
    both = (runtime, dicts)
    return [
        ("fragments stored and found", [_share(each.fragments_found, each.fragments) for each in both]),
        ("hot tokens at most", [_bound(each.hot_highest, each.hot_tokens) for each in both]),
        ("action names with one winner", [_share(each.names_won_once, each.names) for each in both]),
        ("changes in own changeset", [_share(each.changes_right, each.changes) for each in both]),
        ("calls that broke", [(f"{len(each.broken):,}", not each.broken) for each in both]),
    ]


def _share(found: int, expected: int) -> Cell:
    """Return a cell such as "5 of 5", and whether it is complete."""
    return f"{found:,} of {expected:,}", found == expected


def _bound(highest: int, budget: int) -> Cell:
    """Return a cell with the highest value and the budget, and whether the budget held."""
    return f"{highest:,} of {budget:,}", highest <= budget
