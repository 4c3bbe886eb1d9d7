"""The order stage: the best source comes first, and pieces of one source stand together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.pack import PlacedPiece

Order = Callable[[Iterable[PlacedPiece]], tuple[AnswerPiece, ...]]
"""A function of packed pieces to the pieces of the answer, in the order of the text."""


def coherent(placed: Iterable[PlacedPiece]) -> tuple[AnswerPiece, ...]:
    """Return the source of the best piece first, and the pieces of a source in their own order."""
    by_source = _by_source(placed)
    best = sorted(by_source.values(), key=lambda pieces: min(each.rank for each in pieces))
    return tuple(piece for pieces in best for piece in _in_place(pieces))


def by_source(placed: Iterable[PlacedPiece]) -> tuple[AnswerPiece, ...]:
    """Return the sources by name: the same pieces stand in the same order for every query."""
    return tuple(piece for _, pieces in sorted(_by_source(placed).items()) for piece in _in_place(pieces))


def by_worth(placed: Iterable[PlacedPiece]) -> tuple[AnswerPiece, ...]:
    """Return the best piece first, whatever its source is."""
    return tuple(each.piece for each in sorted(placed, key=lambda each: each.rank))


def _by_source(placed: Iterable[PlacedPiece]) -> dict[Key, list[PlacedPiece]]:
    """Return the pieces of each source."""
    found: dict[Key, list[PlacedPiece]] = {}
    for each in placed:
        found.setdefault(_source(each.piece), []).append(each)
    return found


def _in_place(pieces: Sequence[PlacedPiece]) -> list[AnswerPiece]:
    """Return the pieces of one source by their lines or, if not all have some, by their places."""
    has_lines = all(each.piece.lines for each in pieces)
    return sorted((each.piece for each in pieces), key=lambda piece: _place(piece, has_lines=has_lines))


def _source(piece: AnswerPiece) -> Key:
    """Return the key of a piece's source. A piece without a source is a source of its own."""
    return piece.project, piece.source or piece.fragment_id


def _place(piece: AnswerPiece, *, has_lines: bool) -> tuple[int, int, str]:
    return piece.lines[0] if has_lines and piece.lines else 0, piece.place, piece.fragment_id


COMPONENTS: Final[dict[str, Order]] = {"coherent": coherent, "source": by_source, "worth": by_worth}
