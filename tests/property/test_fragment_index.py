"""The index of reads against the manager: a lookup returns nothing, or exactly what a request would.

The hash table and the slots are tiny, and so are the slices of work, so that the table grows, slots run out and bodies
are moved all the time. The reader keeps what it knows from step to step, and is told late of what was retired.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stepwell import limits
from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import FragmentFound, Reply
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    PeekFragment,
    PromoteFragment,
    SetBudget,
    StoreFragment,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import BodyGone, Busy, NotFound, TierFull, TransactionAborted
from stepwell.limits import KIB, MIB
from stepwell.memory.reader import index_reader
from stepwell.memory.reader.mappings import content
from stepwell.memory.writer import fragment_index
from stepwell.protocol.fragment_index import SEQUENCE
from tests.support.memory.bodies import compressible, noise
from tests.support.memory.fragment_index import BootClock, IndexHarness

TINY = {
    "INDEX_CELLS_MIN": 8,
    "INDEX_CELLS_MAX": 32,
    "INDEX_GROWTH": 2,
    "INDEX_CELLS_PER_SLICE": 2,
    "INDEX_ROWS_PER_SLICE": 2,
    "INDEX_KNOWN_MAX": 5,
    "INDEX_KNOWN_PARTS": 2,
    "SEGMENT_BYTES_MIN": 16 * KIB,
    "ALLOCATION_BYTES": KIB,
    "WORK_BYTES_PER_SLICE": 4 * KIB,
    "WORK_SECONDS_MAX": 0.0,
}
PROJECTS = "pq"
NAMES = "abcdefghijkl"
projects, names = st.sampled_from(PROJECTS), st.sampled_from(NAMES)
bodies = st.builds(
    lambda make, size, salt: make(size, salt),
    st.sampled_from([compressible, noise]),
    st.sampled_from([0, 1, 100, 3_000, 9_000]),
    st.integers(0, 5),
)
metadata = st.sampled_from([{}, {}, {"k": "v"}, {"k": "v" * 400}, {"k": "v" * 1_000}, {"k": "v" * 3_000}])
stores = st.builds(
    StoreFragment, projects, names, bodies, st.integers(1, 4), st.sampled_from([*Tier, Tier.HOT]), metadata=metadata
)
moves = st.one_of(
    *(st.builds(kind, projects, names) for kind in (DeleteFragment, PromoteFragment, DemoteFragment)),
    st.builds(EvictLru, st.sampled_from(Tier), st.integers(1, 3)),
    st.builds(SetBudget, st.builds(TierBudget, hot_tokens=st.sampled_from([8, 30, 1_000]), arena_bytes=st.just(MIB))),
)
reads = st.builds(GetFragment, projects, names) | st.builds(PeekFragment, projects, names)


class Index(RuleBasedStateMachine):
    """A manager, and a reader that is mapped whatever a client would have been given."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in TINY.items():
            self.patch.setattr(limits, name, value)
        clock = BootClock()
        for module in (fragment_index, index_reader):
            self.patch.setattr(module, "time", clock)
        self.harness = IndexHarness(clock, TierBudget(arena_bytes=MIB))

    @initialize(slots=st.sampled_from([6, 20, 1_000]))
    def begin(self, slots: int) -> None:
        self.patch.setattr(limits, "INDEX_SLOTS_MAX", slots)

    def do(self, command: Command[Reply]) -> None:
        with contextlib.suppress(TierFull, Busy, NotFound):
            self.harness.owner.execute(command, Origin("session", 1))

    def end_turn(self) -> None:
        self.harness.publish()
        if self.harness.index:
            self.harness.share()

    @rule(commands=st.lists(stores | moves | reads, min_size=1, max_size=6))
    def turn(self, commands: Sequence[Command[Reply]]) -> None:
        for command in commands:
            self.do(command)
        self.end_turn()

    @rule(commands=st.lists(stores | reads, min_size=1, max_size=6))
    def turn_of_simple_commands(self, commands: Sequence[Command[Reply]]) -> None:
        """As the loop executes a run: by shortcuts as far as possible."""
        rest = [*commands]
        while rest:
            done = len(self.harness.owner.execute_simple(rest, Origin("session", 1)))
            if not done:
                self.do(rest[0])
            del rest[: done or 1]
        self.end_turn()

    @rule(commands=st.lists(stores | st.builds(DeleteFragment, projects, names), min_size=1, max_size=4))
    def transact(self, commands: Sequence[Write[Reply]]) -> None:
        with contextlib.suppress(TransactionAborted, TierFull, Busy):
            self.harness.owner.execute_all(commands, Origin("session", 1))
        self.end_turn()

    @rule(counts=st.dictionaries(names, st.integers(1, 9), max_size=4), project=projects)
    def report(self, counts: dict[str, int], project: str) -> None:
        """Reads that a client has made change no row, and nothing that is published."""
        revision = self.harness.owner._state.revision
        self.harness.owner.count_reads([(project, name, count) for name, count in counts.items()], Origin("session", 2))
        assert self.harness.owner._state.revision == revision
        self.end_turn()

    @rule(steps=st.integers(1, 6), is_published=st.booleans())
    def work(self, steps: int, *, is_published: bool) -> None:
        """Some idle moments, in which the index is filled and grows, and bodies are moved."""
        for _ in range(steps):
            self.harness.owner.work()
            if is_published:
                self.end_turn()

    @rule()
    def retire(self) -> None:
        self.harness.retire()

    @invariant()
    def lookups_are_right(self) -> None:
        """Nothing, or the row and the bytes that a request would return, of a hot fragment. No request is made here."""
        harness = self.harness
        fragments = harness.owner._state.fragments
        if not harness.index or harness.index._changed:
            return  # what is noted is published with the next turn
        assert harness.words[SEQUENCE] % 2 == 0
        for project in PROJECTS:
            for name in NAMES:
                found = harness.find(name, project)
                if found is None:
                    continue
                entry = fragments.find(project, name)
                assert entry is not None
                assert found.row == entry.row
                assert found.row.tier is Tier.HOT
                try:
                    stored = harness.mappings.find(found.handle)
                except BodyGone:
                    continue  # the client asks
                expected = harness.owner.bodies.handles[entry.row.digest]
                segment = harness.owner.bodies.segment(expected.segment)
                raw = memoryview(segment.read(expected.offset, expected.stored))
                assert content(stored, found.handle) == content(raw, expected)

    @invariant()
    def index_has_hot_fragments_only(self) -> None:
        """Each with a slot and at most a cell of its own; no slot is lost."""
        index = self.harness.index
        if not index or index._changed:
            return
        places = {(project, name): slot for project, of in index._places.items() for name, slot in of.items()}
        entries = self.harness.owner._state.fragments.entries
        assert all(entries[key].row.tier is Tier.HOT for key in places)
        assert len({*places.values()}) == len(places) == len(index)
        assert {*index._handles} == {*places.values()}
        assert index._cells is not None
        assert index._cells.count <= len(index)

    @rule(project=projects, name=names)
    def peek(self, project: str, name: str) -> None:
        """The same by a request."""
        found = self.harness.find(name, project)
        if found is None or self.harness.index._changed:
            return
        reply = self.harness.owner.execute(PeekFragment(project, name), Origin("session", 1)).reply
        assert isinstance(reply, FragmentFound)
        assert reply.row == found.row
        self.end_turn()

    def teardown(self) -> None:
        self.harness.close()
        self.patch.undo()


TestIndex = Index.TestCase
