"""The smallest illegal part of a partition, so that a person can see at a glance why it is illegal.

Each step removes something in a way that cannot make a legal history illegal. So whatever is left is illegal for every
behaviour of the removed calls, and not only because something is missing. The steps:

- The history ends earlier. Calls that are under way then may take effect, or not.
- The history begins later, in any state. Calls that are under way then may take effect, or not.
- A read, or a call that was declined, is removed.
- A write is removed if no other call has seen it, and none was declined or accepted because of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.prove.history import (
    Accepted,
    Declined,
    DeleteCall,
    LogPopCall,
    NoAnswer,
    RecordedCall,
    keys_of,
    writes_of,
)
from stepwell.prove.models import Effect, FragmentModel, LogModel, PlanModel, observations
from stepwell.prove.partition import Partition
from stepwell.prove.search import SearchResult, search

Calls = tuple[RecordedCall, ...]


class Counterexample(Struct, frozen=True):
    """An illegal part of a history. `watched` has the orders that contradict the calls, or each other."""

    keys: tuple[str, ...]
    calls: Calls
    watched: tuple[tuple[Effect, ...], ...] = ()
    begins_anywhere: bool = False


def result_of(partition: Partition) -> SearchResult:
    """Return if a partition is legal. Two watches that saw different orders are a violation, too."""
    if len(set(partition.watched)) > 1:
        return SearchResult.ILLEGAL
    watched = partition.watched[0] if partition.watched else None
    return _searched(partition, partition.calls, watched)


def shrink(partition: Partition) -> Counterexample:
    """Return the smallest illegal part of an illegal partition that a bounded number of searches finds."""
    if len(set(partition.watched)) > 1:
        return Counterexample(partition.keys, (), tuple(dict.fromkeys(partition.watched)))
    shrinker = _Shrinker(partition)
    if partition.watched and not shrinker.is_illegal(partition.calls):
        return Counterexample(partition.keys, _without_reads(partition), partition.watched[:1])
    calls = shrinker.dropped(shrinker.shortened(partition.calls))
    later = shrinker.begun_later(calls)
    if later is None:
        return Counterexample(partition.keys, calls)
    return Counterexample(partition.keys, shrinker.dropped(later, anywhere=True), begins_anywhere=True)


def _searched(partition: Partition, calls: Sequence[RecordedCall], watched: Sequence[Effect] | None) -> SearchResult:
    """Search an order of some calls of a partition, from its beginning."""
    model = partition.model(watched)
    if isinstance(model, PlanModel):
        return search(calls, model, model.initial())
    if isinstance(model, LogModel):
        return search(calls, model, model.initial())
    return search(calls, model, model.initial())


def _without_reads(partition: Partition) -> Calls:
    """Return the calls without those that are not needed to contradict the watch."""
    calls = partition.calls
    for each in reversed(partition.calls):
        rest = tuple(other for other in calls if other is not each)
        is_needless = each.is_read or isinstance(each.outcome, Declined)
        if is_needless and _searched(partition, rest, partition.watched[0]) is SearchResult.ILLEGAL:
            calls = rest
    return calls


class _Shrinker:
    """The searches for one partition, of which there are only so many."""

    def __init__(self, partition: Partition) -> None:
        self._model: FragmentModel | PlanModel | LogModel = partition.model()
        is_log = isinstance(self._model, LogModel)  # the order of its values is part of a state: there are many
        self._searches = limits.PROVE_LOG_SEARCHES_MAX if is_log else limits.PROVE_SHRINK_SEARCHES_MAX

    def is_illegal(self, calls: Calls, *, anywhere: bool = False) -> bool:
        """Return True if no order explains the calls, from the initial state or from any state."""
        model = self._model
        if isinstance(model, PlanModel):
            plans = model.any_states(calls) if anywhere else [model.initial()]
            return all(self._spend() and search(calls, model, each) is SearchResult.ILLEGAL for each in plans)
        if isinstance(model, LogModel):  # what it held before the calls cannot be known, but at the beginning
            if anywhere or not self._spend():
                return False
            found = search(calls, model, model.initial(), steps_max=limits.PROVE_LOG_STEPS_MAX)
            return found is SearchResult.ILLEGAL
        states = model.any_states(calls) if anywhere else [model.initial()]
        return all(self._spend() and search(calls, model, each) is SearchResult.ILLEGAL for each in states)

    def shortened(self, calls: Calls) -> Calls:
        """Return the calls up to the first end at which they are illegal."""
        ends = sorted(each.end_ns for each in calls if each.end_ns is not None)
        cuts = (tuple(_until(calls, end_ns)) for end_ns in ends)
        return next((each for each in cuts if self.is_illegal(each)), calls)

    def begun_later(self, calls: Calls) -> Calls | None:
        """Return the calls from the last start with which they are illegal in any state; None if they never are."""
        starts = sorted((each.start_ns for each in calls), reverse=True)
        cuts = (tuple(_since(calls, start_ns)) for start_ns in starts)
        return next((each for each in cuts if self.is_illegal(each, anywhere=True)), None)

    def dropped(self, calls: Calls, *, anywhere: bool = False) -> Calls:
        """Return the calls without each one that can be removed while they stay illegal."""
        for each in reversed(calls):
            rest = tuple(other for other in calls if other is not each)
            if _is_removable(each, rest) and self.is_illegal(rest, anywhere=anywhere):
                calls = rest
        return calls

    def _spend(self) -> bool:
        """Count a search, and return False if there were too many."""
        self._searches -= 1
        return self._searches >= 0


def _until(calls: Calls, end_ns: int) -> Iterator[RecordedCall]:
    """Yield the calls of a history that ends at a time."""
    for each in calls:
        if each.start_ns <= end_ns:
            is_under_way = each.end_ns is None or each.end_ns > end_ns
            yield from _weakened(each) if is_under_way else (each,)


def _since(calls: Calls, start_ns: int) -> Iterator[RecordedCall]:
    """Yield the calls of a history that begins at a time."""
    for each in calls:
        if each.start_ns >= start_ns:
            yield each
        elif each.end_ns is None or each.end_ns >= start_ns:
            yield from _weakened(each)


def _weakened(recorded: RecordedCall) -> Iterator[RecordedCall]:
    """Yield the call as one that may or may not take effect; a call that has none is not needed."""
    if isinstance(recorded.outcome, Accepted | NoAnswer) or isinstance(recorded.call, LogPopCall):
        yield replace(recorded, end_ns=None, outcome=NoAnswer())


def _is_removable(recorded: RecordedCall, rest: Calls) -> bool:
    """Return True if a history stays legal without the call, given the other calls in it."""
    if recorded.is_read or isinstance(recorded.outcome, Declined):
        return True
    written = {*writes_of(recorded.call)}
    keys = {*keys_of(recorded.call)}
    return bool(written) and not any(_depends(each, written, keys) for each in rest)


def _depends(recorded: RecordedCall, written: set[Effect], keys: set[str]) -> bool:
    """Return True if a call may have its outcome because of one of the writes."""
    if not keys.isdisjoint(keys_of(recorded.call)):
        is_deletion = isinstance(recorded.call, DeleteCall) and isinstance(recorded.outcome, Accepted)
        if is_deletion or isinstance(recorded.outcome, Declined):
            return True
    return not written.isdisjoint(observations(recorded))
