"""The rows of dead entries go in the background, a few at a time, and requests are served in between."""

import pytest

from stepwell import limits
from stepwell.domain.events import AnyEvent
from stepwell.domain.logs.commands import AppendToLog, ClearLog, NewEntry, PopFromLog, RetainInLog
from stepwell.domain.logs.replies import EntryPopped
from stepwell.domain.machine import apply
from stepwell.domain.state import State
from stepwell.domain.verdict import Origin
from stepwell.manager.event_feed import EventFeed
from tests.support.manager.peers import ORIGIN
from tests.support.managers import Stage

COUNT = 2_000


def fill(stage: Stage, count: int = COUNT) -> None:
    for start in range(0, count, limits.LOG_APPENDED_MAX):
        numbers = range(start, min(count, start + limits.LOG_APPENDED_MAX))
        stage.owner.execute(AppendToLog("p", "log", tuple(NewEntry(b"%d" % number) for number in numbers)), ORIGIN)


def rows(stage: Stage) -> int:
    return len(stage.owner._state.logs.entries)


def test_dead_entries_go_in_idle_turns(stage: Stage) -> None:
    """A turn deletes a bounded number of rows, with their bodies, until none is left; then it sleeps again."""
    fill(stage)
    stage.owner.execute(ClearLog("p", "log"), ORIGIN)
    left = rows(stage)
    assert left == COUNT - limits.LOG_ROWS_PER_STEP
    while stage.loop.housekeeping.work():
        assert left - limits.LOG_ROWS_PER_STEP <= rows(stage) <= left
        left = rows(stage)
    assert (rows(stage), len(stage.owner.bodies), stage.owner._state.bodies.bytes) == (0, 0, 0)


def test_expired_entries_wait_for_the_sweep(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are absent already; deleting each at its own moment would be a commit for each."""
    stage.owner.execute(RetainInLog("p", "log", None, 1_000), ORIGIN)
    fill(stage, 10)
    clock = stage.loop.housekeeping._clock
    monkeypatch.setattr(clock, "now_ms", lambda: ORIGIN.now_ms + 1_000)
    while stage.loop.housekeeping.work():
        pass
    assert rows(stage) == 10
    stage.loop.housekeeping.make_due(0.0)
    stage.loop.housekeeping.sweep_if_due(1.0)
    assert rows(stage) == 0


def test_popped_body_is_there_for_the_reply(stage: Stage) -> None:
    """Also in a transaction, and also if the popped entry was appended in it."""
    fill(stage, 1)
    results = [
        stage.owner.execute(PopFromLog("p", "log"), ORIGIN),
        *stage.owner.execute_all([AppendToLog("p", "log", (NewEntry(b"x"),)), PopFromLog("p", "log")], ORIGIN)[1:],
    ]
    for result in results:
        assert isinstance(result.reply, EntryPopped)
        assert result.reply.entry is not None
        assert [*result.handles] == [result.reply.entry.digest]


def test_trimming_drops_no_events_of_others() -> None:
    """The feed is bounded by events: rows that go without one take no room from those that a watcher has not read."""
    state = State()
    feed = EventFeed(lambda _: ())
    origin = Origin("test", 0)

    def do(command: AppendToLog | ClearLog) -> None:
        feed.record([apply(state, command, origin)], 0)

    for number in range(limits.EVENTS_BUFFERED // limits.LOG_APPENDED_MAX + 10):
        do(
            AppendToLog(
                "p", "log", tuple(NewEntry(b"%d %d" % (number, each)) for each in range(limits.LOG_APPENDED_MAX))
            )
        )
    do(ClearLog("p", "log"))
    assert feed.resume_point(0) == 0
    events: list[AnyEvent] = [*feed.events_after(0, 1_000, state.revision)[0]]
    assert len(events) == state.revision
