"""Pack: the best candidates that fit, and of the best that do not, something shorter.

A greedy knapsack. What a candidate costs is counted when it is its turn: its text, and the heading or ellipsis that
it needs or makes superfluous. Bodies that are too large for what is left are not even read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.assembly.candidate import AnswerPiece, Form, Scored
from stepwell.assembly.inputs import Count, Key
from stepwell.assembly.render import gap, heading, shown
from stepwell.assembly.stages.depth import Depth
from stepwell.assembly.texts import Unreadable, read
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.protocol import StrategyView

TOKENS_MIN: Final = 3  # with less left, nothing is looked for
BYTES_PER_TOKEN_MAX: Final = 64  # what has more for each token that is left does not fit, whatever it says of itself
STRONG: Final = 0.75  # of the best score: what is as good as this and does not fit is shortened at once, if it is large
LARGE_PART: Final = 4  # what needs more than a quarter of the room is large
LEAD_PART: Final = 4  # a quarter of the room is for the best hits

NO_ROOM: Final = "there was no room for it"
SHORTENED: Final = "all of it did not fit"


class PackContext(Struct, frozen=True):
    """What packing needs besides the candidates."""

    view: StrategyView
    count: Count
    forms: Depth
    shares: Mapping[str, int]  # the tokens that a strategy may bring in alone, at first


class Placed(Struct, frozen=True):
    """A piece, what it and its heading cost, and what its fragment is worth."""

    piece: AnswerPiece
    tokens: int  # of what is shown
    cost: int
    worth: float


class Packed(Struct, frozen=True):
    """What is in, in the order in which it came in, and why something else is not, if it is not for want of room."""

    placed: Mapping[Key, Placed]
    unreadable: Mapping[Key, str]


Pack = Callable[[Sequence[Scored], int, PackContext, Packed], Packed]
NOTHING: Final = Packed({}, {})


def dense(scored: Sequence[Scored], room_tokens: int, kit: PackContext, packed: Packed = NOTHING) -> Packed:
    """Fill a room, besides what is in already: first the best hits, then all that fits, then what is shorter."""
    box = _Box(room_tokens, kit, packed)
    if not packed.placed:
        _lead(scored, box, room_tokens)
    strong = STRONG * scored[0].scores.total if scored else 0.0
    left_out: list[Scored] = []
    for each in scored:
        if box.has(each) or box.put_full(each, is_shared=True):
            continue
        left_out.append(each)
        is_large = each.candidate.row.tokens > max(box.left, room_tokens // LARGE_PART)
        if is_large and each.scores.total >= strong:
            box.put_shorter(each, room_tokens // LARGE_PART)
    for each in left_out:
        box.put_full(each)
    for each in left_out[: limits.PACK_SHORTENED_MAX]:
        box.put_shorter(each, box.left)
    return Packed(box.placed, box.unreadable)


def _lead(scored: Sequence[Scored], box: _Box, room_tokens: int) -> None:
    """What strategies think most of comes in first, whatever stands around it, as long as there is room for others.

    So a fusion has the first hits of its members also where there is room for few.
    """
    kept_free = room_tokens - room_tokens // LEAD_PART
    for each in nsmallest(limits.PACK_LEADERS_MAX, scored, key=_by_relevance):
        is_huge = each.candidate.row.tokens > room_tokens // 2
        if each.candidate.relevance <= 0 or not (box.put_full(each, kept_free=kept_free) or is_huge):
            break


def _by_relevance(scored: Scored) -> tuple[float, Key]:
    return -scored.candidate.relevance, scored.candidate.key


def full_only(scored: Sequence[Scored], room_tokens: int, kit: PackContext, packed: Packed = NOTHING) -> Packed:
    """The best that fit as they are, in the order of their scores."""
    box = _Box(room_tokens, kit, packed)
    for each in scored:
        if not box.has(each):
            box.put_full(each)
    return Packed(box.placed, box.unreadable)


def without(packed: Packed, tokens: int) -> Packed:
    """With the least worth left out, until so many tokens are saved; one at the least."""
    placed = dict(packed.placed)
    for key, each in sorted(placed.items(), key=lambda item: (item[1].worth, item[0])):
        del placed[key]
        tokens -= each.cost
        if tokens <= 0:
            break
    return replace(packed, placed=placed)


class _Box:
    def __init__(self, room_tokens: int, kit: PackContext, packed: Packed) -> None:
        self.left = room_tokens
        self.placed = dict(packed.placed)
        self.unreadable = dict(packed.unreadable)
        self._kit: Final = kit
        self._costs: dict[Key, int] = {}
        """Of those that were read and did not fit, without headings."""
        self._alone: dict[str, int] = {}
        """Tokens that a strategy has brought in alone."""
        self._places: dict[Key, set[int]] = {}
        for each in self.placed.values():
            self._occupy(each.piece)

    def has(self, scored: Scored) -> bool:
        return scored.candidate.key in self.placed

    def put_full(self, scored: Scored, *, is_shared: bool = False, kept_free: int = 0) -> bool:
        """All of it, if it fits, and into the share of the strategy that brings it in."""
        row, key, room = scored.candidate.row, scored.candidate.key, self.left - kept_free
        needed = self._costs.get(key, row.tokens)
        if needed > room or row.size > BYTES_PER_TOKEN_MAX * room or key in self.unreadable or key in self.placed:
            return False
        votes = scored.candidate.votes
        sole = votes[0].strategy if is_shared and len(votes) == 1 else None
        if sole is not None and self._alone.get(sole, 0) + needed > self._kit.shares.get(sole, 0):
            return False
        text = read(self._kit.view, row)
        if isinstance(text, Unreadable):
            self.unreadable[key] = text.reason
            return False
        is_put = self._put(scored, Form("full", text), room)
        if is_put and sole is not None:
            self._alone[sole] = self._alone.get(sole, 0) + self.placed[key].cost
        return is_put

    def put_shorter(self, scored: Scored, tokens_max: int) -> bool:
        """The deepest form that fits."""
        return any(self._put(scored, form, min(tokens_max, self.left)) for form in self._shorter(scored))

    def _shorter(self, scored: Scored) -> Iterator[Form]:
        key, row = scored.candidate.key, scored.candidate.row
        if self.left < TOKENS_MIN or key in self.placed or key in self.unreadable:
            return
        text = read(self._kit.view, row, limits.SHORTENED_FROM_BYTES)
        if isinstance(text, Unreadable):
            self.unreadable[key] = text.reason
            return
        yield from self._kit.forms(row, text)

    def _put(self, scored: Scored, form: Form, tokens_max: int) -> bool:
        piece = _piece(scored, form)
        tokens = self._kit.count(shown(piece))
        cost = tokens + self._extra(piece)
        if form.depth == "full":
            self._costs[piece.key] = tokens
        if cost > tokens_max:
            return False
        self.left -= cost
        self.placed[piece.key] = Placed(piece, tokens, cost, scored.scores.total)
        self._occupy(piece)
        return True

    def _extra(self, piece: AnswerPiece) -> int:
        """What its heading costs, or the ellipsis before it; between two runs it makes one superfluous."""
        places = self._places.get(_source(piece))
        if not places:
            return self._kit.count(heading(piece))
        neighbours = (piece.place - 1 in places) + (piece.place + 1 in places)
        return self._kit.count(gap(piece)) * (1 - neighbours)

    def _occupy(self, piece: AnswerPiece) -> None:
        self._places.setdefault(_source(piece), set()).add(piece.place)


def _source(piece: AnswerPiece) -> Key:
    return piece.project, piece.source or piece.fragment_id


def _piece(scored: Scored, form: Form) -> AnswerPiece:
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
