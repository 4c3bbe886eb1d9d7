"""The pack stage: the best candidates that fit, in their order, each as it is or in a shorter form.

Each candidate is decided at its turn, by the room that the ones before it have left: it is packed, or it is skipped and
the next one has its turn. So a worse candidate never takes the room of a better one; and one that is shown at a budget
is shown at every larger budget, unless a better one takes its room there.

1. Matches are packed with their docstrings cut, if they have some. Otherwise a docstring would keep out a match.
2. Docstrings come back, those of the best matches first, as far as there is room.
3. The other candidates fill the room that is left, as they are.
4. Further files of code whose best match is not far below the stop score are named, by its signature, up to
   `FILES_SHOWN` files of code in all.

A match with nearly the best score that does not fit is shown in a shorter form. The first one always is: as a signature
or, where not even that fits, by its name and lines.

The cost of a piece is counted at its turn: its text, and the heading or ellipsis that it needs or makes superfluous.
That is an upper bound, because one heading stands for several pieces. Only where the difference may decide is the text
rendered and counted. A body that is too large for the room that is left is not even read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.assembly.candidate import AnswerPiece, DepthForm, ScoredCandidate
from stepwell.assembly.inputs import Count, Key
from stepwell.assembly.render import are_adjacent, gap_text, heading_text, render_piece, speaker_text
from stepwell.assembly.stages.depth import CODE, CUT, Depth, briefest, full
from stepwell.assembly.stages.rank import RankedCandidates
from stepwell.assembly.texts import Unreadable, read
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.protocol import StrategyView

BYTES_PER_TOKEN_MAX: Final = 64  # a body with more bytes for each free token does not fit, whatever its row says
CUT_RATIO: Final = 2  # times the room: a larger body is not read in the hope that it fits without its docstrings
STRONG: Final = 0.9  # of the best score: a candidate as good as this that does not fit is shown in a shorter form
SHORTENED_PART: Final = 4  # a shorter form may take a quarter of all room
FILES_SHOWN: Final = 10  # files of code in an answer, as far as further ones can be named
NAMED_TOKENS_MAX: Final = 100  # for the name of a source and the signature of its best match

NO_ROOM: Final = "there was no room for it"
SHORTENED: Final = "all of it did not fit"
DOCSTRINGS_CUT: Final = "its docstrings made room for another match"
NAMED: Final = "its score is below the stop score, and it is the best of its file, which is named"


class PackContext(Struct, frozen=True):
    """The inputs of packing besides the candidates. `total` counts the tokens of packed pieces as they are rendered."""

    view: StrategyView
    count: Count
    forms: Depth
    total: Callable[[Iterable[PlacedPiece]], int]


class PlacedPiece(Struct, frozen=True):
    """A piece that is packed, the tokens of its text, its cost with the heading, and its rank, from 0 for the best."""

    piece: AnswerPiece
    tokens: int
    cost: int
    rank: int


class PackResult(Struct, frozen=True):
    """The packed pieces by rank, and the reasons of fragments that could not be read.

    A candidate that is in neither had no room.
    """

    placed: Mapping[Key, PlacedPiece]
    unreadable: Mapping[Key, str]


Pack = Callable[[RankedCandidates, int, PackContext], PackResult]
"""A function of the candidates and the room in tokens to the packed pieces."""


def best_first(ranked: RankedCandidates, room_tokens: int, context: PackContext) -> PackResult:
    """Pack the matches, without docstrings where these would keep out another match, and then what else fits."""
    packing = _Packing(room_tokens, context)
    matches = ranked.order[: ranked.matches]
    strong = STRONG * matches[0].scores.total if matches else 0.0
    for rank, each in enumerate(matches):
        is_first = not packing.placed
        if not packing.put_lean(rank, each) and (is_first or each.scores.total >= strong):
            packing.put_shorter(rank, each, is_first=is_first)
    packing.restore_docstrings()
    for rank, each in enumerate(ranked.order[ranked.matches :], ranked.matches):
        if not packing.put_full(rank, each) and not packing.placed:
            packing.put_shorter(rank, each, is_first=True)
    for rank, each in enumerate(ranked.further, len(ranked.order)):
        packing.name_file(rank, each)
    return packing.result()


def full_only(ranked: RankedCandidates, room_tokens: int, context: PackContext) -> PackResult:
    """Pack the best candidates that fit as they are."""
    packing = _Packing(room_tokens, context)
    for rank, each in enumerate(ranked.order):
        packing.put_full(rank, each)
    return packing.result()


def without_worst(packed: PackResult, tokens: int) -> PackResult:
    """Return the result without its worst pieces, at least one, so that about so many tokens are saved."""
    placed = dict(packed.placed)
    for key, each in sorted(placed.items(), key=lambda item: -item[1].rank):
        del placed[key]
        tokens -= each.cost
        if tokens <= 0:
            break
    return replace(packed, placed=placed)


class _Packing:
    """One run of packing: the room that is left, and the pieces so far. It lives for one call."""

    def __init__(self, room_tokens: int, context: PackContext) -> None:
        self.placed: Final[dict[Key, PlacedPiece]] = {}
        self._unreadable: Final[dict[Key, str]] = {}
        self._context: Final = context
        self._room: Final = room_tokens
        self._left = room_tokens
        self._uncertain = 0
        """The tokens by which `_left` may be too low, because costs are upper bounds."""
        self._bodies: Final[dict[Key, str]] = {}
        """The whole texts of the pieces whose docstrings are cut."""
        self._places: Final[dict[Key, dict[int, AnswerPiece]]] = {}
        """The packed pieces by source and position: they decide about headings and ellipses."""

    def result(self) -> PackResult:
        placed = dict(sorted(self.placed.items(), key=lambda item: item[1].rank))
        return PackResult(placed, self._unreadable)

    def put_full(self, rank: int, scored: ScoredCandidate) -> bool:
        """Pack the whole text of a candidate. Return False if it does not fit or cannot be read."""
        text = self._text(scored, 1)
        return text is not None and self._put(rank, scored, DepthForm("full", text))

    def put_lean(self, rank: int, scored: ScoredCandidate) -> bool:
        """Pack a candidate without its docstrings, or as it is if it has none that are worth it."""
        row = scored.candidate.row
        is_code = row.kind == CODE
        text = self._text(scored, CUT_RATIO if is_code else 1)
        if text is None:
            return False
        # The forms are made one by one, and the first is without docstrings, if there is such a form.
        form = next(self._context.forms(row, text), None) if is_code else None
        if form is None or form.depth != CUT:
            return self._put(rank, scored, DepthForm("full", text))
        is_put = self._put(rank, scored, form)
        if is_put:
            self._bodies[scored.candidate.key] = text
        return is_put

    def put_shorter(self, rank: int, scored: ScoredCandidate, *, is_first: bool) -> bool:
        """Pack the longest of the shorter forms that fits into a part of the room. Return False if none does.

        The first candidate may take all room for its signature, and is at least named.
        """
        part = self._room // SHORTENED_PART
        for form in self._shorter_forms(scored, self._context.forms):
            # The first one is listed only where there is no room for its signature at all, also beyond its part.
            if not (is_first and form.depth == "listing") and self._put(rank, scored, form, part):
                return True
        is_named = is_first and self._context.forms is not full
        return is_named and any(self._put(rank, scored, form) for form in self._shorter_forms(scored, briefest))

    def name_file(self, rank: int, scored: ScoredCandidate) -> None:
        """Pack the signature of a match in code, or its name, if its file is not shown and few others are."""
        row = scored.candidate.row
        is_shown = (row.project, row.source) in self._places
        files = sum(any(each.kind == CODE for each in pieces.values()) for pieces in self._places.values())
        if row.kind == CODE and not is_shown and files < FILES_SHOWN and self._context.forms is not full:
            forms = self._shorter_forms(scored, briefest)
            any(self._put(rank, scored, form, NAMED_TOKENS_MAX) for form in islice(forms, 2))

    def restore_docstrings(self) -> None:
        """Give pieces their docstrings back, the best first, as far as there is room."""
        for key, text in self._bodies.items():
            placed = self.placed[key]
            piece = replace(placed.piece, depth="full", text=text)
            tokens = self._context.count(render_piece(piece))
            more = tokens - placed.tokens
            if self._fits(more):
                self._left -= more
                self.placed[key] = PlacedPiece(piece, tokens, placed.cost + more, placed.rank)

    def _text(self, scored: ScoredCandidate, ratio: int) -> str | None:
        """Return the text of a candidate; None if it is surely too large for `ratio` times the room, or unreadable."""
        row, key = scored.candidate.row, scored.candidate.key
        smallest = max(row.tokens, -(-row.size // BYTES_PER_TOKEN_MAX))
        if key in self._unreadable or not self._fits(-(-smallest // ratio)):
            return None
        return self._readable(key, read(self._context.view, row))

    def _shorter_forms(self, scored: ScoredCandidate, forms: Depth) -> Iterator[DepthForm]:
        """Yield the shorter forms of a candidate that is not unreadable."""
        key, row = scored.candidate.key, scored.candidate.row
        if key in self._unreadable:
            return
        text = self._readable(key, read(self._context.view, row, limits.SHORTENED_FROM_BYTES))
        if text is not None:
            yield from forms(row, text)

    def _readable(self, key: Key, text: str | Unreadable) -> str | None:
        """Return a text; None, after its reason was recorded, if there is none."""
        if isinstance(text, Unreadable):
            self._unreadable[key] = text.reason
            return None
        return text

    def _put(self, rank: int, scored: ScoredCandidate, form: DepthForm, tokens_max: int | None = None) -> bool:
        """Pack one form of a candidate if it fits and costs no more than `tokens_max`."""
        piece = _piece(scored, form)
        tokens = self._context.count(render_piece(piece))
        heading = self._heading_cost(piece)
        cost = tokens + heading
        if (tokens_max is not None and cost > tokens_max) or not self._fits(cost):
            return False
        self._left -= cost
        self._uncertain += max(0, heading) + self._context.count(speaker_text(piece))
        self.placed[piece.key] = PlacedPiece(piece, tokens, cost, rank)
        self._places.setdefault(_source(piece), {})[piece.place] = piece
        return True

    def _fits(self, cost: int) -> bool:
        """Return True if there is room for a cost. The pieces are rendered and counted if that may decide."""
        if self._left < cost <= self._left + self._uncertain:
            self._left = self._room - self._context.total(self.placed.values())
            self._uncertain = 0
        return cost <= self._left

    def _heading_cost(self, piece: AnswerPiece) -> int:
        """Return the cost of a piece's heading, or of the ellipsis before it.

        A piece between two packed neighbours makes an ellipsis superfluous, so its cost is negative.
        """
        places = self._places.get(_source(piece))
        if not places:
            return self._context.count(heading_text(piece))
        before, after = places.get(piece.place - 1), places.get(piece.place + 1)
        neighbours = (before is not None and are_adjacent(before, piece)) + (
            after is not None and are_adjacent(piece, after)
        )
        return self._context.count(gap_text(piece)) * (1 - neighbours)


def _source(piece: AnswerPiece) -> Key:
    """Return the key of a piece's source. A piece without a source is a source of its own."""
    return piece.project, piece.source or piece.fragment_id


def _piece(scored: ScoredCandidate, form: DepthForm) -> AnswerPiece:
    """Return the piece of a candidate at one depth."""
    row: FragmentRow = scored.candidate.row
    outline = Outline.of(row.metadata)
    return AnswerPiece(
        project=row.project,
        fragment_id=row.fragment_id,
        source=row.source,
        kind=row.kind,
        place=scored.candidate.place,
        lines=outline.lines,
        speaker=" ".join(outline.speaker.split()),
        depth=form.depth,
        text=form.text,
    )


COMPONENTS: Final[dict[str, Pack]] = {"best": best_first, "full": full_only}
