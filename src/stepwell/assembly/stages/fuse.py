"""The fuse stage: one relevance of each fragment out of the scores of several strategies.

Scores are summed, not ranks. A small budget has room for the first few fragments only, and there the distance between
the first and the second matters, which a rank does not tell. Each strategy has its own scale, so scores are stretched
to a range from about 0 to 1, where the worst result gets little. A few results tell little about the scale: then the
worst of them may still be nearly as good as the best.

A strategy cannot raise its weight by its scores: its best fragment counts 1, times the weight that `allocate` gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stepwell.assembly.candidate import Allotment, FusedFragment, Vote
from stepwell.assembly.inputs import Key, Rows
from stepwell.strategies.payload import StrategyResult

RESULTS_KNOWN: Final = 10  # with so many results, the bottom of the scale is at half of the worst score
RANK_OFFSET: Final = 60.0  # the usual constant of reciprocal rank fusion

Fuse = Callable[[Rows, Sequence[Allotment]], tuple[FusedFragment, ...]]
"""A function of rows and allotments to fused fragments; each fragment comes once."""
Opinions = Iterator[tuple[Key, Vote, float]]
"""For each fragment of one result: its key, the vote, and the relevance from 0 to 1."""


def weighted(rows: Rows, allotments: Sequence[Allotment]) -> tuple[FusedFragment, ...]:
    """Return the sums of stretched scores, weighted by strategy."""
    return _fused(rows, allotments, _stretched)


def reciprocal(rows: Rows, allotments: Sequence[Allotment]) -> tuple[FusedFragment, ...]:
    """Return reciprocal rank fusion: for strategies whose scores mean nothing."""
    return _fused(rows, allotments, _by_rank)


def _stretched(result: StrategyResult) -> Opinions:
    """Yield the scores of a result, stretched to a range that ends at 1.

    Scores are divided by the largest first, so that no difference overflows a float.
    """
    votes = _votes(result)
    largest = max(abs(vote.score) for vote in votes.values()) or 1.0  # so that no difference is too large for a float
    scores = [vote.score / largest for vote in votes.values()]
    best, worst, size = max(scores), min(scores), len(scores)
    # With many results, the worst is about the bottom of the scale. With few, the bottom is assumed to be lower.
    bottom = worst if worst < 0 else worst * size / (size + RESULTS_KNOWN)
    scale = best - bottom
    for (key, vote), score in zip(votes.items(), scores, strict=True):
        yield key, vote, (score - bottom) / scale if scale > 0 else 1.0


def _by_rank(result: StrategyResult) -> Opinions:
    """Yield the reciprocal ranks of a result: 1 for the first."""
    for key, vote in _votes(result).items():
        yield key, vote, (RANK_OFFSET + 1) / (RANK_OFFSET + vote.rank)


def _votes(result: StrategyResult) -> dict[Key, Vote]:
    """Return the votes of a result, the best first, ties by project and id.

    A fragment that is named twice has one vote.
    """
    votes: dict[Key, Vote] = {}
    for each in sorted(result.fragments, key=lambda each: (-each.score, each.project, each.fragment_id)):
        key = each.project, each.fragment_id
        if key not in votes:
            votes[key] = Vote(result.strategy, len(votes) + 1, each.score)
    return votes


def _fused(
    rows: Rows, allotments: Sequence[Allotment], opinions: Callable[[StrategyResult], Opinions]
) -> tuple[FusedFragment, ...]:
    """Return all fragments with the sum of their opinions, divided by the best sum."""
    sums: dict[Key, float] = {}
    votes: dict[Key, list[Vote]] = {}
    for allotment in allotments:  # in order of name: sums of floats depend on the order
        for key, vote, opinion in opinions(allotment.result):
            sums[key] = sums.get(key, 0.0) + allotment.weight * opinion
            votes.setdefault(key, []).append(vote)
    best = max(sums.values(), default=0.0) or 1.0
    return tuple(FusedFragment(key, rows[key], sums[key] / best, tuple(votes[key])) for key in sums)


COMPONENTS: Final[dict[str, Fuse]] = {"weighted": weighted, "reciprocal": reciprocal}
