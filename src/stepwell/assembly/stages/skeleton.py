"""Skeleton: what a plan's parent knew, small enough to be carried along.

A child plan sees what was decided above it, and of what its parent has read the sources and first lines: enough to
know that it is there, and to ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from stepwell.assembly.inputs import Count
from stepwell.strategies.protocol import DecisionSeen, PlanSeen

SHARE: Final = 0.15  # of the budget

_HEADING: Final = "### Plan"

Skeleton = Callable[[PlanSeen, int, Count], str]


def decisions_first(plan: PlanSeen, tokens_max: int, count: Count) -> str:
    """What was decided, the plan's own decisions first, and then what the parent has seen; as much as fits."""
    decisions = sorted(plan.decisions, key=lambda each: each.depth)
    lines = [*map(_decided, decisions), *plan.skeleton.splitlines()]
    return _fitting(lines, tokens_max, count)


def none(plan: PlanSeen, tokens_max: int, count: Count) -> str:  # noqa: ARG001 - the others' signature
    """Nothing."""
    return ""


def _decided(decision: DecisionSeen) -> str:
    rationale = f" ({decision.rationale})" if decision.rationale.strip() else ""
    return " ".join(f"- {decision.question} {decision.choice}{rationale}".split())


def _fitting(lines: Iterable[str], tokens_max: int, count: Count) -> str:
    """As many lines as there is room for, in their order; nothing if there is room for none."""
    kept: list[str] = []
    left = tokens_max - count(f"{_HEADING}\n")
    for line in lines:
        left -= count(f"{line}\n")
        if left < 0:
            break
        kept.append(line)
    return "\n".join([_HEADING, *kept]) if kept else ""


COMPONENTS: Final[dict[str, Skeleton]] = {"decisions": decisions_first, "none": none}
