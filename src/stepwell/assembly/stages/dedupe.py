"""Dedupe: nothing is shown twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.assembly.candidate import Candidate
from stepwell.assembly.inputs import Key

TURN: Final = "turn"


class Deduped(Struct, frozen=True):
    """What is left, and for each that is not, which one stands for it."""

    kept: tuple[Candidate, ...]
    dropped: Mapping[Key, Key]
    candidates: tuple[Candidate, ...]  # all of them, each once


Dedupe = Callable[[Sequence[Candidate]], Deduped]


def by_content(candidates: Sequence[Candidate]) -> Deduped:
    """Of those with the same body, the best. A turn that says what was said before is another turn all the same."""
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
    return Deduped(tuple(kept), dropped, tuple(ordered))


def by_id(candidates: Sequence[Candidate]) -> Deduped:
    """Whatever has an id of its own."""
    ordered = tuple(sorted(candidates, key=_by_worth))
    return Deduped(ordered, {}, ordered)


def _by_worth(candidate: Candidate) -> tuple[float, Key]:
    return -(candidate.relevance + candidate.hierarchy), candidate.key


COMPONENTS: Final[dict[str, Dedupe]] = {"content": by_content, "id": by_id}
