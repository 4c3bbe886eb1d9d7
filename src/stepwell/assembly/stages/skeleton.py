"""The skeleton stage: the decisions of a plan and the context of its parent, in few tokens.

A child plan sees what was decided above it, and the sources and first lines of what its parent has read: enough to know
that they exist, and to ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from stepwell.assembly.inputs import Count
from stepwell.strategies.protocol import DecisionSeen, PlanSeen

SHARE: Final = 0.15  # of the budget, at most

_HEADING: Final = "### Plan"

Skeleton = Callable[[PlanSeen, int, Count], str]
"""A function of a plan and a number of tokens to a section of the answer; empty if there is nothing to say."""


def decisions_first(plan: PlanSeen, tokens_max: int, count: Count) -> str:
    """Return the decisions, the plan's own first, and then the parent's context, as much as fits."""
    decisions = sorted(plan.decisions, key=lambda each: each.depth)
    lines = [*map(_decided, decisions), *plan.skeleton.splitlines()]
    return _fitting(lines, tokens_max, count)


def none(plan: PlanSeen, tokens_max: int, count: Count) -> str:  # noqa: ARG001 - the others' signature
    """Return no skeleton."""
    return ""


def _decided(decision: DecisionSeen) -> str:
    rationale = f" ({decision.rationale})" if decision.rationale.strip() else ""
    return " ".join(f"- {decision.question} {decision.choice}{rationale}".split())


def _fitting(lines: Iterable[str], tokens_max: int, count: Count) -> str:
    """Return the heading and as many lines as there is room for, in their order; empty if there is room for none."""
    fitting: list[str] = []
    left = tokens_max - count(f"{_HEADING}\n")
    for line in lines:
        left -= count(f"{line}\n")
        if left < 0:
            break
        fitting.append(line)
    return "\n".join([_HEADING, *fitting]) if fitting else ""


COMPONENTS: Final[dict[str, Skeleton]] = {"decisions": decisions_first, "none": none}
