"""Whatever many processes do at once, whoever watches is told all of it, in order and once, or what it missed."""

import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import stepwell as sw
from tests.support.processes import kill, resident_bytes, run_all, spawned
from tests.support.programs.watch_programs import (
    BUDGET,
    END,
    PAUSE,
    PROJECTS,
    Watched,
    read,
    read_written,
    watch,
    watch_and_reconnect,
    write,
)
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG
from tests.support.wait import eventually

WRITERS = 8
ROUNDS = 6 if IS_LONG else 3
STORES = 270
"""Of each writer in each round. A round has fewer events than the manager keeps, and all rounds together have more."""

SEED = 5520
GROWTH_BYTES_MAX = 100 << 20
"""Of a manager that keeps 10,000 events, and grows by what is stored."""


def test_watchers_are_told_everything(tmp_path: Path) -> None:
    """8 writers and 3 watchers: one just follows, one reconnects all the time, and one is stopped and has to be told
    what it missed. Their events are the history that the writers know, and lead to the state that there is.
    """
    seeded(SEED)
    directory = str(tmp_path)
    with sw.Runtime.start(workers=0, budget=BUDGET) as runtime, runtime.client() as client, ExitStack() as stack:
        address = runtime.address
        stack.enter_context(spawned(watch, address, "steady", directory, timeout_s=60))
        stack.enter_context(spawned(watch_and_reconnect, address, "restless", directory, 500, timeout_s=60))
        stopped = stack.enter_context(spawned(watch, address, "stopped", directory, timeout_s=60))
        names = ("steady", "restless", "stopped")
        eventually(lambda: all((tmp_path / f"{name}.ready").exists() for name in names), 60)
        assert stopped.pid is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            before = resident_bytes(client.status().pid)
            for round_ in range(ROUNDS):
                numbers = range(round_ * WRITERS, (round_ + 1) * WRITERS)
                run_all(write, [(address, number, STORES, SEED, directory) for number in numbers])
                let_them_catch_up(client, [tmp_path / f"{name}.paused" for name in names[:2]])
            client.tiers.store(sw.Fragment(fragment_id=END, project="p", body="", tokens=1))
            eventually(lambda: all((tmp_path / f"{name}.report").exists() for name in names[:2]), 60)
            assert resident_bytes(client.status().pid) - before < GROWTH_BYTES_MAX
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        eventually((tmp_path / "stopped.report").exists, 60)
        found = {
            (row.project, row.fragment_id): row.tier for each in PROJECTS for row in client.tiers.scoped(project=each)
        }
    steady, restless, slow = (read(tmp_path, name) for name in names)
    assert not steady.missed
    check_history(steady.events, tmp_path)
    assert placement(steady.events) == found
    assert restless.connections > 5
    assert restless.events == steady.events
    check_missed(slow, steady.events)


def test_a_manager_that_is_killed_is_no_gap(tmp_path: Path) -> None:
    """With a data directory a watch goes on with the next manager, from where it was; so does one that begins there."""
    with sw.Runtime.start(workers=0, data_dir=tmp_path / "data", log_level="error") as runtime:
        with runtime.client(projects=["p"]) as client, client.watch() as watching:
            expected: list[str] = []
            events: list[sw.events.AnyEvent | None] = []
            for life in range(3):
                for number in range(20):
                    expected.append(f"{life}-{number}")
                    client.tiers.store(sw.Fragment(fragment_id=expected[-1], body=expected[-1], tokens=1))
                events += [watching.get(timeout_s=60) for _ in range(10)]
                kill(client.status().pid)
            events += [watching.get(timeout_s=60) for _ in range(len(expected) - len(events))]
            assert [event.fragment_id for event in events if isinstance(event, sw.events.FragmentStored)] == expected
            assert watching.get(timeout_s=0) is None
            with client.watch(since=0) as again:
                assert [again.get(timeout_s=60) for _ in expected] == events


def let_them_catch_up(client: sw.Client, seen: list[Path]) -> None:
    """Wait until the watchers that follow have seen everything, so that none of them is too slow on a busy machine."""
    client.tiers.store(sw.Fragment(fragment_id=PAUSE, project="p", body="", tokens=1))
    eventually(lambda: all(path.exists() for path in seen))
    for path in seen:
        path.unlink()


def check_history(events: list[sw.events.AnyEvent], directory: Path) -> None:
    """In order, and of every revision exactly what its writer stored at it."""
    assert all(earlier.revision <= later.revision for earlier, later in pairwise(events))
    told: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, sw.events.FragmentStored) and event.fragment_id not in {PAUSE, END}:
            told.setdefault(event.revision, []).append(event.fragment_id)
    written: dict[int, list[str]] = {}
    for number in range(ROUNDS * WRITERS):
        written |= read_written(directory, number).stored
    assert told == written
    assert any(len(together) > 1 for together in told.values())
    assert any(isinstance(event, sw.events.FragmentDemoted) for event in events)
    assert any(isinstance(event, sw.events.FragmentDeleted) for event in events)


def placement(events: Iterable[sw.events.AnyEvent]) -> dict[tuple[str, str], sw.Tier]:
    """Where every fragment is, to whoever knows the events alone."""
    found: dict[tuple[str, str], sw.Tier] = {}
    for event in events:
        match event:
            case sw.events.FragmentStored():
                found[event.project, event.fragment_id] = event.tier
            case sw.events.FragmentPromoted() | sw.events.FragmentDemoted():
                assert found[event.project, event.fragment_id] is event.source
                found[event.project, event.fragment_id] = event.target
            case sw.events.FragmentDeleted():
                assert found.pop((event.project, event.fragment_id)) is event.tier
            case _:
                pass
    return found


def check_missed(slow: Watched, everything: list[sw.events.AnyEvent]) -> None:
    """What it was told, and what it was told that it missed, are the whole history, with nothing left out or twice."""
    assert slow.missed
    known: list[sw.events.AnyEvent] = []
    begin = 0
    for count, resume in slow.missed:
        known += slow.events[begin:count]
        latest = known[-1].revision if known else 0
        assert resume > latest
        known += [event for event in everything if latest < event.revision <= resume]
        begin = count
    assert known + slow.events[begin:] == everything
