"""A durable manager in a process of its own, which can be made to die at a named point of a turn.

`python -m tests.support.killable_manager SETTINGS POINT`: the turn that stores a fragment with the id `FATAL` ends
there.
"""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stepwell import limits
from stepwell.domain.machine import Outcome
from stepwell.errors import StoreFailed
from stepwell.manager.journal import Journal
from stepwell.manager.loop import Loop
from stepwell.manager.process import STORE_FAILED, Settings, serve
from stepwell.storage.files.mark import MarkFile
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import CommitBatch
from stepwell.transport.peer import Peer

FATAL = "fatal"
READY = b"ready\n"
START_SECONDS = 60


def _is_fatal(turn: CommitBatch) -> bool:
    return any(fragment_id == FATAL for _, fragment_id in turn.fragments)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(kind: type, name: str, deed: Callable[..., None]) -> None:
    """Call a function before each call of a method."""
    method = getattr(kind, name)

    def changed(self: object, *arguments: object) -> object:
        deed(self, *arguments)
        return method(self, *arguments)

    setattr(kind, name, changed)


def _after(kind: type, name: str, deed: Callable[..., None]) -> None:
    """Call a function after each call of a method."""
    method = getattr(kind, name)

    def changed(self: object, *arguments: object) -> object:
        result = method(self, *arguments)
        deed(self, *arguments)
        return result

    setattr(kind, name, changed)


class _Watcher:
    """Notices the fatal turn, and from then on dies at the first opportunity of the chosen kind."""

    def __init__(self) -> None:
        self.has_seen = False
        _before(SqliteStore, "commit", self._look)

    def _look(self, _store: SqliteStore, turn: CommitBatch) -> None:
        self.has_seen |= _is_fatal(turn)

    def die_if_seen(self, *_: object) -> None:
        if self.has_seen:
            _die()

    def half_reply(self, peer: Peer, _now_s: float) -> None:
        if self.has_seen and peer.outbox:
            peer._socket.send(peer.outbox[: len(peer.outbox) // 2])
            _die()


def _after_apply(_watcher: _Watcher) -> None:
    _before(Journal, "commit", lambda journal: _die() if _is_fatal(journal._batch) else None)


def _before_commit(_watcher: _Watcher) -> None:
    """Die when everything is written and nothing is committed."""
    _after(SqliteStore, "_write", lambda _store, turn: _die() if _is_fatal(turn) else None)


def _after_commit(watcher: _Watcher) -> None:
    _after(SqliteStore, "commit", watcher.die_if_seen)


def _before_mark(watcher: _Watcher) -> None:
    """Die when the database has the commit, and the mark does not."""
    _before(MarkFile, "write", watcher.die_if_seen)


def _full_at_mark(watcher: _Watcher) -> None:
    """The disk refuses the mark of the fatal turn."""

    def refuse(*_: object) -> None:
        if watcher.has_seen:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _before(MarkFile, "write", refuse)


def _before_reply(watcher: _Watcher) -> None:
    _before(Loop, "_reply", watcher.die_if_seen)


def _during_reply(watcher: _Watcher) -> None:
    _before(Peer, "flush", watcher.half_reply)


def _after_reply(watcher: _Watcher) -> None:
    _after(Loop, "_reply", watcher.die_if_seen)


def _defect(_watcher: _Watcher) -> None:
    """Raise an error while the state changes."""

    def fail(_journal: Journal, outcomes: Sequence[Outcome], _now_ms: int) -> None:
        rows = [change.after for outcome in outcomes for change in outcome.changes]
        if any(getattr(row, "fragment_id", None) == FATAL for row in rows):
            raise ZeroDivisionError

    _before(Journal, "record", fail)


def _failed_flush(_watcher: _Watcher) -> None:
    """Report an error of the disk when the fatal turn is committed, after all of it was written."""

    def fail(_store: SqliteStore, turn: CommitBatch) -> None:
        if _is_fatal(turn):
            raise sqlite3.OperationalError("disk I/O error")

    _after(SqliteStore, "_write", fail)


FAULTS: dict[str, Callable[[_Watcher], None]] = {
    "defect": _defect,
    "failed flush": _failed_flush,
    "full at mark": _full_at_mark,
}
"""The manager ends with an error there, and not by a signal."""

POINTS: dict[str, Callable[[_Watcher], None]] = {
    "after apply": _after_apply,
    "before commit": _before_commit,
    "before mark": _before_mark,
    "after commit": _after_commit,
    "before reply": _before_reply,
    "during reply": _during_reply,
    "after reply": _after_reply,
}


def start(settings: Settings, point: str = "") -> subprocess.Popen[bytes]:
    """Start a manager, and return when it serves."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killable_manager", msgspec.json.encode(settings).decode(), point],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    if process.stdout.readline() != READY:
        process.kill()
        process.wait()
        process.stdout.close()
        raise AssertionError(f"the manager did not start: exit code {process.returncode}")
    return process


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    """Send a signal to a manager, and return its exit code."""
    process.send_signal(number)
    code = process.wait(START_SECONDS)
    assert process.stdout is not None
    process.stdout.close()
    return code


@contextmanager
def running(settings: Settings, point: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a manager for the duration of the block."""
    process = start(settings, point)
    try:
        yield process
    finally:
        end(process, signal.SIGKILL)


def main(encoded: str, point: str) -> int:
    settings = msgspec.json.decode(encoded, type=Settings)
    if point:
        (POINTS | FAULTS)[point](_Watcher())
    for name in ("LARGE_SECONDS_ALONE", "LARGE_SECONDS_PER_TURN"):  # a large batch takes many turns on any machine
        setattr(limits, name, 0.0)

    def ready() -> None:
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()

    try:
        serve(settings, ready)
    except StoreFailed:
        return STORE_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
