"""A worker process, run in a thread of the test: what it records of a real manager is legal and complete."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.errors import RuntimeLost
from stepwell.prove import peers, worker
from stepwell.prove.history import History, history_of, read_records
from stepwell.prove.lane import LaneSettings
from stepwell.prove.recorder import Recorder
from stepwell.prove.verdict import judge
from stepwell.testing import LocalRuntime
from tests.support.prove.simulated import PlainValues
from tests.support.prove.worker_thread import HEADER, recorded, running, settings_of


def test_run(tmp_path: Path) -> None:
    """Both kinds of client call, both kinds of watch show all writes, and the history is legal."""
    history = History(HEADER, ())
    for seconds in (0.1, 1, 10, 100):  # a busy machine may let a thread wait for long
        with LocalRuntime() as runtime, runtime.client(["p"]) as client:
            history = recorded(settings_of(runtime.address, tmp_path, lanes=LaneSettings(1, seconds, ())), client)
        if {each.thread for each in history.calls} == {0, 1}:
            break
    assert {each.thread for each in history.calls} == {0, 1}
    assert {each.kind: each.is_complete for each in history.watches} == {"blocking": True, "asyncio": True}
    verdict = judge(history)
    assert verdict.result == "legal"
    assert verdict.watched > 0


def test_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a peer every thread has a connection of its own, and there is no watch."""
    opened: list[str] = []

    @contextmanager
    def opened_peer(peer: str, address: str) -> Iterator[peers.PeerPerformer]:
        opened.append(f"{peer} at {address}")
        yield peers.PeerPerformer(PlainValues(), str(len(opened)))

    monkeypatch.setattr(peers, "open_peer", opened_peer)
    with running(settings_of("there", tmp_path, subject="peer", watches=())) as owner:
        assert owner.report().word == "ready"
        owner.begin()
        assert owner.report().word == "done"
    assert opened == ["peer at there"] * 2
    assert read_records(tmp_path / "records")


def test_no_manager(tmp_path: Path) -> None:
    """The error is reported, in its own words."""
    with running(settings_of(str(tmp_path / "nowhere"), tmp_path)) as owner:
        assert "no manager" in owner.report().error


def test_owner_gone_before_the_beginning(tmp_path: Path) -> None:
    """Without an owner there is no run."""
    with LocalRuntime() as runtime, running(settings_of(runtime.address, tmp_path, watches=())) as owner:
        assert owner.report().word == "ready"
        owner.end()


def test_owner_gone_during_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends at once, whatever its threads do: here an exception stands for its end."""

    class EndedError(Exception):
        """The process has ended."""

    def end(code: int) -> None:
        assert code == 1
        raise EndedError

    monkeypatch.setattr(os, "_exit", end)
    ours, theirs = socket.socketpair()
    gate = threading.Event()
    threads = worker._Threads(theirs)
    waiting = threads.start(gate.wait, 60)
    ours.close()
    with theirs, pytest.raises(EndedError):
        threads.wait([waiting])
    gate.set()
    waiting.join()


def test_error_of_a_thread() -> None:
    """The first error of a thread is the error of the process."""
    ours, theirs = socket.socketpair()

    def fail() -> None:
        raise RuntimeLost("gone")

    threads = worker._Threads(theirs)
    with ours, theirs, pytest.raises(RuntimeLost):
        threads.wait([threads.start(fail)])


def test_watch_that_cannot_begin(tmp_path: Path) -> None:
    """An error of a watch is raised before the run begins."""
    with LocalRuntime() as runtime, runtime.client(["q"]) as client:
        ours, theirs = socket.socketpair()
        threads = worker._Threads(theirs)
        settings = settings_of(runtime.address, tmp_path, watches=("blocking",))
        with ours, theirs, Recorder(tmp_path / "records") as recorder, pytest.raises(sw.OutOfScope):
            worker._watches(settings, client, recorder, threads)


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_gap(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that has missed events, or was closed, says nothing about the order."""
    answers: list[object] = [sw.EventsMissed("missed", resume=1), None]

    def get(*_: object) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def get_later(*_: object) -> object:
        return get()

    with LocalRuntime() as runtime, runtime.client(["p"]) as client:
        monkeypatch.setattr("stepwell.client.api.watch.Watch.get", get)
        monkeypatch.setattr("stepwell.aio.watch.Watch.get", get_later)
        follow = worker._follow if kind == "blocking" else worker._follow_in_loop
        with Recorder(tmp_path / "records") as recorder:
            follow(client, settings_of(runtime.address, tmp_path), recorder, threading.Event())
    history = history_of(HEADER, read_records(tmp_path / "records"))
    assert [each.is_complete for each in history.watches] == [False]
