"""A state owner whose projects are viewed: a catalogue has to say what the table holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.commands import DeleteFragment, DemoteFragment, PromoteFragment, StoreFragment
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.limits import MIB
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.reader.catalogue_reader import CatalogueState, changes, replay
from stepwell.memory.writer.segments import MemorySegment
from stepwell.protocol.handles import CatalogueEnd, Handle

ORIGIN = Origin("session", 1_000)
TURNS_MAX = 10_000


class CatalogueHarness:
    """Fragments of some projects, and views of them."""

    def __init__(self, arena_bytes: int = 32 * MIB) -> None:
        self.owner = StateOwner(TierBudget(arena_bytes=arena_bytes))
        self.found: list[int] = []  # segments that were read
        self.now_s = 0.0

    def do(self, *commands: Command[Reply]) -> None:
        for command in commands:
            self.owner.execute(command, ORIGIN)

    def do_together(self, *commands: Write[Reply]) -> None:
        self.owner.execute_all(commands, ORIGIN)

    def store(self, name: str, body: bytes = b"", project: str = "p", tier: Tier = Tier.HOT) -> None:
        self.do(StoreFragment(project, name, body or name.encode(), 1, tier))

    def delete(self, name: str, project: str = "p") -> None:
        self.do(DeleteFragment(project, name))

    def demote(self, name: str, project: str = "p") -> None:
        self.do(DemoteFragment(project, name))

    def promote(self, name: str, project: str = "p") -> None:
        self.do(PromoteFragment(project, name))

    def work(self) -> None:
        """Everything that there is to do."""
        for _ in range(TURNS_MAX):
            if not self.owner.work():
                return
        raise AssertionError("the work has no end")

    def list_slice(self) -> bool:
        """One slice of listing, and nothing else; whether there may be more."""
        return self.owner._catalogues.work()

    def try_open(self, project: str = "p") -> CatalogueEnd | None:
        ends = self.owner.open_view([project], Origin("test", 0), self.now_s)
        return ends[0] if ends else None

    def open(self, project: str = "p") -> CatalogueEnd:
        """The end of a project's catalogue, once it is listed."""
        for _ in range(TURNS_MAX):
            if end := self.try_open(project):
                return end
            self.list_slice()
        raise AssertionError("the listing has no end")

    def find(self, number: int) -> memoryview:
        self.found.append(number)
        segment = self.owner.bodies.segment(number)
        assert isinstance(segment, MemorySegment)
        return segment.view[:].toreadonly()

    def view(self, project: str = "p", before: CatalogueState | None = None) -> CatalogueState:
        """A project, replayed; it is what the table holds."""
        replayed = replay(self.open(project), self.find, before)
        assert_same(replayed, self.rows(project), self.handles(project))
        return replayed

    def since(self, revision: int, project: str = "p") -> CatalogueState | None:
        return changes(self.open(project), self.find, revision)

    def rows(self, project: str = "p") -> dict[str, FragmentRow]:
        entries = self.owner._state.fragments.created_after(project, 0)
        return {entry.row.fragment_id: entry.row for entry in entries}

    def handles(self, project: str = "p") -> dict[bytes, Handle]:
        return self.owner.bodies.locate(row.digest for row in self.rows(project).values())


def assert_same(replayed: CatalogueState, rows: dict[str, FragmentRow], handles: dict[bytes, Handle]) -> None:
    """Every row, and where its body is now."""
    assert replayed.rows == rows
    assert replayed.in_order.rows == tuple(rows.values())
    assert {row.digest: replayed.handles[row.digest] for row in replayed.rows.values()} == handles


@contextmanager
def catalogue_harness(arena_bytes: int = 32 * MIB) -> Iterator[CatalogueHarness]:
    """Yield a harness whose owner is closed in the end."""
    made = CatalogueHarness(arena_bytes)
    try:
        yield made
    finally:
        made.owner.close()
