"""Bytes against a dict: whatever is done, and however little of the work, every body is readable and right.

The arena is tiny, and so is a slice of work, so that bodies change their form, segments are emptied and catalogues
are listed anew all the time, with everything else happening in between.
"""

from __future__ import annotations

import contextlib
import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stepwell import limits
from stepwell.domain import invariants
from stepwell.domain.commands import Command, Write
from stepwell.domain.replies import FragmentsMoved, Reply
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    PromoteFragment,
    SetBudget,
    StoreFragment,
)
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import Busy, NotFound, TierFull, TransactionAborted
from stepwell.limits import KIB, MIB
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.reader.catalogue_reader import CatalogueState, changes, replay
from stepwell.memory.reader.mappings import Mappings, content
from stepwell.memory.writer.arena import Arena, record_bytes
from stepwell.memory.writer.upload import Upload
from stepwell.protocol.handles import CatalogueEnd, Handle
from stepwell.protocol.messages import CommandResult
from tests.support.memory.bodies import compressible, fill, noise

TINY = {
    "SEGMENT_BYTES_MIN": 16 * KIB,
    "FILE_SEGMENT_BYTES": 64 * KIB,
    "ALLOCATION_BYTES": 8 * KIB,
    "PREPARED_BYTES_PER_TURN": 8 * KIB,
    "WORK_BYTES_PER_SLICE": 4 * KIB,
    "CATALOGUE_SEGMENT_BYTES_MIN": 4 * KIB,
    "CATALOGUE_SEGMENT_BYTES_MAX": 16 * KIB,
    "CATALOGUE_ROWS_PER_SLICE": 3,
    "CATALOGUE_RECORDS_MIN": 8,
    "WORK_SECONDS_MAX": 0.0,
}
ARENA = MIB
WORK_STEPS_MAX = 500

SIZES = st.sampled_from([0, 1, 100, 3_000, 5_000, 20_000, 33_000, 64 * KIB])
BODIES = st.builds(
    lambda make, size, salt: make(size, salt), st.sampled_from([compressible, noise]), SIZES, st.integers(0, 5)
)
PROJECTS = st.sampled_from("pq")
NAMES = st.sampled_from("abcdefgh")
TIERS = st.sampled_from([*Tier])
STORES = st.builds(StoreFragment, PROJECTS, NAMES, BODIES, st.just(1), TIERS)
Key = tuple[str, str]


