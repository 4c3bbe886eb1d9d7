"""The result of one part of the benchmark: figures of all contenders, goals, and the absent contenders."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

OURS = "stepwell"
"""The prefix of the names of stepwell contenders."""


class CannotRun(Exception):
    """A contender cannot run; the message says why."""


class Figures(Struct, frozen=True):
    """The figures of one contender in one work, a value for each round."""

    work: str
    contender: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


class Goal(Struct, frozen=True):
    """The goal of a stepwell median: a multiple of a peer's median in the same work or, without a peer, a value."""

    work: str
    contender: str
    kind: Literal["at least", "at most"]
    value: float
    peer: str = ""


class Section(Struct, frozen=True, kw_only=True):
    """A table: rows of contenders and works, in one unit."""

    title: str
    unit: str  # "/s", "ms", "µs"
    figures: tuple[Figures, ...]
    goals: tuple[Goal, ...] = ()
    absent: dict[str, str] = {}  # contenders that could not take part, with the reasons

    def median(self, work: str, contender: str) -> float | None:
        """Return the median of a contender in a work; None if it did not take part."""
        found = (each.median for each in self.figures if (each.work, each.contender) == (work, contender))
        return next(found, None)

    def reached(self, goal: Goal) -> float | None:
        """Return the value to compare with the goal; None if the contender or its peer did not take part."""
        ours = self.median(goal.work, goal.contender)
        theirs = self.median(goal.work, goal.peer) if goal.peer else 1.0
        return None if ours is None or theirs is None else ours / theirs

    def missed(self) -> Iterator[Goal]:
        """Yield the goals that were missed. An absent peer is no miss; a figure that was not measured is one."""
        for goal in self.goals:
            reached = self.reached(goal)
            if reached is None:
                if goal.contender not in self.absent and goal.peer not in self.absent:
                    yield goal
            elif reached < goal.value if goal.kind == "at least" else reached > goal.value:
                yield goal

    def behind(self) -> Iterator[str]:
        """Yield a line for each goal that was missed."""
        for goal in self.missed():
            reached = self.reached(goal)
            if reached is None:
                yield f"{goal.contender}, {goal.work}: it was not measured"
            else:
                what = f"of {goal.peer}" if goal.peer else self.unit
                yield f"{goal.contender}, {goal.work}: {reached:.3g} {what}, {goal.kind} {goal.value:g} is wanted"

    @property
    def rounds(self) -> int:
        """The number of rounds, which is that of the values of most figures."""
        return max((len(each.values) for each in self.figures), default=0)


Turn = Callable[[], float]
"""Runs a contender's work once and returns the measured value."""


def in_rounds(
    rounds: int, turns: Mapping[tuple[str, str], Turn], *, warm_up: bool = True
) -> tuple[tuple[Figures, ...], dict[str, str]]:
    """Run all turns, by work and contender, in rounds, after a warm-up round that does not count.

    A peer that fails is absent from then on, with its error as the reason. If a stepwell contender fails, the benchmark
    fails.
    """
    values: dict[tuple[str, str], list[float]] = {}
    absent: dict[str, str] = {}
    for number in range(0 if warm_up else 1, rounds + 1):
        for (work, contender), turn in turns.items():
            if contender in absent:
                continue
            try:
                value = turn()
            except Exception as error:
                if contender.startswith(OURS):
                    raise
                absent[contender] = f"in {work}: {error!r}"
                continue
            if number:
                values.setdefault((work, contender), []).append(value)
    figures = (Figures(*key, tuple(found)) for key, found in values.items() if key[1] not in absent)
    return tuple(figures), absent
