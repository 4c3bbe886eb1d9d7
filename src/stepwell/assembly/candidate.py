"""The values that the stages pass on: a fragment on its way into an answer.

  StrategyResult → SelectedResult → Allotment → FusedFragment → Candidate → ScoredCandidate → AnswerPiece

A question has thousands of each, and none can be part of a reference cycle. So they are invisible to the garbage
collector (`gc=False`), which saves time.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from stepwell.assembly.inputs import Key
from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.payload import StrategyResult

DepthName = Literal["full", "cut", "summary", "signature", "listing"]
DEPTHS: Final[tuple[DepthName, ...]] = ("full", "cut", "summary", "signature", "listing")
"""All depths, the deepest first."""


class SelectedResult(Struct, frozen=True):
    """A result that is used, with the confidence of its strategy. A preference of the request raises the confidence."""

    result: StrategyResult
    confidence: float


class Allotment(Struct, frozen=True):
    """The weight of a strategy; all weights add up to 1. A strategy `answers` unless it ignores the question."""

    result: StrategyResult
    confidence: float
    weight: float
    answers: bool = True


class Vote(Struct, frozen=True, array_like=True, gc=False):
    """The rank (from 1) and the score that a strategy gave a fragment. The score is on the strategy's own scale."""

    strategy: str
    rank: int
    score: float


class FusedFragment(Struct, frozen=True, gc=False):
    """A fragment with the relevance that all strategies together give it: 1 for the best.

    Votes are by strategy name.
    """

    key: Key
    row: FragmentRow
    relevance: float
    votes: tuple[Vote, ...]


class Candidate(Struct, frozen=True, gc=False):
    """A fragment in its surroundings.

    `hierarchy` is the relevance of the parts around it. `place` is its position among the parts of its source. A
    fragment that no strategy named has no votes, and `near` is the id of the hit beside which it stands.
    """

    key: Key
    row: FragmentRow
    relevance: float
    hierarchy: float
    place: int
    votes: tuple[Vote, ...] = ()
    near: str = ""


class Scores(Struct, frozen=True, array_like=True, gc=False):
    """The score of a fragment, and its four parts, from 0 to 1. Hierarchy may be more than 1 among many hits."""

    total: float
    relevance: float
    hierarchy: float
    quality: float
    recency: float


class ScoredCandidate(Struct, frozen=True, gc=False):
    """A candidate with its scores."""

    candidate: Candidate
    scores: Scores


class DepthForm(Struct, frozen=True, gc=False):
    """The text of a fragment at one depth: the body, or a shorter form of it."""

    depth: DepthName
    text: str


class AnswerPiece(Struct, frozen=True, gc=False):
    """A fragment as it stands in an answer.

    It has all that the text is made of, and nothing else. So the text can be rendered again from a receipt.
    """

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