class Memory(RuleBasedStateMachine):
    """An owner, a client that has mapped some of its segments, and a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in TINY.items():
            self.patch.setattr(limits, name, value)
        self.owner = StateOwner(TierBudget(arena_bytes=ARENA))
        self.model: dict[Key, bytes] = {}
        self.mappings = Mappings()
        self.given: dict[Handle, bytes] = {}  # handles that were handed out, and what they stood for
        self.held: list[tuple[memoryview, Handle, bytes]] = []  # what a client looks at
        self.uploads: dict[int, tuple[Upload, bytes]] = {}  # on their way
        self.staged: list[bytes] = []
        self.views: dict[str, list[tuple[int, CatalogueState]]] = {"p": [], "q": []}
        self.now_s = 0.0

    @initialize(bodies=st.lists(BODIES, max_size=12))
    def begin(self, bodies: list[bytes]) -> None:
        for number, body in enumerate(bodies):
            self.do(StoreFragment("p", f"first {number}", body, 1))

    def do(self, command: Command[Reply]) -> CommandResult | None:
        """One command. It may find no room, or nothing to do it to; then nothing has happened to any body."""
        try:
            answer = self.owner.execute(command, Origin("session", 1))
        except (TierFull, Busy, NotFound):
            return None
        if isinstance(command, StoreFragment):
            assert isinstance(command.body, bytes)
            self.model[command.project, command.fragment_id] = command.body
        if isinstance(command, DeleteFragment):
            del self.model[command.project, command.fragment_id]
        if isinstance(answer.reply, FragmentsMoved):
            for move in answer.reply.moves:
                if move.target is None:
                    del self.model[move.project, move.fragment_id]
        return answer

    @rule(command=STORES)
    def store(self, command: StoreFragment) -> None:
        self.do(command)

    @rule(commands=st.lists(STORES | st.builds(DeleteFragment, PROJECTS, NAMES), max_size=6))
    def transact(self, commands: list[Write[Reply]]) -> None:
        after = dict(self.model)
        for command in commands:
            match command:
                case StoreFragment(project, name, bytes() as body):
                    after[project, name] = body
                case DeleteFragment(project, name):
                    after.pop((project, name), None)
                case _:
                    pass
        try:
            self.owner.execute_all(commands, Origin("session", 1))
        except (TransactionAborted, TierFull, Busy):
            return
        self.model = after

    @rule(command=st.builds(DeleteFragment, PROJECTS, NAMES))
    def delete(self, command: DeleteFragment) -> None:
        self.do(command)

    @rule(kind=st.sampled_from([PromoteFragment, DemoteFragment]), data=st.data())
    @precondition(lambda self: self.model)
    def move(self, kind: type[PromoteFragment | DemoteFragment], data: st.DataObject) -> None:
        self.do(kind(*data.draw(st.sampled_from([*self.model]))))

    @rule(tier=TIERS, count=st.integers(1, 5))
    def evict(self, tier: Tier, count: int) -> None:
        self.do(EvictLru(tier, count))

    @rule(arena_bytes=st.sampled_from([ARENA, ARENA, ARENA // 2, ARENA // 4]))
    def set_budget(self, arena_bytes: int) -> None:
        self.do(SetBudget(TierBudget(arena_bytes=arena_bytes)))

    @rule(data=st.data())
    @precondition(lambda self: self.model)
    def get(self, data: st.DataObject) -> None:
        """A reader is given a handle, and keeps it."""
        key = data.draw(st.sampled_from([*self.model]))
        answer = self.do(GetFragment(*key))
        assert answer is not None
        (handle,) = answer.handles.values()
        self.share(handle)
        self.given[handle] = self.model[key]
        stored = self.mappings.find(handle)
        assert content(stored, handle) == self.model[key]
        self.held.append((stored, handle, self.model[key]))

    @rule(number=st.integers(0, 3), body=BODIES)
    def offer(self, number: int, body: bytes) -> None:
        """Somebody begins to upload a body, or goes on with it, or gives up."""
        if number not in self.uploads:
            try:
                upload = self.owner.reserve(len(body), 0, Origin("session", 1))
                if upload is None:
                    return
            except TierFull:
                return
            self.uploads[number] = upload, body
        elif not self.uploads[number][0].prepare():
            self.uploads.pop(number)[0].abandon()

    @rule(data=st.data(), key=st.tuples(PROJECTS, NAMES), tier=TIERS, wanted=st.booleans())
    @precondition(lambda self: self.uploads)
    def upload(self, data: st.DataObject, key: Key, tier: Tier, wanted: bool) -> None:  # noqa: FBT001
        """The bytes of an upload have come, and it is stored, or nobody wants it after all."""
        upload, body = self.uploads.pop(data.draw(st.sampled_from([*self.uploads])))
        while not upload.prepare():
            pass
        fill(upload, body)
        held = self.owner.bodies.stage(upload)
        assert held == (digest_of(body), len(body))
        self.staged.append(held[0])
        if wanted:
            with contextlib.suppress(TierFull, Busy):
                self.owner.execute(StoreFragment(*key, 1, 1, tier), Origin("session", 1, uploads={1: held}))
                self.model[key] = body

    @rule()
    @precondition(lambda self: self.staged)
    def unstage(self) -> None:
        self.owner.bodies.unstage(self.staged.pop())

    @rule(steps=st.integers(1, 40))
    def work(self, steps: int) -> None:
        """Some slices, with a look at everything after each."""
        for _ in range(steps):
            if not self.owner.bodies.background.work(0):
                break
            self.bodies_are_right()

    @rule()
    def work_all(self) -> None:
        for _ in range(WORK_STEPS_MAX):
            if not self.owner.work():
                return
        raise AssertionError("the work has no end")

    @rule()
    def retire(self) -> None:
        """What is gone is told to the client."""
        self.mappings.retire(number for number, _ in self.owner.bodies.close_retired())

    @rule(seconds=st.sampled_from([0.0, 0.0, 2 * limits.CATALOGUE_IDLE_SECONDS]))
    def housekeep(self, seconds: float) -> None:
        self.now_s += seconds
        self.owner.housekeep(self.now_s)

    @rule(steps=st.integers(1, 3))
    def list_rows(self, steps: int) -> None:
        for _ in range(steps):
            self.owner._catalogues.work()

    @rule(project=PROJECTS, anew=st.booleans())
    def look(self, project: str, anew: bool) -> None:  # noqa: FBT001
        """A view, as far as its catalogue is listed, is what the table holds; so is it with what was known before."""
        end = self.opened(project)
        if end is None:
            return
        known = self.views[project]
        before = known[-1][1] if known and not anew else None
        view = replay(end, self.segment, before)
        rows = self.rows(project)
        assert view.rows == rows
        assert view.in_order.rows == tuple(sorted(rows.values(), key=lambda row: row.serial))
        for row in rows.values():
            handle = self.owner.bodies.find(row.digest)
            assert handle is not None
            assert view.handles[row.digest] == handle
            self.given[handle] = self.model[row.key]
        known.append((self.owner.revision, view))

    @rule(project=PROJECTS, data=st.data())
    @precondition(lambda self: any(self.views.values()))
    def difference(self, project: str, data: st.DataObject) -> None:
        """What changed since an earlier view leads from that to what there is now, or cannot be told."""
        if not self.views[project] or (end := self.opened(project)) is None:
            return
        since, earlier = data.draw(st.sampled_from(self.views[project]))
        milestones = [None, *(seen.reached for _, seen in self.views[project])]
        found = changes(end, self.segment, since, data.draw(st.sampled_from(milestones)))
        if found is None:
            assert since < end.base_revision
            return
        kept = {name: row for name, row in earlier.rows.items() if name not in found.removed}
        assert {**kept, **found.rows} == self.rows(project)
        for row in found.rows.values():
            assert found.handles[row.digest] == self.owner.bodies.find(row.digest)

    def opened(self, project: str) -> CatalogueEnd | None:
        try:
            ends = self.owner.open_view([project], Origin("test", 0), self.now_s)
        except TierFull:
            return None
        return ends[0] if ends else None

    def rows(self, project: str) -> dict[str, FragmentRow]:
        entries = self.owner._state.fragments.created_after(project, 0)
        return {entry.row.fragment_id: entry.row for entry in entries}

    def segment(self, number: int) -> memoryview:
        segment = self.owner.bodies.segment(number)
        return memoryview(segment.read(0, segment.used))

    def share(self, handle: Handle) -> None:
        """The client is given a descriptor."""
        segment = self.owner.bodies.segment(handle.segment)
        self.mappings.map_segment(segment.number, segment.size, os.dup(segment.descriptor))

    def read(self, handle: Handle) -> bytes:
        stored = self.owner.bodies.segment(handle.segment).read(handle.offset, handle.stored)
        return bytes(content(memoryview(stored), handle))

    @invariant()
    def bodies_are_right(self) -> None:
        """Each fragment's body, through its handle."""
        state, bodies = self.owner._state, self.owner.bodies
        assert state.fragments.entries.keys() == self.model.keys()
        for key, entry in state.fragments.entries.items():
            handle = bodies.find(entry.row.digest)
            assert handle is not None
            assert self.read(handle) == self.model[key]

    @invariant()
    def domain_is_sound(self) -> None:
        assert invariants.check(self.owner._state) == []

    @invariant()
    def nothing_else_is_kept(self) -> None:
        """A body without references goes, unless somebody has just uploaded it."""
        wanted = {digest_of(body) for body in self.model.values()} | {*self.staged}
        assert self.owner.bodies.handles.keys() == wanted

    @invariant()
    def what_was_given_stays(self) -> None:
        """A handle means the same for as long as its segment is there, and what is held longer still."""
        bodies = self.owner.bodies
        there = {*bodies.arena.segments, *bodies.files.segments}
        self.given = {handle: body for handle, body in self.given.items() if handle.segment in there}
        for handle, body in self.given.items():
            assert self.read(handle) == body
        for stored, handle, body in self.held:
            assert content(stored, handle) == body

    @invariant()
    def sums_are_right(self) -> None:
        arena, files = self.owner.bodies.arena, self.owner.bodies.files
        assert arena.bytes <= arena.limit or (arena._exceeds_limit and arena.bytes <= ARENA)
        reserved = [upload.place.length for upload, _ in self.uploads.values()]
        logs = [log for each in self.owner._catalogues._by_project.values() for log in each.logs]
        listed = [segment.size for log in logs for segment in log._segments]
        self._sum(arena, reserved, listed)
        self._sum(files, [], [])

    def _sum(self, arena: Arena, reserved: list[int], listed: list[int]) -> None:
        kept = [each.stored for each in self.owner.bodies.handles.values() if each.segment in arena.segments]
        live = sum(map(record_bytes, (*kept, *reserved))) + sum(listed)
        pins = sum(segment.pins for segment in arena.segments.values()) - len(reserved) - len(listed)
        assert arena.bytes == sum(segment.size for segment in arena.segments.values())
        assert arena.live == sum(segment.live for segment in arena.segments.values())
        assert (arena.live > live) if pins else (arena.live == live)
        assert 0 <= pins <= 1  # a body that is being moved

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.held.clear()
            self.mappings.close()
            for upload, _ in self.uploads.values():
                upload.abandon()
            self.owner.close()
            self.patch.undo()

    def finish(self) -> None:
        """Whatever is left to do comes to an end, and without fragments there is nothing left."""
        self.work_all()
        self.bodies_are_right()
        self.owner.housekeep(self.now_s + 2 * limits.CATALOGUE_IDLE_SECONDS)
        while self.staged:
            self.unstage()
        for key in [*self.model]:
            assert self.do(DeleteFragment(*key)) is not None
        for upload, _ in self.uploads.values():
            upload.abandon()
        self.uploads.clear()
        self.work_all()
        bodies = self.owner.bodies
        assert (len(bodies), bodies.arena.live, bodies.files.live, bodies.background.waiting) == (0, 0, 0, 0)
        assert len(bodies.arena.segments) <= 1
        assert len(bodies.files.segments) <= 1


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=settings().max_examples // 2)
