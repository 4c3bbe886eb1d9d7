"""Stores into a full hot tier, each of which demotes a fragment: the cost must not grow with the number of fragments.

A runtime for each number of fragments, half of them hot and half of them warm. What is stored is always another body
for the least recently used: it comes from warm to hot, one goes from hot to warm, and their number stays as it is.
What a store leaves for later, when the manager is idle, stands beside it: with few fragments most of that is out of
date before it is done.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from typing import Final

import stepwell as sw
from benchmarks.fill import store_all
from benchmarks.manager_process import cpu_seconds, resident_bytes, wait_for_rest
from benchmarks.section import Figures, Goal, Section, Turn, in_rounds

ENTRIES: Final = (1_000, 100_000, 1_000_000)
STORES: Final = 2_000  # one at a time, in each round
BATCHES: Final = 200  # in each round: the kernel counts CPU in steps of 10 ms
BATCH: Final = 100
BODY_BYTES: Final = 128  # incompressible, so that the size of stored bodies is known

RATIO_MAX: Final = 1.3
CPU_MORE_US_MAX: Final = 5.0
OUTSIDE_BYTES_MAX: Final = 1_000.0

_ONE, _MANY, _MEMORY = "one at a time", f"batches of {BATCH}", "outside its body"
_LATER: Final = f"{_MANY}, left for later"


class Full:
    """A runtime with `entries` fragments and a full hot tier."""

    def __init__(self, entries: int, stack: ExitStack) -> None:
        self.name = f"stepwell, {entries:,} entries"
        self._entries = entries
        budget = sw.TierBudget(hot_tokens=entries // 2, warm_entries=entries)
        self._runtime = stack.enter_context(sw.Runtime.start(workers=0, budget=budget))
        self._client = stack.enter_context(self._runtime.client(projects=["p"]))
        self._fragments = self._in_turn()
        self._later_us = 0.0
        self._new_bytes = resident_bytes(self._runtime.pid)
        store_all(self._client, islice(self._fragments, entries))
        wait_for_rest(self._runtime.pid)

    def one_at_a_time(self, stores: int) -> float:
        """Return the median microseconds of a store, measured by the client."""
        taken: list[float] = []
        for fragment in islice(self._fragments, stores):
            begun = time.perf_counter()
            self._client.tiers.store(fragment)
            taken.append(time.perf_counter() - begun)
        wait_for_rest(self._runtime.pid)
        return statistics.median(taken) * 1e6

    def in_batches(self, batches: int) -> float:
        """Return the microseconds of the manager's CPU per store, until it is acknowledged."""
        before, stores = cpu_seconds(self._runtime.pid), 0
        for _ in range(batches):
            with self._client.batch() as batch:
                stored = [batch.tiers.store(fragment) for fragment in islice(self._fragments, BATCH)]
            stores += sum(map(_is_stored, stored))
        acknowledged = cpu_seconds(self._runtime.pid)
        wait_for_rest(self._runtime.pid)
        self._later_us = (cpu_seconds(self._runtime.pid) - acknowledged) / stores * 1e6
        return (acknowledged - before) / stores * 1e6

    def later(self) -> float:
        """Return the microseconds of CPU per store after that, until the manager is idle."""
        return self._later_us

    def outside_bytes(self) -> float:
        """Return the bytes of the manager's memory per fragment, private and shared, without its body."""
        held = self._client.tiers.metrics()
        assert (held.hot.entries, held.warm.entries) == (self._entries // 2, self._entries - self._entries // 2)
        grown = resident_bytes(self._runtime.pid) - self._new_bytes
        return grown / self._entries - BODY_BYTES

    def _in_turn(self) -> Iterator[sw.Fragment]:
        """Yield all fragments over and over, each time with a new body."""
        while True:
            for number in range(self._entries):
                yield sw.Fragment(fragment_id=f"f{number}", body=os.urandom(BODY_BYTES), tokens=1)


def _is_stored(pending: sw.types.Pending[sw.types.FragmentPlaced]) -> bool:
    """Return True if a store succeeded. A busy manager may refuse the end of a batch."""
    try:
        return pending.result().tier is sw.Tier.HOT
    except sw.Busy:
        return False


def run(rounds: int, entries: Sequence[int] = ENTRIES, stores: int = STORES, batches: int = BATCHES) -> list[Section]:
    """Measure each number of fragments in each round; a runtime is filled once."""
    with ExitStack() as stack:
        full = [Full(count, stack) for count in entries]
        turns: dict[tuple[str, str], Turn] = {(_ONE, each.name): partial(each.one_at_a_time, stores) for each in full}
        turns |= {(_MANY, each.name): partial(each.in_batches, batches) for each in full}
        turns |= {(_LATER, each.name): each.later for each in full}
        turns |= {(_MEMORY, each.name): each.outside_bytes for each in full}
        figures, _ = in_rounds(rounds, turns)
    one, many, later, memory = (
        [each for each in figures if each.work == work] for work in (_ONE, _MANY, _LATER, _MEMORY)
    )
    least, most = full[0].name, full[-1].name
    more = f"{most}, less {least.removeprefix('stepwell, ')}"
    differences = tuple(round(high - low, 6) for low, high in zip(many[0].values, many[-1].values, strict=True))
    title = "Every store demotes another fragment"
    return [
        Section(
            title=f"{title}: a store as its client sees it",
            unit="µs",
            figures=tuple(one),
            goals=(Goal(_ONE, most, "at most", RATIO_MAX, least),),
        ),
        Section(
            title=f"{title}: the manager's CPU for a store",
            unit="µs",
            figures=(*many, Figures(_MANY, more, differences), *later),
            goals=(Goal(_MANY, more, "at most", CPU_MORE_US_MAX),),
        ),
        Section(
            title=f"{title}: the manager's memory for a fragment",
            unit="bytes",
            figures=tuple(memory),
            goals=(Goal(_MEMORY, most, "at most", OUTSIDE_BYTES_MAX),),
        ),
    ]
