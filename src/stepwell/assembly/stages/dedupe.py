"""The dedupe stage: of fragments with the same body, only the best is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.assembly.candidate import Candidate
from stepwell.assembly.inputs import Key

TURN: Final = "turn"
"""The kind of a turn of a conversation."""


class DedupeResult(Struct, frozen=True):
    """The candidates that stay, and for each that was dropped the key of the one that stands for it.

    `candidates` has all of them, kept and dropped, in order of their worth.
    """

    kept: tuple[Candidate, ...]
    dropped: Mapping[Key, Key]
    candidates: tuple[Candidate, ...]


Dedupe = Callable[[Sequence[Candidate]], DedupeResult]
"""A function of candidates to those that stay and those that are dropped."""


def by_content(candidates: Sequence[Candidate]) -> DedupeResult:
    """Keep the best of all candidates with the same body.

    Turns are never dropped: a repeated sentence is said again.
    """
    best: dict[bytes, Key] = {}
    dropped: dict[Key, Key] = {}
    kept: list[Candidate] = []
    ordered = sorted(candidates, key=_by_worth)
    for candidate in ordered:
        first = candidate.key if candidate.row.kind == TURN else best.setdefault(candidate.row.digest, candidate.key)
        if first == candidate.key:
            kept.append(candidate)
        else:
            dropped[candidate.key] = first
    return DedupeResult(tuple(kept), dropped, tuple(ordered))


def by_id(candidates: Sequence[Candidate]) -> DedupeResult:
    """Keep every candidate."""
    ordered = tuple(sorted(candidates, key=_by_worth))
    return DedupeResult(ordered, {}, ordered)


def _by_worth(candidate: Candidate) -> tuple[float, Key]:
    """Return the sort key of candidates: the most valuable first. The final score is not known yet."""
    return -(candidate.relevance + candidate.hierarchy), candidate.key


COMPONENTS: Final[dict[str, Dedupe]] = {"content": by_content, "id": by_id}
