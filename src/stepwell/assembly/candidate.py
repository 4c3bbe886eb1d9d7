"""A fragment on its way into an answer: who named it, what it is worth, and what it would look like.

There are thousands of each for a question, none of which can be part of a cycle: the collector need not look.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from stepwell.assembly.inputs import Key
from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.payload import StrategyResult

DepthName = Literal["full", "summary", "signature", "listing"]
DEPTHS: Final[tuple[DepthName, ...]] = ("full", "summary", "signature", "listing")
"""The deepest first."""


class Chosen(Struct, frozen=True):
    """A result that is used, and how sure its strategy is, preferences counted in."""

    result: StrategyResult
    confidence: float


class Allotment(Struct, frozen=True):
    """What a strategy counts, and how many tokens it may bring in before the others have had their turn."""

    result: StrategyResult
    confidence: float
    weight: float  # of all strategies together: 1
    tokens: int


class Vote(Struct, frozen=True, array_like=True, gc=False):
    """Where a strategy has put a fragment."""

    strategy: str
    rank: int  # from 1
    score: float  # the strategy's own


class Fused(Struct, frozen=True, gc=False):
    """A fragment, and what all strategies together think of it: 1 is the best of them."""

    key: Key
    row: FragmentRow
    relevance: float
    votes: tuple[Vote, ...]  # by name of the strategy


class Candidate(Struct, frozen=True, gc=False):
    """A fragment among those around it."""

    key: Key
    row: FragmentRow
    relevance: float
    hierarchy: float  # how relevant what stands around it is
    place: int  # among the parts of its source
    votes: tuple[Vote, ...] = ()
    near: str = ""  # of one that no strategy has named: the id of the hit that it stands next to


class Scores(Struct, frozen=True, array_like=True, gc=False):
    """What a fragment is worth, and for what. Each part is from 0 to 1; hierarchy may be more, among many hits."""

    total: float
    relevance: float
    hierarchy: float
    quality: float
    recency: float


class Scored(Struct, frozen=True, gc=False):
    """A candidate with its scores."""

    candidate: Candidate
    scores: Scores


class Form(Struct, frozen=True, gc=False):
    """What a fragment looks like at a depth."""

    depth: DepthName
    text: str


class AnswerPiece(Struct, frozen=True, gc=False):
    """A fragment as it stands in an answer: all that the text is made of, so that it can be made again."""

    project: str
    fragment_id: str
    source: str
    kind: str
    place: int
    lines: tuple[int, int] | None
    speaker: str
    depth: DepthName
    text: str

    @property
    def key(self) -> Key:
        return self.project, self.fragment_id
