"""A state owner with an index of hot fragments, and a client that reads it. The test says when it is published."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.commands import GetFragment, StoreFragment, StoreOptions
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.reader import index_reader
from stepwell.memory.reader.index_reader import IndexReader, KnownRecord
from stepwell.memory.reader.mappings import Mappings
from stepwell.memory.writer import fragment_index
from stepwell.protocol.fragment_index import SEQUENCE, VALID_UNTIL

ORIGIN = Origin("session", 1_000)
FOR_EVER_NS = 2**62
STEPS_MAX = 10_000


class BootClock:
    """The clock of the machine since its start, which stands still until it is put forward."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.wall_ms = 1_000  # the reader's time of day, which may differ from the manager's

    def clock_gettime_ns(self, clock: int) -> int:
        assert clock == self.CLOCK_BOOTTIME
        return self.now_ns

    def time_ns(self) -> int:
        return self.wall_ms * 1_000_000

    def forward(self, ms: int) -> None:
        self.now_ns += ms * 1_000_000


class IndexHarness:
    """The manager's side and one reader. What the manager retires is told to the reader by `retire`."""

    def __init__(self, clock: BootClock, budget: TierBudget | None = None) -> None:
        self.clock = clock
        self.owner = StateOwner(budget, has_index=True)
        self.index = self.owner.index
        self.mappings = Mappings()
        self.reader = IndexReader(self.mappings)
        self.now_ms = 1_000

    def do(self, *commands: Command[Reply]) -> None:
        for command in commands:
            self.owner.execute(command, ORIGIN)

    def do_together(self, *commands: Write[Reply]) -> None:
        self.owner.execute_all(commands, ORIGIN)

    def store(
        self,
        name: str,
        body: bytes = b"",
        project: str = "p",
        tier: Tier = Tier.HOT,
        options: StoreOptions | None = None,
    ) -> None:
        self.do(StoreFragment(project, name, body or name.encode(), 1, tier, options=options))

    def publish(self) -> None:
        self.index.publish(self.now_ms)

    def open(self, *names: str) -> None:
        """Ask for fragments, which opens the index, and let the reader map it."""
        self.do(*(GetFragment("p", name) for name in names))
        self.publish()
        self.share()

    def share(self) -> None:
        """Give the reader the segments of the index and of all bodies, as answers would."""
        slots, cells = self.index.segments
        for segment in (slots, cells, *self.owner.bodies.arena.segments.values()):
            self.mappings.map_segment(segment.number, segment.size, os.dup(segment.descriptor))
        self.reader.open(slots.number, cells.number, self.index.key)

    def retire(self) -> list[int]:
        """Close what has gone out of use, and tell the reader; return the numbers of the segments."""
        gone = [*self.owner.bodies.close_retired(), *self.index.close_retired()]
        numbers = [number for number, _ in gone]
        self.mappings.retire(numbers)
        self.reader.close_unmapped()
        return numbers

    def work(self) -> None:
        """Do all the work of the index, published after each slice."""
        for _ in range(STEPS_MAX):
            if not self.index.work():
                self.publish()
                return
            self.publish()
        raise AssertionError("the work has no end")

    def find(self, name: str, project: str = "p") -> KnownRecord | None:
        return self.reader.find((project, name), FOR_EVER_NS)

    def read(self, name: str, project: str = "p") -> tuple[FragmentRow, bytes] | None:
        """What the reader finds: a row, and the bytes of its body."""
        found = self.find(name, project)
        return None if found is None else (found.row, bytes(self.mappings.find(found.handle)))

    def row(self, name: str, project: str = "p") -> FragmentRow:
        entry = self.owner._state.fragments.find(project, name)
        assert entry is not None
        return entry.row

    @property
    def words(self) -> memoryview:
        assert self.index._slots is not None
        return self.index._slots.words

    @property
    def sequence(self) -> int:
        return int(self.words[SEQUENCE])

    @property
    def valid_until_ns(self) -> int:
        return int(self.words[VALID_UNTIL])

    def close(self) -> None:
        self.reader.close()
        self.mappings.close()
        self.owner.close()


@contextmanager
def index_harness(budget: TierBudget | None = None) -> Iterator[IndexHarness]:
    """Yield a harness on a clock that stands still."""
    clock = BootClock()
    with pytest.MonkeyPatch.context() as patch:
        for module in (fragment_index, index_reader):
            patch.setattr(module, "time", clock)
        made = IndexHarness(clock, budget)
        try:
            yield made
        finally:
            made.close()
