"""Reports of the figures: as tables on a terminal, and as JSON with a description of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.section import OURS, Figures, Section

_PACKAGES = ("stepwell", "msgspec", "multiprocess", "numpy", "redis", "hiredis", "ray", "distributed", "loky", "bm25s")


def show(section: Section) -> None:
    """Print a table: the median and spread of each contender, its ratio to stepwell, and the goal of stepwell."""
    table = Table(title=f"{section.title} ({section.unit})", title_justify="left")
    for heading in ("work", "contender"):
        table.add_column(heading)
    for heading in ("median", "lowest", "highest", "ours is", "wanted"):
        table.add_column(heading, justify="right")
    for each in section.figures:
        spread = (f"{value:,.4g}" if value < 1_000 else f"{value:,.0f}" for value in _spread(each))
        table.add_row(each.work, each.contender, *spread, _ratio(section, each), "; ".join(_wanted(section, each)))
    console = Console(width=130)
    console.print(table)
    for name, reason in section.absent.items():
        console.print(f"  {name} is absent: {reason}", markup=False, highlight=False)


def _spread(figures: Figures) -> tuple[float, float, float]:
    return figures.median, min(figures.values), max(figures.values)


def _ratio(section: Section, figures: Figures) -> str:
    """Return the ratio of stepwell's median in the same work to the median of a contender."""
    ours = (each for each in section.figures if each.contender.startswith(OURS) and each.work == figures.work)
    first = next(ours, None)
    if first is None or figures.contender.startswith(OURS) or not figures.median:
        return ""
    return f"{first.median / figures.median:.2f} x"


def _wanted(section: Section, figures: Figures) -> Iterable[str]:
    for goal in section.goals:
        if (goal.work, goal.contender) == (figures.work, figures.contender):
            of = f" x {goal.peer}" if goal.peer else ""
            yield f"{goal.kind} {goal.value:g}{of}"


def machine() -> dict[str, str]:
    """Return a description of the machine and the versions that the figures depend on."""
    found = {"python": platform.python_version(), "kernel": platform.release(), "cores": str(os.cpu_count())}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def encoded(sections: Iterable[Section]) -> bytes:
    """Return everything that was measured as JSON."""
    whole = {"machine": machine(), "sections": [*sections]}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
