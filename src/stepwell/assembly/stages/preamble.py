"""The preamble stage: one line about where the pieces come from, and which strategies failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.assembly.inputs import Failure
from stepwell.text import plural

SHARE: Final = 0.04  # of the budget, at most
SHARE_MISSING: Final = 0.1  # of the budget if a strategy failed: the model has to know that something is missing


class AnswerSummary(Struct, frozen=True):
    """The facts of an answer that a preamble may state.

    `strategies` has, by name, how many of the shown fragments each has named. `neighbours` counts the fragments that
    are shown because they stand beside a hit.
    """

    shown: int
    shortened: int
    candidates: int
    strategies: Mapping[str, int]
    neighbours: int
    failures: Sequence[Failure]


Preamble = Callable[[AnswerSummary], tuple[str, ...]]
"""A function to texts of decreasing length. The first that is short enough is used."""


def brief(summary: AnswerSummary) -> tuple[str, ...]:
    """Return one line, in three lengths."""
    missing = [f"{each.strategy} ({each.kind})" for each in summary.failures]
    names = [f"{name} {count}" for name, count in summary.strategies.items()]
    if summary.neighbours:
        names.append(f"their neighbours {summary.neighbours}")
    line = f"> {summary.shown} of {plural(summary.candidates, 'fragment')}"
    if summary.shortened:
        line += f", {summary.shortened} of them shortened"
    ending = f" Missing: {', '.join(missing)}." if missing else ""
    plain = f" Missing: {', '.join(each.strategy for each in summary.failures)}." if missing else ""
    return (f"{line}: {', '.join(names)}.{ending}", f"{line}.{plain}", f">{plain}" if missing else "")


def silent(summary: AnswerSummary) -> tuple[str, ...]:  # noqa: ARG001 - the others' signature
    """Return no preamble."""
    return ()


def room_tokens(budget_tokens: int, lengths: Iterable[int], *, has_failures: bool) -> int:
    """Return how many tokens of a budget are reserved for a preamble, given the lengths of the texts it may have.

    A text has room as soon as it is no more than its share of the budget. The room grows from there on by no more than
    the budget does. So a larger budget never has less room for fragments.
    """
    share = SHARE_MISSING if has_failures else SHARE
    return max((min(length, budget_tokens - math.ceil(length / share)) for length in lengths), default=0)


COMPONENTS: Final[dict[str, Preamble]] = {"brief": brief, "silent": silent}
