"""A receipt: how an answer came about, computed from what was delivered, by value.

It names every candidate, what each strategy and all together thought of it, and what became of it. With the bodies
that it names, the answer can be made again; so it holds all that the text depends on besides them.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepwell.assembly.candidate import DepthName, Scores, Vote
from stepwell.assembly.inputs import Key
from stepwell.domain.tiers.model import Tier
from stepwell.strategies.protocol import ContextRequest

Decision = Literal["kept", "shortened", "deduplicated", "cut"]


class StrategyUse(Struct, frozen=True):
    """What a strategy has contributed. One that was not used has no weight."""

    strategy: str
    confidence: float = 0.0
    weight: float = 0.0
    candidates: int = 0  # that it named
    kept: int = 0  # of these
    failure: str = ""  # the kind of the error


class Shown(Struct, frozen=True, gc=False):
    """What the text has of a fragment besides its body."""

    position: int  # among the pieces, from 0
    place: int  # among the parts of its source
    kind: str
    speaker: str
    tokens: int
    text: str = ""  # if it is not the body


class ReceiptEntry(Struct, frozen=True, gc=False):
    """A candidate, and what became of it."""

    project: str
    fragment_id: str
    source: str
    lines: tuple[int, int] | None
    digest: str  # hexadecimal
    revision: int
    tier: Tier
    tokens: int  # of all of it
    votes: tuple[Vote, ...]
    scores: Scores
    decision: Decision
    reason: str
    near: str = ""  # of one that no strategy has named: the hit that it stands next to
    depth: DepthName | None = None
    shown: Shown | None = None

    @property
    def key(self) -> Key:
        return self.project, self.fragment_id


class Receipt(Struct, frozen=True):
    """How an answer came about. Entries are in the order of their scores, the best first."""

    request: ContextRequest
    epoch: str
    revision: int
    total_tokens: int
    strategies: tuple[StrategyUse, ...]
    entries: tuple[ReceiptEntry, ...]
    sections: tuple[str, ...]  # what comes before the pieces
    text_digest: str  # hexadecimal

    @property
    def delivered(self) -> tuple[ReceiptEntry, ...]:
        """What is in the text, in its order."""
        found = [(entry.shown.position, entry) for entry in self.entries if entry.shown is not None]
        return tuple(entry for _, entry in sorted(found, key=lambda pair: pair[0]))

    def find(self, fragment_id: str, project: str | None = None) -> tuple[ReceiptEntry, ...]:
        """The entries of a fragment; several, if projects have one of that name."""
        return tuple(
            entry for entry in self.entries if entry.fragment_id == fragment_id and project in {None, entry.project}
        )
