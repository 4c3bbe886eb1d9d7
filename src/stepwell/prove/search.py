"""The search of Wing and Gong, with the cache of Lowe, for one order of the calls that explains all outcomes.

The starts and the ends of all calls are a doubly linked list in the order of time. A call may come first if its start
is before every end in the list, because then no other call has ended before it began. The search takes such a call out
of the list, with its end, if the model allows its outcome in the present state, and goes on with the rest. If it comes
to an end first, the call that has ended there can no longer be placed: it puts the last call back and tries the next.

The cache has every pair of placed calls and state that was reached. To reach one of them a second time is of no use,
whatever order led there. A call without an answer has no end in the list; a history is explained when all calls with
an answer are placed.

Two calls are in order only if one ended before the other began. If both happened at the same nanosecond, they overlap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import TypeVar

from stepwell import limits
from stepwell.prove.history import RecordedCall
from stepwell.prove.models import Model
from stepwell.text import PlainEnum

S = TypeVar("S", bound=Hashable)


class SearchResult(PlainEnum):
    """The result of a search. It is undecided if the search took more steps than it may."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    UNDECIDED = "undecided"


def search(
    calls: Sequence[RecordedCall],
    model: Model[S],
    initial: S,
    *,
    steps_max: int = limits.PROVE_SEARCH_STEPS_MAX,
) -> SearchResult:
    """Look for an order of the calls that the model allows, beginning in a state."""
    entries = _Entries(calls)
    reached: set[tuple[int, S]] = set()
    placed: list[tuple[int, S]] = []
    state, mask, open_count = initial, 0, entries.ended_count
    entry = entries.first()
    while open_count or not model.is_final(state):
        if entries.is_start(entry):
            number = entry - 1
            after = model.step(state, calls[number])
            if after is not None and (mask | 1 << number, after) not in reached:
                if len(reached) >= steps_max:
                    return SearchResult.UNDECIDED
                mask |= 1 << number
                reached.add((mask, after))
                placed.append((number, state))
                state = after
                open_count -= entries.remove(number)
                entry = entries.first()
            else:
                entry = entries.next(entry)
        elif placed:
            number, state = placed.pop()
            mask ^= 1 << number
            open_count += entries.restore(number)
            entry = entries.next(number + 1)
        else:
            return SearchResult.ILLEGAL
    return SearchResult.LEGAL


class _Entries:
    """The linked list. Entry 0 is both ends; call i has its start at i + 1 and its end at i + 1 + the number of calls.

    `restore` is called in the opposite order of `remove`, so that an entry finds its neighbours where it left them.
    """

    def __init__(self, calls: Sequence[RecordedCall]) -> None:
        self._count = len(calls)
        # A start sorts before an end of the same nanosecond.
        order = [(each.start_ns, 0, number + 1) for number, each in enumerate(calls)]
        ends = [
            (each.end_ns, 1, number + 1 + self._count) for number, each in enumerate(calls) if each.end_ns is not None
        ]
        self.ended_count = len(ends)
        line = [0, *(entry for _, _, entry in sorted([*order, *ends])), 0]
        self._next = [0] * (2 * self._count + 1)
        self._previous = [0] * (2 * self._count + 1)
        for before, after in pairwise(line):
            self._next[before], self._previous[after] = after, before
        self._has_end = [each.end_ns is not None for each in calls]

    def first(self) -> int:
        """Return the first entry, 0 if there is none."""
        return self._next[0]

    def next(self, entry: int) -> int:
        """Return the entry behind another one, 0 at the end."""
        return self._next[entry]

    def is_start(self, entry: int) -> bool:
        """Return True if an entry is the start of a call, and not an end or the end of the list."""
        return 0 < entry <= self._count

    def remove(self, number: int) -> bool:
        """Take the entries of a call out of the list. Return True if the call had an answer."""
        self._unlink(number + 1)
        if self._has_end[number]:
            self._unlink(number + 1 + self._count)
        return self._has_end[number]

    def restore(self, number: int) -> bool:
        """Put the entries of a call back. Return True if the call had an answer."""
        if self._has_end[number]:
            self._link(number + 1 + self._count)
        self._link(number + 1)
        return self._has_end[number]

    def _unlink(self, entry: int) -> None:
        self._next[self._previous[entry]] = self._next[entry]
        self._previous[self._next[entry]] = self._previous[entry]

    def _link(self, entry: int) -> None:
        self._next[self._previous[entry]] = entry
        self._previous[self._next[entry]] = entry
