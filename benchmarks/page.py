"""`docs/performance.md`: the results of a run as a page. The same results give the same text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.reasons import LIMITS
from benchmarks.report import Results, number, ratio_to
from benchmarks.section import OURS, Figures, Goal, Section

_HEAD: Final = """\
# Performance

<!-- Generated from benchmarks/results/run.json. Do not edit it: the command is at the end. -->

The contenders of a table are measured in one run, on one machine. Figures of another machine are different, and so are
those of the same machine with other load. A ratio compares two contenders of a table, and is what to look at.

![Operations a second](../benchmarks/results/run.svg)
"""

_METHOD: Final = """\
- The contenders of a table are started together, and take turns in each round. Those whose processes are busy even
  while idle, as actors of Ray and Dask, have rounds of their own. A warm-up round does not count, except where each
  measurement starts new processes. A figure is the median of the rounds.
- Clients are processes of their own, and begin at the same instant. No process is pinned to a core.
- A client makes calls until its time is over. The rate counts all calls of all clients until the last client is done.
- Only some calls are timed by themselves, because reading the clock takes as long as a short call. Nothing is
  subtracted from a figure.
- A body has 1 KiB and is new, if its table says nothing else. `get` ends when the caller has the body's bytes.
- A service that is loaded with fragments before a work may finish what it does in the background after that.
- Busy processes compute all the time and have the same priority as the clients. They start and end with each work.
- A contender that cannot do a work has no figure there. One that could not take part is named with its reason.
"""

_FOOT: Final = r"""## How to repeat it

```sh
nox -s benchmark -- --json benchmarks/results/run.json --chart benchmarks/results/run.svg --page docs/performance.md \
    --readme README.md
```

This command measures nothing and writes the page, the chart and the tables of the README again from the results:

```sh
python -m benchmarks --from benchmarks/results/run.json --chart benchmarks/results/run.svg --page docs/performance.md \
    --readme README.md
```
"""


def written(results: Results) -> str:
    """Return the page."""
    parts = [_HEAD, *_machine(results), "## How it was measured\n", _METHOD, *_goals(results)]
    for section in results.sections:
        parts += _section(section)
    return "\n".join([*parts, _FOOT])


def _machine(results: Results) -> Iterator[str]:
    yield "## Machine\n"
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in results.machine.items())
    yield ""


def _goals(results: Results) -> Iterator[str]:
    """Yield the goals that were missed, by how much, and what limits each."""
    missed = [(section, goal) for section in results.sections for goal in section.missed()]
    count = sum(section.reached(goal) is not None for section in results.sections for goal in section.goals)
    yield "## Goals\n"
    if not missed:
        yield f"All of the {count} goals that were measured were reached.\n"
        return
    yield f"{count} goals were measured. Missed: {len(missed)}.\n"
    yield _row("table", "work", "reached", "goal", "missed by", "what limits it")
    yield "|---|---|---|---|---|---|"
    for section, goal in missed:
        reason = LIMITS.get((goal.contender, goal.work), "")
        reached, gap = _reached(section, goal)
        yield _row(section.title, _with_contender(goal, goal.work), reached, _wanted(section, goal), gap, reason)
    yield ""


def _with_contender(goal: Goal, text: str) -> str:
    """Return a text with the name of the contender, if stepwell takes part in several ways."""
    return ", ".join(filter(None, (text, goal.contender.removeprefix(OURS).removeprefix(", "))))


def _reached(section: Section, goal: Goal) -> tuple[str, str]:
    """Return the value that was reached, and its difference to the goal as a share of the goal."""
    reached = section.reached(goal)
    if reached is None:
        return "not measured", ""
    return (f"{reached:.3g} x" if goal.peer else number(reached)), f"{abs(1 - reached / goal.value):.0%}"


def _wanted(section: Section, goal: Goal) -> str:
    return f"{goal.kind} {goal.value:g} " + (f"x {goal.peer}" if goal.peer else section.unit)


def _section(section: Section) -> Iterator[str]:
    """Yield a table with a row for each work and a column for each contender."""
    works = [*dict.fromkeys(each.work for each in section.figures)]
    contenders = [*dict.fromkeys(each.contender for each in section.figures)]
    cells = {(each.work, each.contender): _cell(section, each) for each in section.figures}
    with_goals = bool(section.goals)
    yield f"## {section.title}\n"
    ratios = any(ratio_to(section, each) is not None for each in section.figures)
    note = "; in brackets the figure of stepwell divided by that of the contender" if ratios else ""
    rounds = f"median of {section.rounds} rounds" if section.rounds > 1 else "one round"
    yield f"Unit: {section.unit}, {rounds}{note}.\n"
    yield _row("", *contenders, *["goal"] * with_goals)
    yield "|" + "---|" * (1 + len(contenders) + with_goals)
    for work in works:
        goals = "<br>".join(_verdict(section, goal) for goal in section.goals if goal.work == work)
        yield _row(work, *(cells.get((work, each), "") for each in contenders), *[goals] * with_goals)
    yield ""
    for name, reason in section.absent.items():
        yield f"- {name} is absent: {reason}"
    if section.absent:
        yield ""


def _cell(section: Section, figures: Figures) -> str:
    ratio = ratio_to(section, figures)
    return number(figures.median) + ("" if ratio is None else f" ({ratio:.3g} x)")


def _verdict(section: Section, goal: Goal) -> str:
    """Return a goal of a row and what was reached."""
    missed = "**missed**, " if goal in section.missed() else ""
    return f"{_with_contender(goal, _wanted(section, goal))}: {missed}{_reached(section, goal)[0]}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
