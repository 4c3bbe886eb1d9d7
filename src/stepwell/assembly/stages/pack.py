"""The pack stage: the best candidates that fit, and shorter forms of the best ones that do not.

It is a greedy knapsack. The cost of a candidate is counted at its turn: its text, and the heading or ellipsis that it
needs or makes superfluous. A body that is too large for the room that is left is not even read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.assembly.candidate import AnswerPiece, DepthForm, ScoredCandidate
from stepwell.assembly.inputs import Count, Key
from stepwell.assembly.render import gap_text, heading_text, render_piece
from stepwell.assembly.stages.depth import Depth
from stepwell.assembly.texts import Unreadable, read
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.protocol import StrategyView

TOKENS_MIN: Final = 3  # with fewer tokens left, no shorter form is tried
BYTES_PER_TOKEN_MAX: Final = 64  # a body with more bytes for each free token does not fit, whatever its row says
STRONG: Final = 0.75  # of the best score: a large candidate as good as this that does not fit is shortened at once
LARGE_PART: Final = 4  # a candidate that needs more than a quarter of the room is large
LEAD_PART: Final = 4  # a quarter of the room is for the best hits

NO_ROOM: Final = "there was no room for it"
SHORTENED: Final = "all of it did not fit"


class PackContext(Struct, frozen=True):
    """The inputs of packing besides the candidates.

    `shares` has the tokens that a strategy may bring in alone at first.
    """

    view: StrategyView
    count: Count
    forms: Depth
    shares: Mapping[str, int]


class PlacedPiece(Struct, frozen=True):
    """A piece that is packed, the tokens of its text, its cost with the heading, and the score of its fragment."""

    piece: AnswerPiece
    tokens: int
    cost: int
    worth: float


class PackResult(Struct, frozen=True):
    """The packed pieces in the order of packing, and the reasons of fragments that could not be read.

    A candidate that is in neither had no room.
    """

    placed: Mapping[Key, PlacedPiece]
    unreadable: Mapping[Key, str]


# Room in tokens; the last argument is the result of an earlier call, whose pieces stay.
Pack = Callable[[Sequence[ScoredCandidate], int, PackContext, PackResult], PackResult]
NOTHING: Final = PackResult({}, {})


def dense(
    scored: Sequence[ScoredCandidate], room_tokens: int, context: PackContext, packed: PackResult = NOTHING
) -> PackResult:
    """Fill the room: the best hits first, then all candidates that fit, then shorter forms.

    At first a strategy brings in no more than its share alone, so that each has a turn. Then the room that is left is
    for all.
    """
    packing = _Packing(room_tokens, context, packed)
    if not packed.placed:
        _put_best_hits(scored, packing, room_tokens)
    # First pass: whole texts, within the shares. A strong candidate that is too large is shortened at once, because at
    # the end there would be no room for it.
    strong = STRONG * scored[0].scores.total if scored else 0.0
    left_out: list[ScoredCandidate] = []
    for each in scored:
        if packing.has(each) or packing.put_full(each, is_shared=True):
            continue
        left_out.append(each)
        is_large = each.candidate.row.tokens > max(packing.left, room_tokens // LARGE_PART)
        if is_large and each.scores.total >= strong:
            packing.put_shorter(each, room_tokens // LARGE_PART)
    # Second pass: the shares do not count any more. Third pass: shorter forms, for the tokens that are left.
    for each in left_out:
        packing.put_full(each)
    for each in left_out[: limits.PACK_SHORTENED_MAX]:
        packing.put_shorter(each, packing.left)
    return PackResult(packing.placed, packing.unreadable)


def _put_best_hits(scored: Sequence[ScoredCandidate], packing: _Packing, room_tokens: int) -> None:
    """Pack the candidates with the highest relevance, into a part of the room, whatever stands around them.

    So a fusion shows the first hits of its strategies also where there is room for few.
    """
    kept_free = room_tokens - room_tokens // LEAD_PART
    for each in nsmallest(limits.PACK_LEADERS_MAX, scored, key=_by_relevance):
        is_huge = each.candidate.row.tokens > room_tokens // 2
        if each.candidate.relevance <= 0 or not (packing.put_full(each, kept_free=kept_free) or is_huge):
            break


def _by_relevance(scored: ScoredCandidate) -> tuple[float, Key]:
    return -scored.candidate.relevance, scored.candidate.key


def full_only(
    scored: Sequence[ScoredCandidate], room_tokens: int, context: PackContext, packed: PackResult = NOTHING
) -> PackResult:
    """Pack the best candidates that fit as they are, in order of their scores."""
    packing = _Packing(room_tokens, context, packed)
    for each in scored:
        if not packing.has(each):
            packing.put_full(each)
    return PackResult(packing.placed, packing.unreadable)


def without_least_valuable(packed: PackResult, tokens: int) -> PackResult:
    """Return the result without its least valuable pieces, at least one, so that so many tokens are saved."""
    placed = dict(packed.placed)
    for key, each in sorted(placed.items(), key=lambda item: (item[1].worth, item[0])):
        del placed[key]
        tokens -= each.cost
        if tokens <= 0:
            break
    return replace(packed, placed=placed)


class _Packing:
    """One run of packing: the room that is left, and the pieces so far. It lives for one call."""

    def __init__(self, room_tokens: int, context: PackContext, packed: PackResult) -> None:
        self.left = room_tokens
        self.placed = dict(packed.placed)
        self.unreadable = dict(packed.unreadable)
        self._context: Final = context
        self._costs: dict[Key, int] = {}
        """The tokens of bodies that were read and did not fit, so that they are not read again in vain."""
        self._alone: dict[str, int] = {}
        """The tokens that each strategy has brought in alone."""
        self._places: dict[Key, set[int]] = {}
        """The positions that are packed, by source: they decide about headings and ellipses."""
        for each in self.placed.values():
            self._note_place(each.piece)

    def has(self, scored: ScoredCandidate) -> bool:
        """Return True if a candidate is packed."""
        return scored.candidate.key in self.placed

    def put_full(self, scored: ScoredCandidate, *, is_shared: bool = False, kept_free: int = 0) -> bool:
        """Pack the whole text of a candidate.

        Return False if it does not fit, or exceeds the share of its only strategy.
        """
        row, key, room = scored.candidate.row, scored.candidate.key, self.left - kept_free
        needed = self._costs.get(key, row.tokens)
        if needed > room or row.size > BYTES_PER_TOKEN_MAX * room or key in self.unreadable or key in self.placed:
            return False
        # Only a candidate that one strategy alone has named counts against the share of that strategy.
        votes = scored.candidate.votes
        only_strategy = votes[0].strategy if is_shared and len(votes) == 1 else None
        if only_strategy is not None and self._alone.get(only_strategy, 0) + needed > self._context.shares.get(
            only_strategy, 0
        ):
            return False
        text = read(self._context.view, row)
        if isinstance(text, Unreadable):
            self.unreadable[key] = text.reason
            return False
        is_put = self._put(scored, DepthForm("full", text), room)
        if is_put and only_strategy is not None:
            self._alone[only_strategy] = self._alone.get(only_strategy, 0) + self.placed[key].cost
        return is_put

    def put_shorter(self, scored: ScoredCandidate, tokens_max: int) -> bool:
        """Pack the deepest shorter form of a candidate that fits. Return False if none does."""
        return any(self._put(scored, form, min(tokens_max, self.left)) for form in self._shorter_forms(scored))

    def _shorter_forms(self, scored: ScoredCandidate) -> Iterator[DepthForm]:
        """Yield the shorter forms of a candidate that is neither packed nor unreadable."""
        key, row = scored.candidate.key, scored.candidate.row
        if self.left < TOKENS_MIN or key in self.placed or key in self.unreadable:
            return
        text = read(self._context.view, row, limits.SHORTENED_FROM_BYTES)
        if isinstance(text, Unreadable):
            self.unreadable[key] = text.reason
            return
        yield from self._context.forms(row, text)

    def _put(self, scored: ScoredCandidate, form: DepthForm, tokens_max: int) -> bool:
        """Pack one form of a candidate if it costs no more than `tokens_max`."""
        piece = _piece(scored, form)
        tokens = self._context.count(render_piece(piece))
        cost = tokens + self._heading_cost(piece)
        # The row's count is that of the body. The text has a speaker, a separator or closed fences as well.
        if form.depth == "full":
            self._costs[piece.key] = tokens
        if cost > tokens_max:
            return False
        self.left -= cost
        self.placed[piece.key] = PlacedPiece(piece, tokens, cost, scored.scores.total)
        self._note_place(piece)
        return True

    def _heading_cost(self, piece: AnswerPiece) -> int:
        """Return the cost of a piece's heading, or of the ellipsis before it.

        A piece between two packed neighbours makes an ellipsis superfluous, so its cost is negative.
        """
        places = self._places.get(_source(piece))
        if not places:
            return self._context.count(heading_text(piece))
        neighbours = (piece.place - 1 in places) + (piece.place + 1 in places)
        return self._context.count(gap_text(piece)) * (1 - neighbours)

    def _note_place(self, piece: AnswerPiece) -> None:
        self._places.setdefault(_source(piece), set()).add(piece.place)


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


COMPONENTS: Final[dict[str, Pack]] = {"dense": dense, "full": full_only}
