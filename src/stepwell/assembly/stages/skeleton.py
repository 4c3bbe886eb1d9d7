"""Skeleton: what a plan's parent knew, small enough to be carried along.

A child plan sees what was decided above it, and of what its parent has read the sources and first lines: enough to
know that it is there, and to ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final

from stepwell import limits
from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.inputs import Count
from stepwell.strategies.protocol import DecisionSeen, PlanSeen

SHARE: Final = 0.15  # of the budget
_LINE_CHARS_MAX: Final = 120  # of what is only hinted at
_HEADING: Final = "### Plan"

Skeleton = Callable[[PlanSeen, int, Count], str]


def decisions_first(plan: PlanSeen, tokens_max: int, count: Count) -> str:
    """What was decided, the plan's own decisions first, and then what the parent has seen; as much as fits."""
    decisions = sorted(plan.decisions, key=lambda each: each.depth)
    lines = [*map(_decided, decisions), *plan.skeleton.splitlines()]
    return _fitting(_HEADING, lines, tokens_max, count)


def none(plan: PlanSeen, tokens_max: int, count: Count) -> str:  # noqa: ARG001 - the others' signature
    """Nothing."""
    return ""


def skeleton_of(pieces: Iterable[AnswerPiece], tokens_max: int, count: Count) -> str:
    """What an answer comes to for the children of the plan that asked: a line for each source and piece."""
    fitted = _fitting("", list(_hints(pieces)), tokens_max, count)
    return fitted[: limits.TEXT_CHARS_MAX]


def _decided(decision: DecisionSeen) -> str:
    rationale = f" ({decision.rationale})" if decision.rationale.strip() else ""
    return " ".join(f"- {decision.question} {decision.choice}{rationale}".split())


def _hints(pieces: Iterable[AnswerPiece]) -> Iterator[str]:
    for source, group in groupby(pieces, lambda piece: piece.source or piece.fragment_id):
        yield f"{source}:"
        for piece in group:
            lines = f"{piece.lines[0]}-{piece.lines[1]} " if piece.lines else ""
            first = piece.text.partition("\n")[0].strip()
            yield f"- {lines}{first[:_LINE_CHARS_MAX]}"


def _fitting(heading: str, lines: Iterable[str], tokens_max: int, count: Count) -> str:
    """As many lines as there is room for, in their order; nothing if there is room for none."""
    kept = [heading] if heading else []
    left = tokens_max - (count(f"{heading}\n") if heading else 0)
    for line in lines:
        left -= count(f"{line}\n")
        if left < 0:
            break
        kept.append(line)
    return "\n".join(kept) if len(kept) > bool(heading) else ""


COMPONENTS: Final[dict[str, Skeleton]] = {"decisions": decisions_first, "none": none}
