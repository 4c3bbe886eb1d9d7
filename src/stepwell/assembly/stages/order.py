"""Order: what comes first is read first, and what belongs together stands together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.pack import Placed

Order = Callable[[Iterable[Placed]], tuple[AnswerPiece, ...]]


def coherent(placed: Iterable[Placed]) -> tuple[AnswerPiece, ...]:
    """The source of the best piece first, and its pieces as they stand in it."""
    every = tuple(placed)
    worth: dict[Key, float] = {}
    for each in every:
        key = _source(each.piece)
        worth[key] = max(worth.get(key, each.worth), each.worth)
    ordered = sorted(every, key=lambda each: (-worth[_source(each.piece)], _source(each.piece), *_place(each.piece)))
    return tuple(each.piece for each in ordered)


def by_source(placed: Iterable[Placed]) -> tuple[AnswerPiece, ...]:
    """Sources by name: the same pieces in the same order, whatever was asked."""
    ordered = sorted(placed, key=lambda each: (_source(each.piece), *_place(each.piece)))
    return tuple(each.piece for each in ordered)


def by_worth(placed: Iterable[Placed]) -> tuple[AnswerPiece, ...]:
    """The best piece first, wherever it stands."""
    return tuple(each.piece for each in sorted(placed, key=lambda each: (-each.worth, each.piece.key)))


def _source(piece: AnswerPiece) -> Key:
    return piece.project, piece.source or piece.fragment_id


def _place(piece: AnswerPiece) -> tuple[int, str]:
    return piece.place, piece.fragment_id


COMPONENTS: Final[dict[str, Order]] = {"coherent": coherent, "source": by_source, "worth": by_worth}
