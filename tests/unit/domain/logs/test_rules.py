"""The rules of logs: what is refused and with which words, what has room, and that no step grows with the log."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.commands import Command
from stepwell.domain.event_builder import events_of
from stepwell.domain.events import (
    AnyEvent,
    LogAppended,
    LogCleared,
    LogDeleted,
    LogPopped,
    LogRetentionChanged,
    LogTrimmed,
)
from stepwell.domain.logs.commands import (
    AppendToLog,
    ClearLog,
    DeleteLog,
    GetLog,
    NewEntry,
    PopFromLog,
    ReadLog,
    RetainInLog,
    TrimLogs,
)
from stepwell.domain.logs.entries import EntryRun
from stepwell.domain.logs.model import POPPED, LogEntry, LogEntryRow, LogStatus
from stepwell.domain.replies import Reply
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import Busy, Conflict, InvalidArgument, NotFound, OutOfScope, TierFull
from tests.support.domain.world import NOON_MS, World
from tests.support.measurement import untraced


@pytest.fixture
def world() -> World:
    return World()


def entries(*bodies: bytes) -> tuple[NewEntry, ...]:
    return tuple(NewEntry(body) for body in bodies)


def append(world: World, *bodies: bytes, name: str = "log") -> int:
    return world.do(AppendToLog("p", name, entries(*bodies))).head


def status(world: World, name: str = "log") -> LogStatus:
    return world.do(GetLog("p", name)).log


def positions(world: World, name: str = "log") -> list[int]:
    return [row.position for row in world.do(ReadLog("p", name, after=0, limit=1_000)).entries]


def test_log_that_does_not_exist(world: World) -> None:
    """It has head 0 and no entries, wherever it is asked for; only deleting it is refused."""
    assert status(world) == LogStatus("p", "log")
    assert world.do(PopFromLog("p", "log")).entry is None
    assert world.do(ClearLog("p", "log")).log == LogStatus("p", "log")
    assert world.do(ReadLog("p", "log")).entries == ()
    world.refuse(DeleteLog("p", "log"), NotFound, "project 'p' has no log 'log'")
    assert len(world.state.logs) == 0


@pytest.mark.parametrize(
    "command",
    [
        AppendToLog("p", "log", entries(b"x"), 1),
        PopFromLog("p", "log", 1),
        ClearLog("p", "log", 1),
        RetainInLog("p", "log", 3, None, 1),
        DeleteLog("p", "log", 1),
    ],
    ids=lambda command: type(command).__name__,
)
def test_unexpected_head(world: World, command: Command[Reply]) -> None:
    """It is refused with both heads, for a log that exists and for one that does not."""
    error = world.refuse(command, Conflict, "log 'log' has head 0, not 1: read it again")
    assert error.details == {"expected": 1, "actual": 0}
    append(world, b"a")
    append(world, b"b")
    error = world.refuse(command, Conflict, "log 'log' has head 2, not 1")
    assert error.details == {"expected": 1, "actual": 2}


def test_head_0_is_a_log_that_does_not_exist(world: World) -> None:
    """An emptied log exists: its head is that of the clear."""
    world.do(AppendToLog("p", "log", entries(b"a"), 0))
    cleared = world.do(ClearLog("p", "log")).log
    assert (cleared.head, cleared.entries) == (2, 0)
    world.refuse(AppendToLog("p", "log", entries(b"a"), 0), Conflict, "head 2, not 0")
    assert world.do(AppendToLog("p", "log", entries(b"a"), 2)).first_position == 2


def test_what_changes_nothing_leaves_the_head(world: World) -> None:
    """Popping from and clearing an empty log, and setting the retention that is set."""
    head = world.do(RetainInLog("p", "log", 5)).log.head
    for command in (PopFromLog("p", "log"), ClearLog("p", "log"), RetainInLog("p", "log", 5)):
        world.do(command)
    assert status(world).head == head


@pytest.mark.parametrize(
    "command, kind, message",
    [
        (AppendToLog("no project!", "log", entries(b"")), InvalidArgument, "a project is 1 to 128 letters"),
        (AppendToLog("p", "a\nb", entries(b"")), InvalidArgument, "none of them a control character"),
        (PopFromLog("p", "a\nb"), InvalidArgument, "none of them a control character"),
        (AppendToLog("p", "log", (NewEntry(b"", "no kind!"),)), InvalidArgument, "give 1 to 64 letters"),
        (
            AppendToLog("p", "log", (NewEntry(b"", "k", {"a": "b" * 9_000, "c": "d" * 9_000}),)),
            InvalidArgument,
            "16384",
        ),
        (AppendToLog("p", "log", (NewEntry(7),)), InvalidArgument, "no upload 7"),
    ],
)
def test_malformed(world: World, command: Command[Reply], kind: type[InvalidArgument], message: str) -> None:
    world.refuse(command, kind, message)


def test_scope(world: World) -> None:
    """A session reads and writes the logs of its projects."""
    append(world, b"a")
    for command in (AppendToLog("p", "log", entries(b"x")), PopFromLog("p", "log"), ReadLog("p", "log")):
        world.refuse(command, OutOfScope, "project 'p' is not in this session's scope", projects=["q"])


def test_equal_bodies_are_stored_once(world: World) -> None:
    append(world, *[b"same"] * 100)
    assert world.state.bodies.bytes == 4
    assert status(world).bytes == 400


def test_positions_are_never_used_twice(world: World) -> None:
    """Not behind a pop, and not behind a clear; a log that is begun anew begins at 1, under another number."""
    append(world, b"a", b"b")
    world.do(PopFromLog("p", "log"))
    append(world, b"c")
    assert positions(world) == [1, 3]
    world.do(ClearLog("p", "log"))
    append(world, b"d")
    assert positions(world) == [4]
    serial = status(world).serial
    world.do(DeleteLog("p", "log"))
    append(world, b"e")
    assert positions(world) == [1]
    assert status(world).serial != serial


def test_logs_of_one_transaction_have_different_numbers(world: World) -> None:
    machine.apply_all(world.state, [AppendToLog("p", name, entries(b"x")) for name in ("a", "b", "c")], world.origin())
    assert len({row.serial for row in world.state.logs}) == 3


def test_expiry(world: World) -> None:
    """At the moment, for every reader; a longer retention brings nothing back, and the head is as before."""
    head = world.do(RetainInLog("p", "log", None, 100)).log.head
    head = append(world, b"a")
    world.now_ms += 60
    head = append(world, b"b")
    world.now_ms += 40
    assert (positions(world), status(world).first_position, status(world).head) == ([2], 2, head)
    world.do(RetainInLog("p", "log", None, 1_000_000))
    assert positions(world) == [2]


def test_popped_body_is_readable_for_a_while(world: World) -> None:
    """So that the client that has popped it can read it; then it goes."""
    append(world, b"only here")
    popped = world.do(PopFromLog("p", "log")).entry
    assert popped is not None
    assert (popped.position, popped.digest in world.state.bodies) == (1, True)
    world.now_ms += limits.LOG_POPPED_MS - 1
    world.do(TrimLogs())
    assert popped.digest in world.state.bodies
    world.now_ms += 1
    world.do(TrimLogs())
    assert popped.digest not in world.state.bodies


@pytest.mark.parametrize("bound, value", [("LOG_POPPED_MAX", 3), ("LOG_POPPED_BYTES", 3)])
def test_popped_bodies_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    """In number and in bytes: the oldest goes first, and the one that was popped last is there."""
    monkeypatch.setattr(limits, bound, value)
    append(world, *[bytes([number]) for number in range(9)])
    for _ in range(9):
        world.do(PopFromLog("p", "log"))
    assert [row.digest for row in world.state.logs.entries.of(POPPED)][-1] in world.state.bodies
    assert world.state.bodies.bytes == 3


def test_room_for_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it an append is refused; while removed entries are being deleted, it is worth trying again."""
    monkeypatch.setattr(limits, "LOG_ROWS_PER_STEP", 1)
    world = World(TierBudget(bodies_bytes=10))
    monkeypatch.setattr(limits, "LOG_ROWS_PER_APPEND", 0)
    append(world, b"aaa", b"bbb", b"ccc")
    world.refuse(AppendToLog("p", "log", entries(b"dd")), TierFull, "raise bodies_bytes")
    world.do(ClearLog("p", "log"))
    world.refuse(AppendToLog("p", "log", entries(b"dddddddd")), Busy, "try again in a moment")
    world.do(TrimLogs())
    append(world, b"dddddddd")


