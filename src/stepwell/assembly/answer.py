"""An answer: the text that a model reads, and for each fragment in it where it comes from and why it is there."""

from __future__ import annotations

from msgspec import Struct

from stepwell.assembly.candidate import DepthName, Scores, Vote
from stepwell.assembly.inputs import Failure
from stepwell.assembly.receipt import Receipt
from stepwell.domain.tiers.model import Tier


class AnswerFragment(Struct, frozen=True):
    """A fragment as it is shown."""

    project: str
    fragment_id: str
    source: str
    kind: str
    lines: tuple[int, int] | None
    depth: DepthName
    text: str
    tokens: int  # of what is shown
    tier: Tier
    revision: int  # of its body
    scores: Scores
    votes: tuple[Vote, ...]  # where each strategy has put it
    near: str = ""  # of one that no strategy has named: the hit that it stands next to

    @property
    def score(self) -> float:
        return self.scores.total

    @property
    def strategies(self) -> tuple[str, ...]:
        """Those that have named it."""
        return tuple(vote.strategy for vote in self.votes)


class StrategyReport(Struct, frozen=True):
    """What a strategy has contributed, and how long it took."""

    strategy: str
    confidence: float = 0.0
    weight: float = 0.0
    candidates: int = 0
    kept: int = 0
    seconds: float = 0.0
    explanation: str = ""
    failure: Failure | None = None


class Answer(Struct, frozen=True):
    """What to show under a budget. `total_tokens` is the exact count of `text`, and never more than the budget."""

    fragments: tuple[AnswerFragment, ...]
    total_tokens: int
    budget_tokens: int
    strategies: tuple[StrategyReport, ...]
    epoch: str
    revision: int
    text: str
    receipt: Receipt
    receipt_id: str = ""  # under which it is kept; empty if it is not

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The strategies that gave nothing, and why."""
        return tuple(each.failure for each in self.strategies if each.failure is not None)

    def render(self) -> str:
        """Markdown, with sources and line ranges."""
        return self.text
