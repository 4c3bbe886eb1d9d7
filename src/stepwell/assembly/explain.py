"""Explaining: what became of a fragment and why, and what is different between two answers, in words."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Literal

from msgspec import Struct

from stepwell.assembly.candidate import DEPTHS
from stepwell.assembly.inputs import Key
from stepwell.assembly.receipt import Decision, Receipt, ReceiptEntry
from stepwell.errors import NotFound

_FATES: Final[dict[Decision, str]] = {
    "kept": "is in the answer",
    "shortened": "is in the answer, shortened",
    "deduplicated": "is not in the answer",
    "cut": "is not in the answer",
}


Change = Literal["came", "went", "moved", "deepened", "shortened", "changed"]


class AnswerDifference(Struct, frozen=True):
    """A fragment that came, went, moved or is shown at another depth, and why."""

    project: str
    fragment_id: str
    change: Change
    reason: str


class AnswerDifferences(Struct, frozen=True):
    """What is different between two answers, in the order of the later one; what went comes last."""

    differences: tuple[AnswerDifference, ...]
    unchanged: int
    tokens: tuple[int, int]  # of both

    def __str__(self) -> str:
        lines = [f"{each.change} {each.fragment_id} ({each.project}): {each.reason}" for each in self.differences]
        before, after = self.tokens
        return "\n".join([*lines, f"{self.unchanged} unchanged; {before} tokens before, {after} after"])


def why(receipt: Receipt, fragment_id: str, project: str | None = None) -> str:
    """What became of a fragment, and why. One that no strategy has named is `NotFound`."""
    entries = receipt.find(fragment_id, project)
    if not entries:
        failed = [use.strategy for use in receipt.strategies if use.failure]
        hint = f" ({', '.join(failed)} failed)" if failed else ""
        raise NotFound(
            f"{fragment_id!r:.200} was no candidate: of {len(receipt.entries)}, no strategy has named it{hint}"
        )
    return "\n".join(_explained(receipt, entry) for entry in entries)


def diff(before: Receipt, after: Receipt) -> AnswerDifferences:
    """What came, went and moved from one answer to another, and why."""
    old, new = _Seen(before), _Seen(after)
    keys = [*new.delivered, *(key for key in old.delivered if key not in new.delivered)]
    in_order = _in_order(old, new)
    found = [_difference(key, old, new, is_moved=key not in in_order) for key in keys]
    differences = tuple(each for each in found if each is not None)
    unchanged = len(found) - len(differences)
    return AnswerDifferences(differences, unchanged, (before.total_tokens, after.total_tokens))


def _explained(receipt: Receipt, entry: ReceiptEntry) -> str:
    rank = receipt.entries.index(entry) + 1
    where = f"{entry.source}:{entry.lines[0]}-{entry.lines[1]}" if entry.lines else entry.source
    named, scores = (entry.project, where), entry.scores
    lines = [
        f"{entry.fragment_id} ({', '.join(filter(None, named))}) {_FATES[entry.decision]}: {entry.reason}.",
        f"  {entry.tokens} tokens, {entry.tier}, revision {entry.revision}",
        *(f"  {vote.strategy}: rank {vote.rank}, score {vote.score:.4g}" for vote in entry.votes),
    ]
    if entry.near:
        lines.append(f"  no strategy has named it; it stands near {entry.near}")
    if entry.decision != "deduplicated":
        lines.append(
            f"  score {scores.total:.3f}, rank {rank} of {len(receipt.entries)}: relevance {scores.relevance:.3f}, "
            f"hierarchy {scores.hierarchy:.3f}, quality {scores.quality:.3f}, recency {scores.recency:.3f}"
        )
    if entry.shown is not None:
        lines.append(
            f"  shown at depth {entry.depth} in {entry.shown.tokens} tokens, as number {entry.shown.position + 1}"
        )
    if entry.decision == "cut" and (last := _last_kept(receipt)):
        lines.append(f"  the last that was kept has a score of {last.scores.total:.3f}")
    return "\n".join(lines)


def _last_kept(receipt: Receipt) -> ReceiptEntry | None:
    kept = [entry for entry in receipt.entries if entry.shown is not None]
    return kept[-1] if kept else None


class _Seen:
    """A receipt, as it is compared with another."""

    def __init__(self, receipt: Receipt) -> None:
        self.revision: Final = receipt.revision
        self.entries: Final = {entry.key: entry for entry in receipt.entries}
        self.delivered: Final = {entry.key: entry for entry in receipt.delivered}


def _in_order(old: _Seen, new: _Seen) -> set[Key]:
    """As many as can be said to stand as they did, among those that both have: the others have moved."""
    places = {key: place for place, key in enumerate(old.delivered)}
    ends: list[Key] = []  # for each length, the last of that run of this length whose last was the earliest
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


def _difference(key: Key, old: _Seen, new: _Seen, *, is_moved: bool) -> AnswerDifference | None:
    was, now = old.delivered.get(key), new.delivered.get(key)
    if was is None:
        return AnswerDifference(*key, "came", _missing(key, old))
    if now is None:
        return AnswerDifference(*key, "went", _missing(key, new))
    if was.digest != now.digest:
        return AnswerDifference(*key, "changed", f"its body is of revision {now.revision}, and was of {was.revision}")
    if was.depth != now.depth:
        return AnswerDifference(*key, _deepened(was, now), f"it is shown as {now.depth}, not {was.depth}")
    if is_moved:
        return AnswerDifference(*key, "moved", f"its score was {was.scores.total:.3f}, and is {now.scores.total:.3f}")
    return None


def _deepened(was: ReceiptEntry, now: ReceiptEntry) -> Change:
    ranks = {depth: rank for rank, depth in enumerate(DEPTHS)}
    is_deeper = was.depth and now.depth and ranks[now.depth] < ranks[was.depth]
    return "deepened" if is_deeper else "shortened"


def _missing(key: Key, seen: _Seen) -> str:
    """Why a fragment is not in an answer that another one has it in."""
    entry = seen.entries.get(key)
    if entry is None:
        return f"at revision {seen.revision}, no strategy has named it"
    return f"at revision {seen.revision}, {entry.reason}; its score was {entry.scores.total:.3f}"
