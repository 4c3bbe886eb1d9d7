"""A worker process of a trial: its threads make calls and record them, and one of them may follow a watch.

The process reports on its socket (`TrialReport`): `ready` when its clients are connected; then, once it was sent the
time at which the run begins and the run is over, `done`. With a watch it waits for the end of the run to be shown. When
the socket ends, the process ends at once.

Threads alternate between a blocking client, which all blocking threads of the process share, and a client of an event
loop of their own, with two requests under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from stepwell import aio, limits
from stepwell.client.client import Client, connect
from stepwell.errors import EventsMissed, StepwellError
from stepwell.prove import peers
from stepwell.prove.history import AnyOutcome
from stepwell.prove.lane import Lane, LaneSettings
from stepwell.prove.performer import BlockingPerformer, LoopPerformer
from stepwell.prove.recorder import Recorder, WatchRecorder
from stepwell.prove.workload import Request

STEPWELL: Final = "stepwell"

Perform = Callable[[Request], list[AnyOutcome]]
RunLane: TypeAlias = "Callable[[_LaneStart, Recorder], None]"


class TrialWorkerSettings(Struct, frozen=True):
    """The settings of one worker process. `subject` is `stepwell` or the name of a peer, `address` where it is."""

    subject: str
    address: str
    project: str
    process: int
    threads: int
    lanes: LaneSettings
    path: str
    watches: tuple[str, ...] = ()
    socket_fd: int = -1


class TrialReport(Struct, frozen=True):
    """A report of a worker process: a word, or the message of the error that ended it."""

    word: str = ""
    error: str = ""


def main(encoded: str) -> int:
    """Run a worker process, and return its exit code. `ChildProcess` calls it."""
    settings = msgspec.json.decode(encoded, type=TrialWorkerSettings)
    with socket.socket(fileno=settings.socket_fd) as owner, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        try:
            run(settings, owner)
        except StepwellError as error:
            owner.sendall(msgspec.json.encode(TrialReport(error=error.message)))
    return 0


def run(settings: TrialWorkerSettings, owner: socket.socket) -> None:
    """Connect, wait for the beginning, make the calls, and write the records."""
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(Recorder(Path(settings.path)))
        threads = _Threads(owner)
        watches: list[threading.Thread] = []
        if settings.subject == STEPWELL:
            client = stack.enter_context(connect(settings.address, [settings.project]))
            watches = _watches(settings, client, recorder, threads)
            lanes = _stepwell_lanes(settings, client)
        else:
            opened = [peers.open_peer(settings.subject, settings.address) for _ in range(settings.threads)]
            lanes = [_blocking_lane(stack.enter_context(each).perform) for each in opened]
        begin: Future[int] = Future()
        starts = [_LaneStart(settings, number, begin) for number in range(settings.threads)]
        started = [threads.start(run_lane, start, recorder) for run_lane, start in zip(lanes, starts, strict=True)]
        try:
            for start in starts:
                threads.wait_until(start.is_ready)
            owner.sendall(msgspec.json.encode(TrialReport("ready")))
            begin.set_result(_begin(owner))
        finally:
            begin.cancel()  # does nothing if the run has begun
        threads.wait(started)
        owner.sendall(msgspec.json.encode(TrialReport("done")))
        threads.wait(watches)


class _LaneStart:
    """The beginning of a lane: its thread connects, says that it is ready, and waits for the time of the beginning."""

    def __init__(self, settings: TrialWorkerSettings, number: int, begin: Future[int]) -> None:
        self.is_ready = threading.Event()
        self._settings = settings
        self._number = number
        self._begin = begin

    def lane(self) -> Lane:
        """Wait for the beginning, and return the lane."""
        self.is_ready.set()
        return Lane(self._settings.lanes, self._settings.process, self._number, self._begin.result())


def _stepwell_lanes(settings: TrialWorkerSettings, client: Client) -> list[RunLane]:
    """Return a function for each thread: every other one has an event loop."""
    return [
        _async_lane(settings)
        if (settings.process + number) % 2
        else _blocking_lane(BlockingPerformer(client, settings.project).perform)
        for number in range(settings.threads)
    ]


def _blocking_lane(perform: Perform) -> RunLane:
    """Return a function that makes the calls of a lane one after the other."""

    def run_lane(start: _LaneStart, recorder: Recorder) -> None:
        lane = start.lane()
        while (pause_s := lane.pause_s(time.monotonic_ns())) is not None:
            if pause_s > 0:
                time.sleep(pause_s)
                continue
            request = lane.request()
            start_ns = time.monotonic_ns()
            outcomes = perform(request)
            recorder.record(*lane.recorded(request, outcomes, start_ns, time.monotonic_ns()))

    return run_lane


def _async_lane(settings: TrialWorkerSettings) -> RunLane:
    """Return a function that makes the calls of a lane in an event loop, two requests at a time."""

    async def run_tasks(start: _LaneStart, recorder: Recorder) -> None:
        async with aio.connect(settings.address, [settings.project]) as client:
            performer = LoopPerformer(client, settings.project)
            lane = await asyncio.to_thread(start.lane)

            async def make(request: Request) -> None:
                start_ns = time.monotonic_ns()
                outcomes = await performer.perform(request)
                recorder.record(*lane.recorded(request, outcomes, start_ns, time.monotonic_ns()))

            while (pause_s := lane.pause_s(time.monotonic_ns())) is not None:
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                else:
                    await asyncio.gather(make(lane.request()), make(lane.request()))

    def run_lane(start: _LaneStart, recorder: Recorder) -> None:
        asyncio.run(run_tasks(start, recorder))

    return run_lane


def _watches(
    settings: TrialWorkerSettings, client: Client, recorder: Recorder, threads: _Threads
) -> list[threading.Thread]:
    """Start the watches of this process, and return their threads when all of them have begun."""
    started: list[threading.Thread] = []
    for kind in settings.watches:
        has_begun = threading.Event()
        follow = _follow if kind == "blocking" else _follow_in_loop
        started.append(threads.start(follow, client, settings, recorder, has_begun))
        threads.wait_until(has_begun)
    return started


def _follow(client: Client, settings: TrialWorkerSettings, recorder: Recorder, has_begun: threading.Event) -> None:
    """Record the order in which a blocking watch shows the writes, until the end of the run."""
    record = WatchRecorder(settings.process, "blocking")
    with client.watch(projects=[settings.project]) as watch:
        has_begun.set()
        is_ended = False
        while not is_ended:
            try:
                event = watch.get()
            except EventsMissed:
                record.note_gap()
                continue
            if event is None:
                break
            is_ended = not record.add(event)
    recorder.record(record.result(is_ended=is_ended))


def _follow_in_loop(
    client: Client, settings: TrialWorkerSettings, recorder: Recorder, has_begun: threading.Event
) -> None:
    """Do the same with a watch of an event loop."""
    record = WatchRecorder(settings.process, "asyncio")

    async def follow() -> bool:
        async with aio.connect(client.address, [settings.project]) as other, other.watch() as watch:
            has_begun.set()
            while True:
                try:
                    event = await watch.get()
                except EventsMissed:
                    record.note_gap()
                    continue
                if event is None or not record.add(event):
                    return event is not None

    recorder.record(record.result(is_ended=asyncio.run(follow())))


class _Threads:
    """The threads of this process. The first error of one of them is the error of the process."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._errors: list[BaseException] = []

    def start(self, run: Callable[..., object], *arguments: object) -> threading.Thread:
        """Start a thread. It does not outlive the process."""

        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised by `raise_error`, in the thread of the process
                self._errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def wait(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for threads, and raise the first error. If the owner of the process has ended, the process ends too."""
        for thread in threads:
            while thread.is_alive():
                thread.join(limits.PROVE_POLL_SECONDS)
                if _is_alone(self._owner):
                    os._exit(1)
                self.raise_error()
        self.raise_error()

    def wait_until(self, event: threading.Event) -> None:
        """Wait for an event of a thread, and raise the first error of any thread instead."""
        while not event.wait(limits.PROVE_POLL_SECONDS):
            self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of a thread, if there was one."""
        if self._errors:
            raise self._errors[0]


def _begin(owner: socket.socket) -> int:
    """Return the time at which the run begins, which the owner sends. An owner that has ended sends none."""
    line = owner.recv(limits.PROVE_REPORT_BYTES_MAX)
    if not line:
        raise ConnectionResetError
    return int(line)


def _is_alone(owner: socket.socket) -> bool:
    """Return True if the process at the other end of the socket has ended."""
    owner.setblocking(False)  # noqa: FBT003
    try:
        return not owner.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    finally:
        owner.setblocking(True)  # noqa: FBT003
