"""Receipts in words: why a fragment is or is not in an answer, and how two answers differ.

Everything is read from receipts, so an answer can be explained when its fragments have changed or are gone.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal

from msgspec import Struct

from stepwell.assembly.candidate import DEPTHS
from stepwell.assembly.inputs import Key
from stepwell.assembly.receipt import Decision, Receipt, ReceiptEntry
from stepwell.errors import NotFound
from stepwell.text import plural

# Deduplicated and cut fragments have the same text, because the reason that follows tells them apart.
_DECISION_TEXTS: Final[dict[Decision, str]] = {
    "kept": "is in the answer",
    "shortened": "is in the answer, shortened",
    "deduplicated": "is not in the answer",
    "cut": "is not in the answer",
}


class CandidateOutcome(Struct, frozen=True):
    """The outcome of one candidate of an answer: its entry in the receipt, and how it compares with the others.

    `rank` is its place among all `candidates`, from 1. `last_kept_score` is the lowest score of a fragment that is in
    the answer; None if none is. `str()` gives the explanation, in several lines.
    """

    rank: int
    candidates: int
    last_kept_score: float | None
    entry: ReceiptEntry

    def __str__(self) -> str:
        entry, scores = self.entry, self.entry.scores
        where = f"{entry.source}:{entry.lines[0]}-{entry.lines[1]}" if entry.lines else entry.source
        named = ", ".join(filter(None, (entry.project, where)))
        lines = [
            f"{entry.fragment_id} ({named}) {_DECISION_TEXTS[entry.decision]}: {entry.reason}.",
            f"  {plural(entry.tokens, 'token')}, {entry.tier}, revision {entry.revision}",
            *([f"  stored by {entry.writer}"] if entry.writer else []),
            *(f"  {vote.strategy}: rank {vote.rank}, score {vote.score:.4g}" for vote in entry.votes),
        ]
        if entry.near:
            lines.append(f"  no strategy has named it; it stands near {entry.near}")
        if entry.decision != "deduplicated":
            lines.append(
                f"  score {scores.total:.3f}, rank {self.rank} of {self.candidates}: relevance {scores.relevance:.3f}, "
                f"hierarchy {scores.hierarchy:.3f}, quality {scores.quality:.3f}, recency {scores.recency:.3f}"
            )
        if entry.shown is not None:
            lines.append(
                f"  shown at depth {entry.depth} in {plural(entry.shown.tokens, 'token')}, "
                f"as number {entry.shown.position + 1}"
            )
        if entry.redacted:
            lines.append(f"  redacted in it: {', '.join(map(str, entry.redacted))}")
        if entry.decision == "cut" and self.last_kept_score is not None:
            lines.append(f"  the last that was kept has a score of {self.last_kept_score:.3f}")
        return "\n".join(lines)


Change = Literal["came", "went", "moved", "deepened", "shortened", "changed"]


class AnswerDifference(Struct, frozen=True):
    """A fragment that came, went, moved or changed between two answers, and why."""

    project: str
    fragment_id: str
    change: Change
    reason: str


class AnswerDifferences(Struct, frozen=True):
    """The differences between two answers, in the order of the later one; fragments that went come last.

    `unchanged` counts the fragments that both have in the same form and order. `tokens` has the totals of both answers.
    `str()` gives one line for each difference, and a summary.
    """

    differences: tuple[AnswerDifference, ...]
    unchanged: int
    tokens: tuple[int, int]

    def __str__(self) -> str:
        lines = [f"{each.change} {each.fragment_id} ({each.project}): {each.reason}" for each in self.differences]
        before, after = self.tokens
        return "\n".join([*lines, f"{self.unchanged} unchanged; {plural(before, 'token')} before, {after:,} after"])


def why(receipt: Receipt, fragment_id: str, project: str | None = None) -> str:
    """Return why a fragment is or is not in an answer. Raise `NotFound` if no strategy has named it."""
    return "\n".join(map(str, outcomes(receipt, fragment_id, project)))


def outcomes(receipt: Receipt, fragment_id: str, project: str | None = None) -> tuple[CandidateOutcome, ...]:
    """Return the outcome of a fragment; several, if several projects have a fragment of that id.

    Raise `NotFound` if no strategy has named it.
    """
    entries = receipt.find(fragment_id, project)
    if not entries:
        failed = [use.strategy for use in receipt.strategies if use.failure]
        hint = f" ({', '.join(failed)} failed)" if failed else ""
        raise NotFound(
            f"{fragment_id!r:.200} was no candidate: of {len(receipt.entries)}, no strategy has named it{hint}"
        )
    last = _last_kept(receipt)
    threshold = None if last is None else last.scores.total
    return tuple(
        CandidateOutcome(receipt.entries.index(entry) + 1, len(receipt.entries), threshold, entry) for entry in entries
    )


def diff(before: Receipt, after: Receipt) -> AnswerDifferences:
    """Return the fragments that came, went, moved or changed from one answer to another, and why."""
    old, new = _ReceiptIndex(before), _ReceiptIndex(after)
    keys = [*new.delivered, *(key for key in old.delivered if key not in new.delivered)]
    in_order = _unmoved(old, new)
    found = [_difference(key, old, new, is_moved=key not in in_order) for key in keys]
    differences = tuple(each for each in found if each is not None)
    unchanged = len(found) - len(differences)
    return AnswerDifferences(differences, unchanged, (before.total_tokens, after.total_tokens))


def _last_kept(receipt: Receipt) -> ReceiptEntry | None:
    """Return the shown entry with the lowest score: the threshold for all that were cut."""
    shown = (entry for entry in receipt.entries if entry.shown is not None)
    return min(shown, key=lambda entry: entry.scores.total, default=None)


class _ReceiptIndex:
    """The entries of a receipt by key, and those that were delivered in their order."""

    def __init__(self, receipt: Receipt) -> None:
        self.revision: Final = receipt.revision
        self.entries: Final = {entry.key: entry for entry in receipt.entries}
        self.delivered: Final = {entry.key: entry for entry in receipt.delivered}


def _unmoved(old: _ReceiptIndex, new: _ReceiptIndex) -> set[Key]:
    """Return the largest set of common fragments that stand in the same order in both answers: the others have moved.

    That set is a longest increasing subsequence of the old positions. With it, one fragment that moved to the front is
    reported as one move, not as a move of all others.
    """
    places = {key: place for place, key in enumerate(old.delivered)}
    # For each length, the last fragment of the subsequence of that length whose last position is the smallest.
    ends: list[Key] = []
    before: dict[Key, Key | None] = {}
    for key in (key for key in new.delivered if key in places):
        length = bisect_left(ends, places[key], key=places.__getitem__)
        before[key] = ends[length - 1] if length else None
        ends[length : length + 1] = [key]
    found: set[Key] = set()
    last = ends[-1] if ends else None
    while last is not None:
        found.add(last)
        last = before[last]
    return found


def _difference(key: Key, old: _ReceiptIndex, new: _ReceiptIndex, *, is_moved: bool) -> AnswerDifference | None:
    """Return how one fragment differs between two answers; None if it does not."""
    was, now = old.delivered.get(key), new.delivered.get(key)
    if was is None:
        return AnswerDifference(*key, "came", _absence_reason(key, old))
    if now is None:
        return AnswerDifference(*key, "went", _absence_reason(key, new))
    # A fragment has one difference: the first of these, which is also the likely cause of the later ones.
    if was.digest != now.digest:
        return AnswerDifference(*key, "changed", f"its body is of revision {now.revision}, and was of {was.revision}")
    if was.depth != now.depth:
        return AnswerDifference(*key, _depth_change(was, now), f"it is shown as {now.depth}, not {was.depth}")
    if is_moved:
        return AnswerDifference(*key, "moved", f"its score was {was.scores.total:.3f}, and is {now.scores.total:.3f}")
    return None


def _depth_change(was: ReceiptEntry, now: ReceiptEntry) -> Change:
    """Return whether a fragment that is shown at another depth has become deeper or shorter."""
    ranks = {depth: rank for rank, depth in enumerate(DEPTHS)}
    is_deeper = was.depth and now.depth and ranks[now.depth] < ranks[was.depth]
    return "deepened" if is_deeper else "shortened"


def _absence_reason(key: Key, seen: _ReceiptIndex) -> str:
    """Return why a fragment is not in an answer, although another answer has it."""
    entry = seen.entries.get(key)
    if entry is None:
        return f"at revision {seen.revision}, no strategy has named it"
    return f"at revision {seen.revision}, {entry.reason}; its score was {entry.scores.total:.3f}"
