"""The judgement of a whole history: how many of its partitions are legal, and the smallest illegal part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from stepwell import limits
from stepwell.prove.history import History, NoAnswer, RecordedCall, SnapshotCall
from stepwell.prove.partition import Partition, partitions_of
from stepwell.prove.search import SearchResult
from stepwell.prove.shrink import Counterexample, result_of, shrink

OnJudged = Callable[[int, int], None]
"""Called with the number of partitions that are judged, and the number of all."""


class HistoryVerdict(Struct, frozen=True):
    """The numbers of a judgement. A partition is undecided if the search had to be given up."""

    calls: int
    unknown: int
    histories: int
    watched: int
    illegal: int
    undecided: int
    counterexample: Counterexample | None = None

    @property
    def result(self) -> SearchResult:
        """Legal if all partitions are."""
        if self.illegal:
            return SearchResult.ILLEGAL
        return SearchResult.UNDECIDED if self.undecided else SearchResult.LEGAL


def judge(history: History, on_judged: OnJudged | None = None) -> HistoryVerdict:
    """Judge every partition of a history.

    Of the illegal ones a few are shrunk, and the clearest is returned.
    """
    partitions = partitions_of(history)
    illegal: list[Partition] = []
    undecided = 0
    for done, partition in enumerate(partitions, 1):
        result = result_of(partition)
        undecided += result is SearchResult.UNDECIDED
        if result is SearchResult.ILLEGAL:
            illegal.append(partition)
        if on_judged is not None:
            on_judged(done, len(partitions))
    return HistoryVerdict(
        calls=len(history.calls),
        unknown=sum(isinstance(each.outcome, NoAnswer) for each in history.calls),
        histories=len(partitions),
        watched=sum(bool(each.watched) for each in partitions),
        illegal=len(illegal),
        undecided=undecided,
        counterexample=_clearest(illegal),
    )


def _clearest(illegal: Sequence[Partition]) -> Counterexample | None:
    """Return the smallest illegal part of a few partitions.

    One without a snapshot comes first: a lost update needs no explanation of what a snapshot is.
    """
    shortest = sorted(illegal, key=lambda each: (_has_snapshot(each.calls), len(each.calls)))
    examples = map(shrink, shortest[: limits.PROVE_EXAMPLES_MAX])
    return min(examples, key=lambda each: (not each.calls, _has_snapshot(each.calls), len(each.calls)), default=None)


def _has_snapshot(calls: Sequence[RecordedCall]) -> bool:
    """Return True if one of the calls reads several keys at once."""
    return any(isinstance(each.call, SnapshotCall) for each in calls)
