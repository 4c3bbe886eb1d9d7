"""Changes that make a legal partition illegal, each with the reason why no order can explain the result.

Each function returns the changed partition, or None if there is nothing in it to change. Values are written once, so
that a value that was replaced does not come back: most of the reasons rest on that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from stepwell.prove.history import (
    Accepted,
    GetCall,
    LogPopCall,
    LogReadCall,
    Observed,
    PlanStepCall,
    RecordedCall,
    ReplaceCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
    writes_of,
)
from stepwell.prove.partition import Partition

OTHER_LANE = 9_999
NEW_VALUE = "written by a mutation"

Mutation = Callable[[Partition, random.Random], Partition | None]


def plan_started_twice(partition: Partition, generator: random.Random) -> Partition | None:
    """A second caller starts the same phase: no step leads back to `queued`, so that only one can have started it."""
    starts = [
        each
        for each in _accepted(partition)
        if isinstance(each.call, PlanStepCall) and each.call.step.startswith("start")
    ]
    return _with(partition, replace(generator.choice(starts), process=OTHER_LANE)) if starts else None


def compare_and_set_won_twice(partition: Partition, generator: random.Random) -> Partition | None:
    """A second caller replaces the same value: the first one has replaced it for good."""
    found = [each for each in _accepted(partition) if _expected(each)]
    if not found:
        return None
    chosen = generator.choice(found)
    assert isinstance(chosen.call, ReplaceCall)
    again = replace(chosen, process=OTHER_LANE, call=replace(chosen.call, value=NEW_VALUE))
    return _with(partition, again)


def transaction_won_twice(partition: Partition, generator: random.Random) -> Partition | None:
    """The same for a transaction, of which each write expects a value."""
    found = [
        each
        for each in _accepted(partition)
        if isinstance(each.call, TransactCall)
        and any(isinstance(write, ReplaceCall) and write.expected is not None for write in each.call.writes)
    ]
    if not found:
        return None
    chosen = generator.choice(found)
    assert isinstance(chosen.call, TransactCall)
    writes = tuple(replace(write, value=f"{NEW_VALUE} {write.key}") for write in chosen.call.writes)
    return _with(partition, replace(chosen, process=OTHER_LANE, call=TransactCall(writes)))


def update_lost(partition: Partition, generator: random.Random) -> Partition | None:
    """A call replaces the value before the one that it has seen, as if the write in between had never been."""
    by_value = {_written(each): each for each in _accepted(partition) if _expected(each)}
    pairs = [
        (before, each)
        for each in _accepted(partition)
        if _expected(each) and (before := by_value.get(_expected(each))) is not None
    ]
    if not pairs:
        return None
    before, after = generator.choice(pairs)
    assert isinstance(after.call, ReplaceCall)
    changed = replace(after, call=replace(after.call, expected=_expected(before)))
    return _instead(partition, after, changed)


def read_stale(partition: Partition, generator: random.Random) -> Partition | None:
    """A read returns a value that was replaced by a write that had ended before the read began."""
    writes = [each for each in _accepted(partition) if isinstance(each.call, StoreCall | ReplaceCall)]
    found = [
        (old, read)
        for read in partition.calls
        if isinstance(read.call, GetCall)
        for old, new in _in_order(writes)
        if _keys(old) == _keys(new) == {read.call.key} and _is_before(new, read)
    ]
    if not found:
        return None
    old, read = generator.choice(found)
    return _instead(partition, read, replace(read, outcome=Observed((_written(old),))))


def transaction_halved(partition: Partition, generator: random.Random) -> Partition | None:
    """A snapshot has one value of a transaction, and at its other key none: nothing deletes keys of a transaction."""
    found = [each for each in _accepted(partition) if isinstance(each.call, TransactCall)]
    if not found:
        return None
    chosen = generator.choice(found)
    (key, value), (other, _) = writes_of(chosen.call)
    near = generator.choice(partition.calls)
    end_ns = near.end_ns or near.start_ns
    read = RecordedCall(OTHER_LANE, 0, near.start_ns, end_ns, SnapshotCall((key, other)), Observed((value, None)))
    return _with(partition, read)


def event_missed(partition: Partition, generator: random.Random) -> Partition | None:
    """The watch does not show the write of a call that was accepted."""
    written = {pair for each in _accepted(partition) for pair in writes_of(each.call) if pair[1] is not None}
    places = [at for at, event in enumerate(_watched(partition)) if event in written]
    if not places:
        return None
    at = generator.choice(places)
    events = _watched(partition)
    return replace(partition, watched=((*events[:at], *events[at + 1 :]),))


def event_repeated(partition: Partition, generator: random.Random) -> Partition | None:
    """The watch shows a value twice, which one call alone has written."""
    events = _watched(partition)
    places = [at for at, event in enumerate(events) if event[1] is not None]
    if not places:
        return None
    at = generator.choice(places)
    return replace(partition, watched=((*events[: at + 1], *events[at:]),))


def value_popped_twice(partition: Partition, generator: random.Random) -> Partition | None:
    """A second caller pops the same value of a log, which was appended once."""
    found = [
        each
        for each in partition.calls
        if isinstance(each.call, LogPopCall) and isinstance(each.outcome, Observed) and each.outcome.values[0]
    ]
    return _with(partition, replace(generator.choice(found), process=OTHER_LANE)) if found else None


def value_read_after_pop(partition: Partition, generator: random.Random) -> Partition | None:
    """A read of a log that began after a pop had ended has the value that was popped, and nothing else."""
    found = [
        each
        for each in partition.calls
        if isinstance(each.call, LogPopCall) and isinstance(each.outcome, Observed) and each.outcome.values[0]
    ]
    if not found:
        return None
    chosen = generator.choice(found)
    assert isinstance(chosen.call, LogPopCall)
    assert isinstance(chosen.outcome, Observed)
    end_ns = (chosen.end_ns or chosen.start_ns) + 1
    return _with(
        partition, RecordedCall(OTHER_LANE, 0, end_ns, end_ns + 1, LogReadCall(chosen.call.log), chosen.outcome)
    )


MUTATIONS: Sequence[Mutation] = (
    plan_started_twice,
    compare_and_set_won_twice,
    transaction_won_twice,
    update_lost,
    read_stale,
    transaction_halved,
    event_missed,
    event_repeated,
    value_popped_twice,
    value_read_after_pop,
)


def mutants(partitions: Sequence[Partition], generator: random.Random) -> Iterator[tuple[str, Partition]]:
    """Yield illegal partitions for ever, one of each kind after the other, each with the name of its mutation.

    The orders of watches are removed, unless they are what is changed: otherwise they alone would give the change away.
    """
    while True:
        for mutation in MUTATIONS:
            changed = None
            while changed is None:
                changed = mutation(generator.choice(partitions), generator)
            is_watch = mutation in {event_missed, event_repeated}
            yield mutation.__name__, changed if is_watch else replace(changed, watched=())


def _accepted(partition: Partition) -> list[RecordedCall]:
    return [each for each in partition.calls if each.outcome == Accepted()]


def _expected(recorded: RecordedCall) -> str | None:
    """The value that a compare-and-set has replaced; None for a call of another kind, or one that expects no value."""
    return recorded.call.expected if isinstance(recorded.call, ReplaceCall) else None


def _written(recorded: RecordedCall) -> str | None:
    ((_, value),) = writes_of(recorded.call)
    return value


def _keys(recorded: RecordedCall) -> set[str]:
    return {key for key, _ in writes_of(recorded.call)}


def _is_before(first: RecordedCall, second: RecordedCall) -> bool:
    return first.end_ns is not None and first.end_ns < second.start_ns


def _in_order(calls: Sequence[RecordedCall]) -> Iterator[tuple[RecordedCall, RecordedCall]]:
    """Yield the pairs of calls of which the first had ended before the second began."""
    return ((first, second) for first in calls for second in calls if _is_before(first, second))


def _watched(partition: Partition) -> tuple[tuple[str, str | None], ...]:
    return partition.watched[0] if partition.watched else ()


def _with(partition: Partition, recorded: RecordedCall) -> Partition:
    return replace(partition, calls=(*partition.calls, recorded))


def _instead(partition: Partition, old: RecordedCall, new: RecordedCall) -> Partition:
    return replace(partition, calls=tuple(new if each is old else each for each in partition.calls))
