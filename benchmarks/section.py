"""What a part of the benchmark comes to: everybody's figures, what was to be reached, and who did not take part."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

OURS = "stepwell"
"""What the names of our own contenders begin with."""


class CannotRun(Exception):
    """Why a contender takes no part."""


class Figures(Struct, frozen=True):
    """What one contender measured of one work, a value for each round."""

    work: str
    contender: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


class Goal(Struct, frozen=True):
    """What our median has to be: a multiple of a peer's in the same work or, without a peer, so much."""

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
    absent: dict[str, str] = {}  # who could not take part, and why

    def median(self, work: str, contender: str) -> float | None:
        """None if it did not take part."""
        found = (each.median for each in self.figures if (each.work, each.contender) == (work, contender))
        return next(found, None)

    def reached(self, goal: Goal) -> float | None:
        """What the goal's value is compared with; None if it or its peer did not take part."""
        ours = self.median(goal.work, goal.contender)
        theirs = self.median(goal.work, goal.peer) if goal.peer else 1.0
        return None if ours is None or theirs is None else ours / theirs

    def behind(self) -> Iterator[str]:
        """Where a goal was missed. What an absent peer would have measured is no miss; what nobody did, is one."""
        for goal in self.goals:
            reached = self.reached(goal)
            if reached is None:
                if goal.contender not in self.absent and goal.peer not in self.absent:
                    yield f"{goal.contender}, {goal.work}: it was not measured"
                continue
            is_missed = reached < goal.value if goal.kind == "at least" else reached > goal.value
            if is_missed:
                what = f"of {goal.peer}" if goal.peer else self.unit
                yield f"{goal.contender}, {goal.work}: {reached:.3g} {what}, {goal.kind} {goal.value:g} is wanted"


Turn = Callable[[], float]
"""Does a contender's work once; what was measured."""


def in_rounds(
    rounds: int, turns: Mapping[tuple[str, str], Turn], *, warm_up: bool = True
) -> tuple[tuple[Figures, ...], dict[str, str]]:
    """Everybody's turns, by work and contender, in rounds, after one that does not count.

    A peer that fails takes no further part, and its error says why. If one of ours fails, so does the benchmark.
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
