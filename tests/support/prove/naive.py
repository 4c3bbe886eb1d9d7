"""The definition of linearizability, tried literally: all orders of all subsets. It is for tiny histories only."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, combinations, permutations
from typing import TypeVar

from stepwell.prove.history import RecordedCall
from stepwell.prove.models import Model

S = TypeVar("S", bound=Hashable)


def is_legal(calls: Sequence[RecordedCall], model: Model[S]) -> bool:
    """Return True if some order explains all calls with an answer, and any of those without one."""
    answered = [each for each in calls if each.end_ns is not None]
    others = [each for each in calls if each.end_ns is None]
    subsets = chain.from_iterable(combinations(others, size) for size in range(len(others) + 1))
    return any(
        _keeps_real_time(order) and _is_explained(order, model)
        for chosen in subsets
        for order in permutations([*answered, *chosen])
    )


def _keeps_real_time(order: Sequence[RecordedCall]) -> bool:
    """Return True if no call comes after one that began only after the call had ended."""
    return not any(
        later.end_ns is not None and later.end_ns < earlier.start_ns for earlier, later in combinations(order, 2)
    )


def _is_explained(order: Sequence[RecordedCall], model: Model[S]) -> bool:
    """Return True if the model allows every outcome in this order."""
    state: S | None = model.initial()
    for each in order:
        assert state is not None
        state = model.step(state, each)
        if state is None:
            return False
    assert state is not None
    return model.is_final(state)
