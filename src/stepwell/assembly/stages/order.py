"""The order stage: the best source comes first, and pieces of one source stand together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.pack import PlacedPiece

Order = Callable[[Iterable[PlacedPiece]], tuple[AnswerPiece, ...]]
"""A function of packed pieces to the pieces of the answer, in the order of the text."""


def coherent(placed: Iterable[PlacedPiece]) -> tuple[AnswerPiece, ...]:
    """Return the source of the best piece first, and the pieces of a source in their own order."""
    every = tuple(placed)
    worth: dict[Key, float] = {}
    for each in every:
        key = _source(each.piece)
        worth[key] = max(worth.get(key, each.worth), each.worth)
    ordered = sorted(every, key=lambda each: (-worth[_source(each.piece)], _source(each.piece), *_place(each.piece)))
    return tuple(each.piece for each in ordered)


def by_source(placed: Iterable[PlacedPiece]) -> tuple[AnswerPiece, ...]:
    """Return the sources by name: the same pieces stand in the same order for every query."""
    ordered = sorted(placed, key=lambda each: (_source(each.piece), *_place(each.piece)))
    return tuple(each.piece for each in ordered)


def by_worth(placed: Iterable[PlacedPiece]) -> tuple[AnswerPiece, ...]:
    """Return the best piece first, whatever its source is."""
    return tuple(each.piece for each in sorted(placed, key=lambda each: (-each.worth, each.piece.key)))


def _source(piece: AnswerPiece) -> Key:
    """Return the key of a piece's source. A piece without a source is a source of its own."""
    return piece.project, piece.source or piece.fragment_id


def _place(piece: AnswerPiece) -> tuple[int, str]:
    return piece.place, piece.fragment_id


COMPONENTS: Final[dict[str, Order]] = {"coherent": coherent, "source": by_source, "worth": by_worth}
