"""A worker process of a trial, run in a thread of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import stepwell as sw
from stepwell.prove import worker
from stepwell.prove.history import History, TrialHeader, history_of, read_records
from stepwell.prove.lane import LaneSettings
from stepwell.prove.recorder import END_KEY
from stepwell.prove.worker import STEPWELL, TrialReport, TrialWorkerSettings

HEADER = TrialHeader(STEPWELL, 1, 1, 2, 0.1)


def settings_of(address: str, tmp_path: Path, **changes: object) -> TrialWorkerSettings:
    given = TrialWorkerSettings(
        subject=STEPWELL,
        address=address,
        project="p",
        process=0,
        threads=2,
        lanes=LaneSettings(1, 0.1, ()),
        path=str(tmp_path / "records"),
        watches=("blocking", "asyncio"),
    )
    return msgspec.structs.replace(given, **changes)


class Owner:
    """The other end of a worker's socket."""

    def __init__(self, ours: socket.socket) -> None:
        self._socket = ours
        self._socket.settimeout(60)

    def report(self) -> TrialReport:
        received = self._socket.recv(4096)
        return msgspec.json.decode(received, type=TrialReport) if received else TrialReport()

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def begin(self) -> None:
        self._socket.sendall(str(time.monotonic_ns()).encode())


@contextmanager
def running(settings: TrialWorkerSettings) -> Iterator[Owner]:
    """Run a worker in a thread, and wait for its end after the block."""
    ours, theirs = socket.socketpair()
    encoded = msgspec.json.encode(msgspec.structs.replace(settings, socket_fd=theirs.detach())).decode()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(worker.main(encoded)))
    thread.start()
    with ours:
        yield Owner(ours)
        thread.join(60)
    assert codes == [0]


def recorded(settings: TrialWorkerSettings, client: sw.Client) -> History:
    """Run a worker on the manager of a client, and return what it has recorded."""
    with running(settings) as owner:
        assert owner.report().word == "ready"
        owner.begin()
        assert owner.report().word == "done"
        client.tiers.store(sw.Fragment(fragment_id=END_KEY, body=END_KEY))
        assert owner.report() == TrialReport()
    return history_of(HEADER, read_records(Path(settings.path)))
