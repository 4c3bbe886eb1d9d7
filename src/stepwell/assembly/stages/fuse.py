"""Fuse: one opinion out of several.

Scores are summed, not ranks: at a small budget only the first few count, and there it matters by how much the first is
better than the second, which a rank does not tell. Every strategy has its own scale, so scores are stretched to go
from about 0 to 1, the worst that was returned being worth little; of few results little is known of the scale, so
that the worst of them may still be nearly as good as the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from stepwell.assembly.candidate import Allotment, Fused, Vote
from stepwell.assembly.inputs import Key, Rows
from stepwell.strategies.payload import StrategyResult

RESULTS_KNOWN: Final = 10  # as many results as this tell half of where a strategy's scale begins
RANK_OFFSET: Final = 60.0  # of reciprocal ranks, as it is usually taken

Fuse = Callable[[Rows, Sequence[Allotment]], tuple[Fused, ...]]
Opinions = Iterator[tuple[Key, Vote, float]]


def weighted(rows: Rows, allotments: Sequence[Allotment]) -> tuple[Fused, ...]:
    """The sum of stretched scores, each by the weight of its strategy."""
    return _fused(rows, allotments, _stretched)


def reciprocal(rows: Rows, allotments: Sequence[Allotment]) -> tuple[Fused, ...]:
    """By ranks alone: for strategies whose scores say nothing."""
    return _fused(rows, allotments, _by_rank)


def _stretched(result: StrategyResult) -> Opinions:
    votes = _votes(result)
    largest = max(abs(vote.score) for vote in votes.values()) or 1.0  # so that no difference is too large for a float
    scores = [vote.score / largest for vote in votes.values()]
    best, worst, size = max(scores), min(scores), len(scores)
    bottom = worst if worst < 0 else worst * size / (size + RESULTS_KNOWN)
    scale = best - bottom
    for (key, vote), score in zip(votes.items(), scores, strict=True):
        yield key, vote, (score - bottom) / scale if scale > 0 else 1.0


def _by_rank(result: StrategyResult) -> Opinions:
    for key, vote in _votes(result).items():
        yield key, vote, (RANK_OFFSET + 1) / (RANK_OFFSET + vote.rank)


def _votes(result: StrategyResult) -> dict[Key, Vote]:
    """The best first, ties by project and id; of a fragment that was returned twice, its better place."""
    votes: dict[Key, Vote] = {}
    for each in sorted(result.fragments, key=lambda each: (-each.score, each.project, each.fragment_id)):
        key = each.project, each.fragment_id
        if key not in votes:
            votes[key] = Vote(result.strategy, len(votes) + 1, each.score)
    return votes


def _fused(
    rows: Rows, allotments: Sequence[Allotment], opinions: Callable[[StrategyResult], Opinions]
) -> tuple[Fused, ...]:
    sums: dict[Key, float] = {}
    votes: dict[Key, list[Vote]] = {}
    for allotment in allotments:  # in the order of their names, so that a sum does not depend on who came first
        for key, vote, opinion in opinions(allotment.result):
            sums[key] = sums.get(key, 0.0) + allotment.weight * opinion
            votes.setdefault(key, []).append(vote)
    best = max(sums.values(), default=0.0) or 1.0
    return tuple(Fused(key, rows[key], sums[key] / best, tuple(votes[key])) for key in sums)


COMPONENTS: Final[dict[str, Fuse]] = {"weighted": weighted, "reciprocal": reciprocal}
