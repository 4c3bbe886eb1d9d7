"""Preamble: what came from where, and what is missing, in a line that costs little beside what it introduces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.assembly.inputs import Failure

SHARE: Final = 0.04  # of the budget
SHARE_MISSING: Final = 0.1  # if something is missing: then it matters more that it is said


class Summary(Struct, frozen=True):
    """What there is to say of an answer."""

    shown: int
    shortened: int
    candidates: int
    strategies: Mapping[str, int]  # how many of those that are shown it has named
    neighbours: int  # that are shown because they stand next to a hit
    failures: Sequence[Failure]


Preamble = Callable[[Summary], tuple[str, ...]]
"""The same at several lengths, the longest first. The first that is short enough is taken."""


def brief(summary: Summary) -> tuple[str, ...]:
    """In one line."""
    missing = [f"{each.strategy} ({each.kind})" for each in summary.failures]
    names = [f"{name} {count}" for name, count in summary.strategies.items()]
    if summary.neighbours:
        names.append(f"their neighbours {summary.neighbours}")
    said = f"> {summary.shown} of {summary.candidates} fragments"
    if summary.shortened:
        said += f", {summary.shortened} of them shortened"
    ending = f" Missing: {', '.join(missing)}." if missing else ""
    plain = f" Missing: {', '.join(each.strategy for each in summary.failures)}." if missing else ""
    return (f"{said}: {', '.join(names)}.{ending}", f"{said}.{plain}", f">{plain}" if missing else "")


def silent(summary: Summary) -> tuple[str, ...]:  # noqa: ARG001 - the others' signature
    """Nothing."""
    return ()


def tokens_max(budget_tokens: int, summary: Summary) -> int:
    """What a preamble may cost."""
    return int(budget_tokens * (SHARE_MISSING if summary.failures else SHARE))


COMPONENTS: Final[dict[str, Preamble]] = {"brief": brief, "silent": silent}
