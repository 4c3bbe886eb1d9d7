"""The answer to a request: the text that a model reads, and the provenance of each fragment in it.

These are public values. They are made in one place (`result.build_answer`) from the delivered text, and never changed.
"""

from __future__ import annotations

from msgspec import Struct

from stepwell.assembly.candidate import DepthName, Scores, Vote
from stepwell.assembly.inputs import Failure
from stepwell.assembly.receipt import Receipt
from stepwell.domain.tiers.model import Tier, name_in
from stepwell.domain.tiers.source_outline import RedactedPlace
from stepwell.text import brief_repr, describe, plural, quoted


class AnswerFragment(Struct, frozen=True):
    """A fragment as it is shown, with the reasons for showing it.

    `text` is what is shown, which is shorter than the body if `depth` is not "full"; `tokens` counts it. `revision` is
    that of the body. `votes` has the rank that each strategy gave; a fragment that no strategy named has none, and
    `near` is the id of the hit beside which it stands. `redacted` are the places of its source at which a secret was
    redacted.
    """

    project: str
    fragment_id: str
    source: str
    kind: str
    lines: tuple[int, int] | None
    depth: DepthName
    text: str
    tokens: int
    tier: Tier
    revision: int
    scores: Scores
    votes: tuple[Vote, ...]
    near: str = ""
    redacted: tuple[RedactedPlace, ...] = ()

    def __repr__(self) -> str:
        lines = "" if self.lines is None else "lines {}-{}".format(*self.lines)
        score = f"score {self.score:.3g}"
        return describe(
            self, name_in(self.project, self.fragment_id), lines, self.depth, plural(self.tokens, "token"), score
        )

    @property
    def score(self) -> float:
        return self.scores.total

    @property
    def strategies(self) -> tuple[str, ...]:
        """The names of the strategies that named the fragment."""
        return tuple(vote.strategy for vote in self.votes)


class StrategyReport(Struct, frozen=True):
    """The contribution of one strategy to an answer, its running time, and its failure, if there is one.

    `candidates` is how many fragments it named, and `kept` how many of these are in the text.
    """

    strategy: str
    confidence: float = 0.0
    weight: float = 0.0
    candidates: int = 0
    kept: int = 0
    seconds: float = 0.0
    explanation: str = ""
    failure: Failure | None = None

    __repr__ = brief_repr


class Answer(Struct, frozen=True):
    """The fragments to show under a budget, their text, and the receipt.

    `total_tokens` is the exact count of `text`, and never more than the budget. `epoch` and `revision` name the state
    that all strategies looked at. `receipt_id` is the id under which the manager keeps the receipt; it is empty if the
    manager does not.
    """

    fragments: tuple[AnswerFragment, ...]
    total_tokens: int
    budget_tokens: int
    strategies: tuple[StrategyReport, ...]
    epoch: str
    revision: int
    text: str
    receipt: Receipt
    receipt_id: str = ""

    def __repr__(self) -> str:
        fragments, failures = plural(len(self.fragments), "fragment"), len(self.failures)
        return describe(
            self,
            f"to {quoted(self.receipt.request.query)}",
            f"{fragments} in {self.total_tokens} of {plural(self.budget_tokens, 'token')}",
            plural(len(self.strategies), "strategy", "strategies"),
            f"{failures} failed" if failures else "",
            f"revision {self.revision}",
            self.receipt_id and f"receipt {quoted(self.receipt_id)}",
        )

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The strategies that gave no usable result, and why."""
        return tuple(each.failure for each in self.strategies if each.failure is not None)

    @property
    def redacted(self) -> tuple[str, ...]:
        """The places at which a secret was redacted, as `source: kind (line)`, in the order of the text."""
        found = (f"{each.source}: {place}" for each in self.fragments for place in each.redacted)
        return tuple(dict.fromkeys(found))

    def render(self) -> str:
        """Return the text: Markdown, with sources and line ranges."""
        return self.text
