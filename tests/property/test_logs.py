"""Logs against plain lists: every order of appends, pops, clears, retention, deletion, time and trimming."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.commands import Command, Write
from stepwell.domain.logs.commands import (
    AppendToLog,
    ClearLog,
    DeleteLog,
    GetLog,
    ListLogs,
    NewEntry,
    PopFromLog,
    ReadLog,
    RetainInLog,
    TrimLogs,
)
from stepwell.domain.logs.model import POPPED, LogStatus
from stepwell.domain.logs.replies import EntriesAppended, EntriesFound, EntryPopped, LogFound, LogPage
from stepwell.domain.replies import Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.verdict import Origin
from tests.support.model_check import AgainstModel, Refusal, content

ACTUAL = 1 << 40
"""An expected head that stands for the one that the log has."""
STEP, PER_APPEND, POPPED_MAX, POPPED_MS = 3, 1, 2, 50


@dataclass
class Entry:
    position: int
    body: bytes
    kind: str
    at_ms: int
    revision: int


@dataclass
class Pile:
    """A log: the entries that were neither popped nor removed, oldest first."""

    head: int
    next: int = 1
    keep: int | None = None
    keep_ms: int | None = None
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Piles:
    """Logs by project and name, at a time."""

    now_ms: int
    logs: dict[tuple[str, str], Pile] = field(default_factory=dict)

    def apply(self, command: Command[Reply], origin: Origin, revision: int) -> bool:
        match command:
            case AppendToLog(project, name, entries, expected):
                self.append(self.find(project, name, expected, origin), (project, name), entries, revision)
            case PopFromLog(project, name, expected):
                log = self.find(project, name, expected, origin)
                if log and log.entries:
                    log.entries.pop()
                    log.head = revision
            case ClearLog(project, name, expected):
                log = self.find(project, name, expected, origin)
                if log and log.entries:
                    log.entries, log.head = [], revision
            case RetainInLog(project, name, keep, keep_ms, expected):
                log = self.find(project, name, expected, origin)
                if log is None:
                    log = self.logs[project, name] = Pile(revision)
                if (log.keep, log.keep_ms) != (keep, keep_ms):
                    log.keep, log.keep_ms, log.head = keep, keep_ms, revision
                    self.trim()
            case DeleteLog(project, name, expected):
                if self.find(project, name, expected, origin) is None:
                    raise Refusal("NotFound")
                del self.logs[project, name]
            case ReadLog(project, name) | GetLog(project, name):
                self.find(project, name, None, origin)
                return False
            case ListLogs(project):
                self.require(project, origin)
                return False
            case _:
                raise NotImplementedError(command)
        return True

    def append(self, log: Pile | None, key: tuple[str, str], entries: tuple[NewEntry, ...], revision: int) -> None:
        if log is None:
            log = self.logs[key] = Pile(revision)
        for entry in entries:
            log.entries.append(Entry(log.next, content(entry.body), entry.kind, self.now_ms, revision))
            log.next += 1
        log.head = revision
        self.trim()

    def trim(self) -> None:
        """Whatever is too much or too old goes at once."""
        for log in self.logs.values():
            if log.keep is not None:
                log.entries = log.entries[-log.keep :]
            if (keep_ms := log.keep_ms) is not None:
                log.entries = [each for each in log.entries if each.at_ms + keep_ms > self.now_ms]

    def require(self, project: str, origin: Origin) -> None:
        if origin.projects is not None and project not in origin.projects:
            raise Refusal("OutOfScope")

    def find(self, project: str, name: str, expected: int | None, origin: Origin) -> Pile | None:
        self.require(project, origin)
        log = self.logs.get((project, name))
        if expected is not None and expected != (log.head if log else 0):
            raise Refusal("Conflict")
        return log

    def view(self) -> object:
        self.trim()
        return {
            key: (
                log.head,
                log.next,
                (log.keep, log.keep_ms),
                sum(len(each.body) for each in log.entries),
                [(each.position, digest_of(each.body), each.kind, each.at_ms, each.revision) for each in log.entries],
            )
            for key, log in self.logs.items()
        }

    def seen_in(self, state: State) -> object:
        return {log.key: self.seen_log(state, *log.key) for log in state.logs}

    def seen_log(self, state: State, project: str, name: str) -> object:
        origin = Origin("reader", self.now_ms)
        log = cast("LogFound", machine.apply(state, GetLog(project, name), origin).reply).log
        page = cast("EntriesFound", machine.apply(state, ReadLog(project, name, after=0, limit=1_000), origin).reply)
        assert (log.entries, log.first_position) == (len(page.entries), page.first_position)
        assert all(page.first_position <= each.position < log.next_position for each in page.entries)
        return (
            log.head,
            log.next_position,
            (log.keep_entries, log.keep_ms),
            log.bytes,
            [(each.position, each.digest, each.kind, each.at_ms, each.revision) for each in page.entries],
        )


PROJECTS = st.sampled_from("ppppppppq")
NAMES = st.sampled_from(["a"] * 8 + ["b", "a/b"])
SCOPES = st.sampled_from([None] * 8 + [frozenset("p"), frozenset("z")])
BODIES = st.sampled_from([b"", b"a", b"bbbb", b"c" * 9, 1, 2, 3])
ENTRIES = st.builds(NewEntry, BODIES, st.sampled_from(["text", "note"]))
HEADS = st.sampled_from([None] * 12 + [ACTUAL] * 3 + [0, 1, 3])
KEPT = st.sampled_from([None, 1, 2, 3, 5, 8])
AGES = st.sampled_from([None, None, 1, 10, 20, 40])
APPENDS = st.builds(AppendToLog, PROJECTS, NAMES, st.lists(ENTRIES, min_size=1, max_size=7).map(tuple), HEADS)
WRITES: st.SearchStrategy[Write[Reply]] = st.one_of(
    APPENDS,
    APPENDS,
    APPENDS,
    st.builds(PopFromLog, PROJECTS, NAMES, HEADS),
    st.builds(PopFromLog, PROJECTS, NAMES, HEADS),
    st.builds(ClearLog, PROJECTS, NAMES, HEADS),
    st.builds(RetainInLog, PROJECTS, NAMES, KEPT, AGES, HEADS),
    st.builds(DeleteLog, PROJECTS, NAMES, HEADS),
)


class LogMachine(AgainstModel):
    """Sessions of several scopes write and read, while time passes and the manager trims, or does not."""

    model: Piles

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        bounds = {"ROWS_PER_STEP": STEP, "ROWS_PER_APPEND": PER_APPEND, "POPPED_MAX": POPPED_MAX}
        for name, bound in {**bounds, "POPPED_MS": POPPED_MS}.items():
            self.patch.setattr(limits, f"LOG_{name}", bound)

    def teardown(self) -> None:
        self.patch.undo()

    @initialize()
    def start(self) -> None:
        self.begin(Piles(self.now_ms))

    @rule(command=WRITES, scope=SCOPES)
    def write(self, command: Write[Reply], scope: frozenset[str] | None) -> None:
        """What a write returns is what the model has done."""
        command = self.meant(command)
        log = self.model.logs.get((command.project, command.name)) if isinstance(command, PopFromLog) else None
        expected = log.entries[-1].position if log and log.entries else None
        match self.both(command, self.origin(projects=scope)):
            case EntriesAppended(project, name, first, last, head):
                log = self.model.logs[project, name]
                assert isinstance(command, AppendToLog)
                assert (last + 1, last - first + 1, head) == (log.next, len(command.entries), log.head)
            case EntryPopped(_, _, entry):
                assert (entry.position if entry else None) == expected
                assert entry is None or entry.digest in self.state.bodies
            case _:
                pass

    @rule(commands=st.lists(WRITES, min_size=1, max_size=6))
    def transact(self, commands: list[Write[Reply]]) -> None:
        self.both_at_once([*map(self.meant, commands)], self.origin())

    def meant(self, command: Write[Reply]) -> Write[Reply]:
        """The command, with the head that its log has before it."""
        if getattr(command, "expected_head", None) != ACTUAL:
            return command
        log = self.model.logs.get((getattr(command, "project", ""), getattr(command, "name", "")))
        return replace(command, expected_head=log.head if log else 0)

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=6), ms=st.integers(0, 12), pops=st.integers(0, 2))
    def grow(self, counts: list[int], ms: int, pops: int) -> None:
        """Append to one log while time passes, and pop some: entries of many ages, with gaps between them."""
        for count in counts:
            entries = tuple(NewEntry(bytes([self.revision % 7]) * (self.revision % 5)) for _ in range(count))
            self.both(AppendToLog("p", "a", entries), self.origin())
            for _ in range(min(pops, count)):
                self.both(PopFromLog("p", "a"), self.origin())
            self.wait(ms)

    @rule(project=PROJECTS, name=NAMES, scope=SCOPES, at=st.integers(0, 40), limit=st.integers(1, 4))
    def read(self, project: str, name: str, scope: frozenset[str] | None, at: int, limit: int) -> None:
        """From a position on, the last ones, and the last ones before a position."""
        log = self.model.logs.get((project, name))
        positions = [each.position for each in log.entries] if log else []
        behind, before = [each for each in positions if each > at], [each for each in positions if each < at]
        for command, wanted, more in (
            (ReadLog(project, name, after=at, limit=limit), behind[:limit], len(behind) > limit),
            (ReadLog(project, name, limit=limit), positions[-limit:], len(positions) > limit),
            (ReadLog(project, name, before=at, limit=limit), before[-limit:], len(before) > limit),
        ):
            page = self.both(command, self.origin(projects=scope))
            if page is not None:
                assert isinstance(page, EntriesFound)
                assert ([each.position for each in page.entries], page.more) == (wanted, more)
                assert (page.head, page.next_position) == ((log.head, log.next) if log else (0, 1))

    @rule(project=PROJECTS, scope=SCOPES, limit=st.integers(1, 2))
    def leaf_through(self, project: str, scope: frozenset[str] | None, limit: int) -> None:
        """Each log of a project once, by name."""
        cursor: str | None = None
        seen: list[LogStatus] = []
        while (page := self.both(ListLogs(project, limit, cursor), self.origin(projects=scope))) is not None:
            assert isinstance(page, LogPage)
            seen += page.logs
            cursor = page.cursor
            if cursor is None:
                assert [log.name for log in seen] == sorted(name for of, name in self.model.logs if of == project)
                break

    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.now_ms += ms
        self.model.now_ms = self.now_ms
        self.model.trim()

    @rule(ms=st.integers(1, 30))
    def let_time_pass(self, ms: int) -> None:
        self.wait(ms)

    @rule(times=st.integers(1, 3))
    def trim(self, times: int) -> None:
        """It changes a bounded number of rows, and nothing that can be seen; it has a revision if it changed any."""
        for _ in range(times):
            outcome = machine.apply(self.state, TrimLogs(), self.origin())
            assert len(outcome.changes) <= 2 * STEP
            self.revision += bool(outcome.changes)

    @rule()
    def trim_to_the_end(self) -> None:
        """Then there are rows of what can be seen, and of what was popped a moment ago."""
        outcome = machine.apply(self.state, TrimLogs(), self.origin())
        while outcome.changes:
            self.revision += 1
            outcome = machine.apply(self.state, TrimLogs(), self.origin())
        popped = self.state.logs.entries.of(POPPED)
        assert len(popped) <= POPPED_MAX
        assert all(row.at_ms + POPPED_MS > self.now_ms for row in popped)
        seen = sum(len(log.entries) for log in self.model.logs.values())
        assert len(self.state.logs.entries) == seen + len(popped)


TestLogs = LogMachine.TestCase
TestLogs.settings = settings(max_examples=settings().max_examples)
