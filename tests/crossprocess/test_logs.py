"""Eight processes at one log: every entry is there once, in one order that all see, is popped once, and is watched."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from multiprocess.connection import Connection

import stepwell as sw
from tests.support.processes import CONTEXT, spawned
from tests.support.programs.log_writers import (
    NAME,
    PROJECT,
    append_at_head,
    append_many,
    follow,
    pop_all,
    take_turns,
)

PROCESSES = 8
ROUNDS = 100


@contextmanager
def at_once(
    target: Callable[..., None], address: str, *arguments: object, count: int = PROCESSES
) -> Iterator[Sequence[Connection]]:
    """Processes with a number and a pipe to us each."""
    with ExitStack() as stack:
        pipes: list[Connection] = []
        for number in range(count):
            ours, theirs = CONTEXT.Pipe()
            stack.enter_context(ours)
            stack.enter_context(theirs)
            stack.enter_context(spawned(target, address, number, *arguments, theirs, timeout_s=120))
            pipes.append(ours)
        yield pipes


@contextmanager
def served(data_dir: Path | None = None) -> Iterator[tuple[sw.Runtime, sw.Log]]:
    with (
        sw.Runtime.start(workers=0, data_dir=data_dir, log_level="error") as runtime,
        runtime.client(projects=[PROJECT]) as client,
    ):
        yield runtime, client.log(NAME)


def appended_by(pipes: Sequence[Connection]) -> dict[int, str]:
    """What all writers were told, by position; no two were told the same position."""
    appended: dict[int, str] = {}
    for pipe in pipes:
        told: dict[int, str] = pipe.recv()
        assert appended.keys().isdisjoint(told)
        appended |= told
    return appended


def test_appends_commute_and_pops_are_unique() -> None:
    """All appends succeed, each gets positions of its own, and each entry is popped by one process."""
    with served() as (runtime, log):
        with at_once(append_many, runtime.address, ROUNDS) as pipes:
            appended = appended_by(pipes)
        assert [*sorted(appended)] == [*range(1, len(appended) + 1)]
        assert {entry.position: entry.text for entry in log.entries()} == appended
        with at_once(pop_all, runtime.address) as pipes:
            assert [pipe.recv() for pipe in pipes] == [len(appended)] * PROCESSES
            for pipe in pipes:
                pipe.send("start")
            popped = [pipe.recv() for pipe in pipes]
        everything = [entry for each in popped for entry in each]
        assert len(everything) == len(appended)
        assert dict(everything) == appended
        assert all(each == sorted(each, reverse=True) for each in popped)
        print(f"{len(appended)} entries of {PROCESSES} processes; popped by each: {[len(each) for each in popped]}")


def test_appends_at_an_expected_head_are_one_chain() -> None:
    """Each follows from the one before it, however many were refused."""
    rounds = 25
    with served() as (runtime, log):
        with at_once(append_at_head, runtime.address, rounds) as pipes:
            conflicts = sum(pipe.recv() for pipe in pipes)
        values = [int(entry.text.split()[0]) for entry in log.entries()]
        assert values == [*range(1, PROCESSES * rounds + 1)]
        print(f"{len(values)} appends at an expected head, {conflicts} conflicts")


@pytest.mark.parametrize("kills", [0, 3])
def test_watches_have_no_gap(tmp_path: Path, kills: int) -> None:
    """All watchers see the same entries in the same order, each once; also if the manager is killed meanwhile."""
    rounds = 25
    count = 2 * sum(1 + (number + each) % 3 for number in range(PROCESSES // 2) for each in range(rounds))
    with served(tmp_path / "data") as (runtime, log):
        with at_once(follow, runtime.address, count, count=PROCESSES // 2) as watchers:
            assert {pipe.recv() for pipe in watchers} == {"watching"}
            for half in range(2):
                with at_once(append_many, runtime.address, rounds, count=PROCESSES // 2) as writers:
                    for _ in range(kills if half else 0):
                        before = log.status().entries
                        while log.status().entries == before < count - 50:
                            pass
                        runtime._supervisor.process.kill()
                    appended_by(writers)
            seen = [pipe.recv() for pipe in watchers]
        entries = [(entry.position, entry.text) for entry in log.entries()]
        assert len(entries) == count
        assert all(each == entries for each in seen)
        print(f"{len(seen)} watchers saw {count} entries in one order, with {kills} kills of the manager")


@pytest.mark.parametrize("way, loses", [("log", False), ("fragment", True)])
def test_twin_that_reads_and_stores_loses_entries(way: str, *, loses: bool) -> None:
    """All processes read, and then all of them write: a log keeps every entry, and a list in a fragment one a round."""
    rounds = 10
    with served() as (runtime, log):
        with at_once(take_turns, runtime.address, way) as turns:
            for message in [*range(rounds), None]:
                for step in ("read", "written") if message is not None else ("end",):
                    for turn in turns:
                        turn.send("go" if step == "written" else message)
                    if step != "end":
                        assert {turn.recv() for turn in turns} == {step}
        if way == "log":
            found = [entry.text for entry in log.entries()]
        else:
            with runtime.client(projects=[PROJECT]) as client:
                found = json.loads(client.tiers.get(NAME).text)
        assert (len({*found}) < PROCESSES * rounds) is loses
        print(f"{way}: {len(found)} of {PROCESSES * rounds} entries")
        if loses:
            assert len(found) == rounds
