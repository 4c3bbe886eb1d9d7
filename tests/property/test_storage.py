"""What is on the disk is what was committed last: whatever is done, and whenever the manager dies.

A real owner on a real database. Everything that it commits is written down a second time, in plain values; what it does
not commit has to be gone when it is. Bodies come in parts, are compressed and replaced in tiny steps all the while.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from stepwell import limits
from stepwell.domain import invariants
from stepwell.domain.commands import Command, Write
from stepwell.domain.event_builder import events_of
from stepwell.domain.events import AnyEvent
from stepwell.domain.logs.commands import (
    AppendToLog,
    ClearLog,
    DeleteLog,
    NewEntry,
    PopFromLog,
    RetainInLog,
    TrimLogs,
)
from stepwell.domain.machine import Outcome
from stepwell.domain.plans.commands import CancelPlan, CreateAction, EndSession, ExpireLeases, ForgetPlans, UseAction
from stepwell.domain.plans.model import Phase, ProjectLink
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
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
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.domain.verdict import Origin
from stepwell.errors import Refused
from stepwell.limits import KIB, MIB
from stepwell.manager.recovery import recover
from stepwell.memory.compression import unpack
from stepwell.memory.writer.upload import Upload
from stepwell.storage import database, rows
from stepwell.storage.body_reader import BodyFile
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.store import Durability, SessionRow
from tests.support.memory.bodies import compressible, noise
from tests.support.storage.expected_rows import ExpectedRows, Key, Use, tables_of
from tests.support.storage.plan_steps import next_commands, progress, record
from tests.support.storage.state import NOON_MS, DurableState, copy_database, kept, mixed

TINY = {
    "SEGMENT_BYTES_MIN": 16 * KIB,
    "ALLOCATION_BYTES": 8 * KIB,
    "WORK_BYTES_PER_SLICE": 4 * KIB,
    "WORK_SECONDS_MAX": 0.0,
    "BODY_PART_BYTES": 4 * KIB,
    "PARTS_TRIMMED_PER_TURN": 3,
    "RECENCY_ROWS_PER_TURN": 2,
    "REDO_SLICE_RECORDS": 2,
    "REDO_SLICE_BYTES": 1,
    "RECEIPTS_MAX": 3,
    "LOG_ROWS_PER_STEP": 2,
    "LOG_ROWS_PER_APPEND": 1,
    "LOG_POPPED_MAX": 2,
    "RECEIPTS_BYTES_MAX": 30_000,
}
ALL, STEPS_MAX = 10**9, 2_000
LINKS = (ProjectLink("p"),)

SIZES = st.sampled_from([0, 1, 100, 3_000, 9_000, 20_000])
MAKERS = st.sampled_from([compressible, noise, mixed])
BODIES = st.builds(lambda make, size, salt: make(size, salt), MAKERS, SIZES, st.integers(0, 3))
PROJECTS, NAMES = st.sampled_from("pq"), st.sampled_from("abcdef")
TIERS = st.sampled_from([*Tier])
BUDGETS = st.builds(
    TierBudget,
    hot_tokens=st.sampled_from([2, 5, 100]),
    warm_entries=st.sampled_from([1, 3, 100]),
    cold_entries=st.sampled_from([4, 100]),
    arena_bytes=st.sampled_from([MIB // 8, MIB]),
    promotion_threshold=st.integers(1, 4),
)
STORES = st.builds(StoreFragment, PROJECTS, NAMES, BODIES, st.just(1), TIERS, metadata=st.just({"key": "värde"}))
APPENDS = st.builds(
    AppendToLog, PROJECTS, NAMES, st.lists(st.builds(NewEntry, BODIES), min_size=1, max_size=3).map(tuple)
)
LOGS: st.SearchStrategy[Write[Reply]] = st.one_of(
    APPENDS,
    APPENDS,
    st.builds(PopFromLog, PROJECTS, NAMES),
    st.builds(ClearLog, PROJECTS, NAMES),
    st.builds(DeleteLog, PROJECTS, NAMES),
    st.builds(RetainInLog, PROJECTS, NAMES, st.sampled_from([None, 1, 4]), st.sampled_from([None, 1_000])),
)
RECEIPTS = st.builds(StoreReceipt, NAMES, st.sampled_from([("p",), ("q", "p")]), st.just("varför?"), BODIES)
MOVES: st.SearchStrategy[Write[Reply]] = st.one_of(
    st.builds(PromoteFragment, PROJECTS, NAMES),
    st.builds(DemoteFragment, PROJECTS, NAMES),
    st.builds(DeleteFragment, PROJECTS, NAMES),
    st.builds(EvictLru, TIERS, st.integers(1, 3)),
    st.builds(SetBudget, BUDGETS),
)
FATES = st.sampled_from(["half", "given up", "wanted", "receipt", "unwanted", "late"])
SESSIONS = st.sampled_from(["alice", "bob"])


class Storage(RuleBasedStateMachine):
    """An owner, its directory, and a ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in TINY.items():
            self.patch.setattr(limits, name, value)
        self.patch.setitem(database._SYNCHRONOUS, Durability.PROCESS, "OFF")  # there is no loss of power in here
        self.root = Path(tempfile.mkdtemp(prefix="sw-storage-"))
        self.sent: dict[bytes, bytes] = {}  # every body that ever came
        self.now_ms, self.now_s = NOON_MS, 0.0
        self.births = self.lives = 0
        self.ledger = ExpectedRows()
        self.opened: DurableState | None = None

    @property
    def made(self) -> DurableState:
        assert self.opened is not None
        return self.opened

    @property
    def state(self) -> State:
        return self.made.owner._state

    @initialize(budget=BUDGETS, commands=st.lists(STORES, max_size=8))
    def begin(self, budget: TierBudget, commands: list[StoreFragment]) -> None:
        self.open(self.root / "data", budget)
        self.do(CreateAction("act", "", "", "planner", "coder"))
        self.do(UseAction("plan", "act", LINKS))
        self.bring_up("plan", Phase.EXECUTE, lambda: b"body of a change")
        for command in commands:
            self.do(command)
        self.commit()

    def open(self, directory: Path, budget: TierBudget | None = None) -> None:
        """The next manager. It has what was committed, and nothing else; then it goes on."""
        self.opened = DurableState(directory, budget)
        self.entries: dict[Key, FragmentEntry] = dict(
            self.state.fragments.entries
        )  # whose use is written down as it was then
        self.uploads: list[Upload] = []  # of which the rest is still to come
        self.staged: list[bytes] = []
        self.events: list[AnyEvent] = []  # since the last commit
        self.written: set[Key] = set()
        self.sessions, self.replies = dict(self.ledger.sessions), dict(self.ledger.replies)
        journal, note = self.made.journal, self.made.journal.record

        def noted(outcomes: list[Outcome], now_ms: int) -> None:
            for each in outcomes:
                self.events += events_of(each.changes, each.revision, now_ms, journal._projects_of)
            note(outcomes, now_ms)

        self.patch.setattr(journal, "record", noted)
        if budget is None:
            self.ledger.compare(self.state)
            self.made.owner.enforce_budget(None, self.origin("manager"))

    def origin(self, session: str = "alice", uploads: dict[int, tuple[bytes, int]] | None = None) -> Origin:
        return Origin(session, self.now_ms, uploads=uploads or {})

    def do(self, command: Command[Reply], session: str = "alice") -> None:
        self.note_bodies(command)
        with suppress(Refused):
            self.made.owner.execute(command, self.origin(session))

    def note_bodies(self, command: Command[Reply]) -> None:
        """Remember the bodies that a command carries."""
        carriers = command.entries if isinstance(command, AppendToLog) else (command,)
        for each in carriers:
            for name in ("body", "before", "after"):
                if isinstance(body := getattr(each, name, None), bytes):
                    self.sent[digest_of(body)] = body

    @rule()
    def trim_logs(self) -> None:
        self.do(TrimLogs(), "manager")

    @rule(commands=st.lists(STORES | MOVES | RECEIPTS | LOGS, min_size=1, max_size=3))
    def write(self, commands: list[Write[Reply]]) -> None:
        for command in commands:
            self.do(command)

    @rule(commands=st.lists(STORES | MOVES | RECEIPTS | LOGS, max_size=6))
    def transact(self, commands: list[Write[Reply]]) -> None:
        for command in commands:
            self.note_bodies(command)
        with suppress(Refused):
            self.made.owner.execute_all(commands, self.origin())

    @rule(data=st.data(), times=st.integers(1, 3))
    def read(self, data: st.DataObject, times: int) -> None:
        key = data.draw(st.sampled_from([*self.state.fragments.entries, ("p", "a")]))
        for _ in range(times):
            self.do(GetFragment(*key))

    @rule(body=BODIES, key=st.tuples(PROJECTS, NAMES), tier=TIERS, fate=FATES)
    def upload(self, body: bytes, key: Key, tier: Tier, fate: str) -> None:
        """Somebody uploads a body, or begins to; it is stored, or nobody wants it after all."""
        try:
            upload = self.made.offer(body, 5_000 if fate in {"half", "given up"} else None)
        except Refused:
            return
        if fate == "half":
            self.uploads.append(upload)
        elif fate == "given up":
            self.made.owner.bodies.abandon(upload)
        else:
            held = self.made.owner.bodies.stage(upload)
            self.staged.append(held[0])
            self.sent[held[0]] = body
            if fate == "wanted":
                with suppress(Refused):
                    self.made.owner.execute(StoreFragment(*key, 1, 1, tier), self.origin(uploads={1: held}))
            if fate == "receipt":
                with suppress(Refused):
                    self.made.owner.execute(StoreReceipt(key[1], ("p",), "?", 1), self.origin(uploads={1: held}))
            if fate != "late":
                self.unstage()

    @rule()
    @precondition(lambda self: self.staged)
    def unstage(self) -> None:
        self.made.owner.bodies.unstage(self.staged.pop())

    @rule()
    @precondition(lambda self: len(self.state.plans) < 10)
    def use(self) -> None:
        self.births += 1
        self.do(UseAction(f"plan-{self.births}", "act", LINKS))

    @rule(data=st.data(), times=st.integers(1, 6), session=SESSIONS)
    @precondition(lambda self: len(self.state.plans) > 0)
    def work_on(self, data: st.DataObject, times: int, session: str) -> None:
        """Several steps with one plan, so that the far positions are reached."""
        plan = data.draw(st.sampled_from([*self.state.plans]))
        for _ in range(times):
            self.births += 1
            found = next_commands(
                self.state, self.state.plans.rows[plan.plan_id], self.births, lambda: data.draw(BODIES)
            )
            self.do(data.draw(st.sampled_from(found)), session)

    @rule(data=st.data(), phase=st.sampled_from([Phase.EXECUTE, Phase.APPLY]))
    @precondition(lambda self: len(self.state.plans) > 0)
    def work_hard(self, data: st.DataObject, phase: Phase) -> None:
        """Straight to where there is something to record, or to prove."""
        self.bring_up(data.draw(st.sampled_from([*self.state.plans])).plan_id, phase, lambda: data.draw(BODIES))

    def bring_up(self, plan_id: str, phase: Phase, body: Callable[[], bytes]) -> None:
        self.births += 1
        for _ in range(7):
            if command := progress(self.state, plan_id, phase):
                self.do(command)
        for command in record(self.state.plans.rows[plan_id], self.births, body):
            self.do(command)

    @rule(milliseconds=st.sampled_from([1, 30, 6_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.do(ExpireLeases(), "manager")

    @rule(data=st.data(), keep=st.integers(0, 2))
    @precondition(lambda self: len(self.state.plans) > 0)
    def forget(self, data: st.DataObject, keep: int) -> None:
        self.do(EndSession("bob"), "manager")
        self.do(CancelPlan(data.draw(st.sampled_from([*self.state.plans])).plan_id))
        self.do(ForgetPlans(keep, self.now_ms - 10_000), "manager")

    @rule(session=SESSIONS, request_id=st.integers(1, 9), frame=st.binary(max_size=20))
    def answer(self, session: str, request_id: int, frame: bytes) -> None:
        if session not in self.sessions:
            self.sessions[session] = SessionRow(session, ("p",), 1, "boot/1")
            self.made.journal.record_session(self.sessions[session])
        number = self.sessions[session].answered + request_id  # a request of before that is not answered any more
        self.replies[session, number] = frame
        self.made.journal.record_reply(session, number, frame)

    @rule(session=SESSIONS)
    def part(self, session: str) -> None:
        self.made.journal.record_session_end(session)
        self.sessions.pop(session, None)
        self.replies = {key: frame for key, frame in self.replies.items() if key[0] != session}

    @rule(steps=st.integers(1, 30), commits=st.booleans())
    def work(self, steps: int, commits: bool) -> None:  # noqa: FBT001
        for _ in range(steps):
            if not self.made.owner.bodies.background.work(0):
                break
            if commits:
                self.commit()
        self.made.owner.bodies.close_retired()

    @rule(answered=st.integers(0, 5), seconds=st.sampled_from([0.0, 2 * limits.RECENCY_SECONDS]))
    def housekeep(self, answered: int, seconds: float) -> None:
        """As the loop does it: with the turn that is committed next."""
        self.now_s += seconds
        self.made.owner.housekeep(self.now_s)
        for name, row in self.sessions.items():
            self.sessions[name] = msgspec.structs.replace(row, answered=row.answered + answered)
        self.replies = {key: each for key, each in self.replies.items() if key[1] >= self.sessions[key[0]].answered}
        unwritten = self.state.fragments._read
        assert unwritten is not None
        before = set(unwritten)
        self.made.journal.tidy({name: row.answered for name, row in self.sessions.items()}, self.now_s)
        self.written |= before - set(unwritten)
        self.commit()

    @rule()
    def commit(self) -> None:
        """From here on it is there, and told."""
        self.made.journal.commit()
        table, earlier = self.state.fragments, self.ledger
        uses: dict[Key, Use] = {}
        for key, entry in table.entries.items():
            is_new = self.entries.get(key) is not entry or key in self.written
            uses[key] = (entry.row, rows.use_values(entry) if is_new else earlier.uses[key][1])
        told, _ = self.made.journal.feed.events_after(earlier.revision, ALL, self.state.revision)
        assert list(told) == self.events
        self.ledger = ExpectedRows(
            self.state.revision,
            table.next_serial,
            tables_of(self.state),
            uses,
            frozenset(digest for digest in self.state.bodies.counts),
            frozenset(self.staged),
            earlier.events + self.events,
            dict(self.sessions),
            dict(self.replies),
        )
        self.entries, self.events, self.written = dict(table.entries), [], set()

    # What has to be so.

    @rule(slices=st.integers(0, 5))
    def follow(self, slices: int) -> None:
        """The tables follow the redo log a little, and with the next commits: nothing else changes."""
        self.made.store.follow()
        for _ in range(slices):
            self.made.store.work()

    @rule()
    def look(self) -> None:
        """Somebody loads it, while the owner goes on."""
        found = kept(self.made.path)
        self.ledger.compare(recover(found))
        ledger = self.ledger
        assert {row.session_id: row for row in found.sessions} == ledger.sessions
        assert {(session_id, number): frame for session_id, number, frame in found.replies} == ledger.replies
        assert self.made.store.events_after(0, ALL) == ledger.events
        digests = {body.digest for body, _ in found.bodies}
        assert ledger.bodies <= digests <= ledger.bodies | ledger.staged
        with closing(BodyFile(str(self.made.path / DATABASE))) as file:
            for digest in digests:
                packed, data = file.read(digest, self.made.store.body_number(digest))
                body = self.sent[digest]
                assert (unpack(data, len(body)) if packed else data) == body
        assert invariants.check(self.state) == []

    # How it ends, and begins anew.

    @rule(kills=st.booleans())
    def restart(self, kills: bool) -> None:  # noqa: FBT001
        """Without a word, so that what was not committed is gone; or in good order, with all of it."""
        if not kills:
            while self.made.journal.write_uses():
                pass
            self.written = set(self.state.fragments.entries)
            self.commit()
        self.lives += 1
        source, directory = self.made.path, self.root / f"data-{self.lives}"
        if kills:  # as the files are at this moment
            copy_database(source, directory)
        self.leave()
        if not kills:
            copy_database(source, directory)
        self.open(directory)

    def leave(self) -> None:
        while self.uploads:
            self.made.owner.bodies.abandon(self.uploads.pop())
        self.made.close()
        self.opened = None

    def teardown(self) -> None:
        try:
            if self.opened is not None:
                self.finish()
        finally:
            if self.opened is not None:
                self.leave()
            shutil.rmtree(self.root)
            self.patch.undo()

    def finish(self) -> None:
        """Nothing is left over, neither by the last manager nor, when that has died, by the next."""
        while self.staged:
            self.unstage()
        while self.uploads:
            self.made.owner.bodies.abandon(self.uploads.pop())
        self.tidy_up()
        for plan in [*self.state.plans]:
            self.do(CancelPlan(plan.plan_id))
        self.do(ForgetPlans(0, self.now_ms), "manager")
        for fate in ("late", "half"):
            self.upload(mixed(20_000), ("p", "a"), Tier.HOT, fate)
        self.commit()
        self.restart(kills=True)
        self.tidy_up()

    def tidy_up(self) -> None:
        """No part and no body is there that nothing needs, and each has the form of its tier."""
        for _ in range(STEPS_MAX):
            self.work(20, commits=False)
            self.housekeep(0, 2 * limits.RECENCY_SECONDS)
            if not (self.made.owner.bodies.background.waiting or self.made.store.has_garbage):
                break
        else:
            raise AssertionError("the work has no end")
        self.look()
        db = self.made.store._db
        assert {digest for (digest,) in db.execute("SELECT digest FROM bodies")} == self.ledger.bodies
        needed = {upload for (upload,) in db.execute("SELECT upload FROM bodies WHERE upload IS NOT NULL AND size")}
        assert {upload for (upload,) in db.execute("SELECT DISTINCT upload FROM body_parts")} == needed


TestStorage = Storage.TestCase
TestStorage.settings = settings(max_examples=settings().max_examples // 2)
