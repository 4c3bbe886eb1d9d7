"""The receipt of an answer: how it came about, by value.

It names every candidate, the votes and scores of each, and the decision about it. Together with the bodies that it
names, the answer can be rendered again; so a receipt holds all that the text depends on besides the bodies. It is
computed from the delivered text, so it cannot differ from it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepwell.assembly.candidate import DepthName, Scores, Vote
from stepwell.assembly.inputs import Key
from stepwell.domain.tiers.model import Tier, Writer
from stepwell.domain.tiers.source_outline import RedactedPlace
from stepwell.strategies.protocol import ContextRequest
from stepwell.text import brief_repr, describe, plural, quoted

Decision = Literal["kept", "shortened", "deduplicated", "cut"]


class StrategyUse(Struct, frozen=True):
    """The contribution of one strategy: how many fragments it named, and how many of these were kept.

    A strategy that was not used has the weight 0. `failure` is the kind of its error, if it failed.
    """

    strategy: str
    confidence: float = 0.0
    weight: float = 0.0
    candidates: int = 0
    kept: int = 0
    failure: str = ""


class ShownPiece(Struct, frozen=True, gc=False):
    """The part of the text that belongs to a fragment, besides its body.

    `position` counts the pieces of the answer from 0, `place` the parts of the source. `text` is what is shown if that
    is not the body.
    """

    position: int
    place: int
    kind: str
    speaker: str
    tokens: int
    text: str = ""


class ReceiptEntry(Struct, frozen=True, gc=False):
    """A candidate, the decision about it, and the reason.

    `digest` is hexadecimal. `tokens` counts the whole body. `near` is the id of the hit beside which a fragment stands
    that no strategy named. `depth` and `shown` are None for a candidate that is not in the text. `redacted` are the
    places in the fragment at which a secret was redacted when it was ingested. `writer` has the session that stored the
    fragment; None if there was none, as in answers about a directory.
    """

    project: str
    fragment_id: str
    source: str
    lines: tuple[int, int] | None
    digest: str
    revision: int
    tier: Tier
    tokens: int
    votes: tuple[Vote, ...]
    scores: Scores
    decision: Decision
    reason: str
    near: str = ""
    depth: DepthName | None = None
    shown: ShownPiece | None = None
    redacted: tuple[RedactedPlace, ...] = ()
    writer: Writer | None = None

    __repr__ = brief_repr

    @property
    def key(self) -> Key:
        return self.project, self.fragment_id


class Receipt(Struct, frozen=True):
    """The record of one answer.

    Entries are in the order of packing, the best first; then come those that were not to be shown, and duplicates last.
    `sections` are the texts before the pieces. `layout` is that of the rendered text (see `render.LAYOUT`); receipts of
    the first one do not name it. `text_digest` is the hexadecimal digest of the whole text: a replay that gives other
    bytes is refused.
    """

    request: ContextRequest
    epoch: str
    revision: int
    total_tokens: int
    strategies: tuple[StrategyUse, ...]
    entries: tuple[ReceiptEntry, ...]
    sections: tuple[str, ...]
    text_digest: str
    layout: int = 1

    def __repr__(self) -> str:
        entries, shown = plural(len(self.entries), "candidate"), plural(self.total_tokens, "token")
        return describe(self, f"of {quoted(self.request.query)}", entries, shown, f"revision {self.revision}")

    @property
    def delivered(self) -> tuple[ReceiptEntry, ...]:
        """The entries that are in the text, in its order."""
        found = [(entry.shown.position, entry) for entry in self.entries if entry.shown is not None]
        return tuple(entry for _, entry in sorted(found, key=lambda pair: pair[0]))

    def find(self, fragment_id: str, project: str | None = None) -> tuple[ReceiptEntry, ...]:
        """Return the entries of a fragment; several, if several projects have a fragment of that id."""
        return tuple(
            entry for entry in self.entries if entry.fragment_id == fragment_id and project in {None, entry.project}
        )
