"""The judgement of a whole history: how many of its partitions are legal, and the smallest illegal part."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from stepwell.prove.history import History, NoAnswer
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

    Of the illegal ones, the one with the fewest calls is shrunk: it is the easiest to understand.
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
    smallest = min(illegal, key=lambda each: len(each.calls), default=None)
    return HistoryVerdict(
        calls=len(history.calls),
        unknown=sum(isinstance(each.outcome, NoAnswer) for each in history.calls),
        histories=len(partitions),
        watched=sum(bool(each.watched) for each in partitions),
        illegal=len(illegal),
        undecided=undecided,
        counterexample=None if smallest is None else shrink(smallest),
    )