def test_what_dies_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same step: a full log that retains a number of entries can be appended to for ever."""
    world = World(TierBudget(bodies_bytes=10))
    world.do(RetainInLog("p", "log", 2))
    for number in range(20):
        append(world, b"%05d" % number)
    assert len(world.state.logs.entries) == 2
    monkeypatch.setattr(limits, "LOG_ENTRIES_MAX", 2)
    append(world, b"xxxxx")


def test_bounds_of_numbers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of entries in all and of logs in all, with what to do about it."""
    monkeypatch.setattr(limits, "LOG_ENTRIES_MAX", 3)
    monkeypatch.setattr(limits, "LOGS_MAX", 1)
    append(world, b"a", b"b", b"c")
    world.refuse(AppendToLog("p", "log", entries(b"d")), TierFull, "3 entries at most: clear or delete")
    world.refuse(AppendToLog("p", "other", entries(b"d")), TierFull, "1 logs already: delete some")
    world.refuse(RetainInLog("p", "other"), TierFull, "1 logs already: delete some")


def test_page_ends_at_its_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the side away from where it begins; one entry is always there."""
    monkeypatch.setattr(limits, "LOG_PAGE_BYTES", 3)
    append(world, b"aa", b"b", b"cc", b"dddd")
    for command, wanted in (
        (ReadLog("p", "log", after=0), [1, 2]),
        (ReadLog("p", "log", after=2), [3]),
        (ReadLog("p", "log"), [4]),
        (ReadLog("p", "log", before=4), [2, 3]),
    ):
        page = world.do(command)
        assert ([row.position for row in page.entries], page.more) == (wanted, True)
    monkeypatch.setattr(limits, "REPLY_BYTES_MAX", limits.LOG_ROW_BYTES)
    assert len(world.do(ReadLog("p", "log", before=3)).entries) == 1


def test_events(world: World) -> None:
    """Each command that changes a log has one event, and trimming has one if entries have expired."""
    told: list[AnyEvent] = []

    def do(command: Command[Reply]) -> None:
        outcome = machine.apply(world.state, command, world.origin())
        told.extend(events_of(outcome.changes, outcome.revision, world.now_ms, lambda _: ()))

    do(AppendToLog("p", "log", entries(b"a", b"b", b"c")))
    do(PopFromLog("p", "log"))
    do(RetainInLog("p", "log", 1))
    do(AppendToLog("p", "log", entries(b"d", b"e")))
    do(PopFromLog("p", "log"))
    do(AppendToLog("p", "log", entries(b"f")))
    do(ClearLog("p", "log"))
    do(RetainInLog("p", "log", None, 10))
    do(AppendToLog("p", "log", entries(b"g")))
    world.now_ms += 10
    do(TrimLogs())
    do(DeleteLog("p", "log"))
    do(RetainInLog("p", "log", 7))
    now, later, head = NOON_MS, NOON_MS + 10, ("p", "log")
    assert told == [
        LogAppended(1, now, *head, 1, 3, 1),
        LogPopped(2, now, *head, 3),
        LogRetentionChanged(3, now, *head, 1, None, 2),
        LogAppended(4, now, *head, 4, 5, 5),
        LogPopped(5, now, *head, 5),
        LogAppended(6, now, *head, 6, 6, 5),
        LogCleared(7, now, *head, 7),
        LogRetentionChanged(8, now, *head, None, 10, 7),
        LogAppended(9, now, *head, 7, 7, 7),
        LogTrimmed(10, later, *head, 8),
        LogDeleted(11, later, *head),
        LogRetentionChanged(12, later, *head, 7, None, 1),
    ]


def calls_of(world: World, command: Command[Reply]) -> int:
    """The number of calls of functions, in Python and in C, that a command takes."""
    count = 0

    def note(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        machine.apply(world.state, command, world.origin())
    finally:
        sys.setprofile(before)
    return count


@untraced()
def grown(count: int, keep: int | None = None) -> World:
    """A world whose log has so many entries. Other tests measure how an entry is appended."""
    world = World()
    if keep is not None:
        machine.apply(world.state, RetainInLog("p", "log", keep), world.origin())
    for start in range(0, count, limits.LOG_APPENDED_MAX):
        bodies = [b"%d" % number for number in range(start, min(count, start + limits.LOG_APPENDED_MAX))]
        machine.apply(world.state, AppendToLog("p", "log", entries(*bodies)), world.origin())
    return world


STEPS: dict[str, Command[Reply]] = {
    "append": AppendToLog("p", "log", entries(b"x", b"y")),
    "append at the expected head": AppendToLog("p", "log", entries(b"x"), None),
    "pop": PopFromLog("p", "log"),
    "last 3": ReadLog("p", "log", limit=3),
    "status": GetLog("p", "log"),
}


@pytest.mark.parametrize("command", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("keep", [None, 50_000], ids=["unlimited", "retained"])
def test_costs_the_same_for_a_long_log(command: Command[Reply], keep: int | None) -> None:
    """The operations of a step are counted, and are as many for 50,000 entries as for 50."""
    kept = [50 if keep else None, keep]
    small, large = (grown(count, kept[index]) for index, count in enumerate((50, 50_000)))
    counts = [calls_of(world, command) for world in (small, large)]
    # A search among more entries has more steps, and a sorted list of one more level a few more calls.
    assert abs(counts[1] - counts[0]) <= 60, counts
    assert counts[0] < 2_000


@pytest.mark.parametrize(
    "command", [ClearLog("p", "log"), DeleteLog("p", "log"), RetainInLog("p", "log", 1), RetainInLog("p", "log", 1, 1)]
)
def test_removing_a_long_log_is_a_bounded_step(command: Command[Reply]) -> None:
    """Everything is gone at once; the rows go in further steps, each bounded too, until none is left."""
    world = grown(5_000)
    outcome = machine.apply(world.state, command, world.origin())
    assert len(outcome.changes) <= limits.LOG_ROWS_PER_STEP + 1
    assert len(positions(world)) <= 1
    steps = 0
    while (outcome := machine.apply(world.state, TrimLogs(), world.origin())).changes:
        steps += 1
        assert len(outcome.changes) <= limits.LOG_ROWS_PER_STEP + 1
    assert steps >= 5_000 // limits.LOG_ROWS_PER_STEP - 1
    assert not world.state.logs.has_dead
    assert len(world.state.logs.entries) == len(positions(world))


def row(position: int) -> LogEntryRow:
    return LogEntryRow(1, position, b"", position, 0, 0)


def test_run_of_entries_gives_its_room_back() -> None:
    """A log that is a queue does not grow: places of removed rows are given up; and each removal can be undone."""
    run = EntryRun()
    for position in range(1, 20_001):
        run.insert(row(position))
        if position > 10:
            run.remove(run[0])
    assert len(run._rows) < 5_000
    assert [each.position for each in run] == [*range(19_991, 20_001)]
    assert run.bytes_from(0) == sum(range(19_991, 20_001))
    for position in range(19_990, 10_000, -1):
        run.insert(row(position))
    assert [each.position for each in run] == [*range(10_001, 20_001)]
    assert run.bytes_from(0) == sum(range(10_001, 20_001))
    assert (run.index_of(10_500), run.bytes_from(9_999), run.bytes_from(10_000)) == (499, 20_000, 0)


def test_entry_of_a_caller() -> None:
    """It is checked when it is made, and its representation has no body."""
    assert repr(LogEntry("secret", kind="note")) == "<stepwell.LogEntry kind 'note', 6 characters>"
    assert LogEntry("é").data == "é".encode()
    assert LogEntry(memoryview(b"abcd")[::2]).data == b"ac"
    with pytest.raises(InvalidArgument, match="kind is malformed"):
        LogEntry("", kind="no kind!")
    with pytest.raises(InvalidArgument, match="lone surrogate"):
        LogEntry("\ud800")
    with pytest.raises(InvalidArgument, match="metadata"):
        LogEntry(b"", metadata={"": ""})
