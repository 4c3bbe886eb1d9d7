"""The tracer sees what it is trusted to see, and the disk lacks what a power cut would take."""

import errno
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import tracing
from tests.processes import descriptors, is_alive
from tests.tracing import Disk, SystemCall, Trace, TracingForbidden, traced, unflushed_at
from tests.waiting import eventually

PRELUDE = """
import os, socket, sqlite3, sys, threading
peer = socket.socket(fileno=int(sys.argv[1]))
"""
STORE = "store = os.open('store', os.O_RDWR | os.O_CREAT)\n"
READY = "peer.send(b'ready'); peer.recv(2)\n"


class Program(NamedTuple):
    process: subprocess.Popen[bytes]
    peer: socket.socket

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def go(self) -> None:
        self.peer.send(b"go")


@contextmanager
def program(directory: Path, text: str, before: str = "") -> Iterator[Program]:
    """A process that has done what comes before, and does the rest when it is told to; it ends with the block."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(60)
        with theirs:
            command = [sys.executable, "-S", "-c", PRELUDE + before + READY + text, str(theirs.fileno())]
            process = subprocess.Popen(command, cwd=directory, pass_fds=[theirs.fileno()])
        with process:
            assert ours.recv(5) == b"ready"
            try:
                yield Program(process, ours)
            except BaseException:
                process.kill()
                raise
            ours.close()


def trace_of(directory: Path, text: str, before: str = "") -> Trace:
    """Trace a program from where it is told to go to its end, which has to be a good one."""
    with program(directory, text, before) as running:
        with traced(running.pid, directory) as trace:
            running.go()
            trace.join(60)
        assert running.process.wait(60) == 0
    return trace


def sends(trace: Trace) -> list[int]:
    return [index for index, call in enumerate(trace.calls) if call.is_send]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


def call(name: str, began: int, ended: int, data: bytes = b"") -> SystemCall:
    return SystemCall(
        name, 1, 3, "/home/store", is_file=True, offset=0, length=0, returned=0, data=data, began=began, ended=ended
    )


def test_flushed_before_the_reply(home: Path) -> None:
    """Nothing is unflushed when a reply leaves that was sent after the flush."""
    trace = trace_of(home, STORE + "os.write(store, b'row'); os.fdatasync(store); peer.send(b'stored')")
    (send,) = sends(trace)
    assert trace.calls[send].data == b"stored"
    assert unflushed_at(trace.calls, send) == set()


def test_nothing_to_flush(home: Path) -> None:
    """What has no name, or is memory by its name, is not expected to be flushed."""
    text = f"""
name = '/dev/shm/tracing-{os.getpid()}'
for file in os.memfd_create(name), os.open(name, os.O_RDWR | os.O_CREAT), os.open('x-shm', os.O_RDWR | os.O_CREAT):
    os.write(file, b'row'); os.ftruncate(file, 2)
peer.send(b'stored'); os.unlink(name)
"""
    trace = trace_of(home, text)
    assert [each.name for each in trace.calls].count("ftruncate") == 3
    assert unflushed_at(trace.calls, sends(trace)[0]) == set()


def test_flushed_after_the_reply(home: Path) -> None:
    """The file is named when a reply leaves before the flush."""
    trace = trace_of(home, STORE + "os.write(store, b'row'); peer.send(b'stored'); os.fdatasync(store)")
    (send,) = sends(trace)
    assert unflushed_at(trace.calls, send) == {str(home / "store")}


def test_flushes_of_nothing(home: Path) -> None:
    """A flush that fails, or is another file's, flushes nothing."""
    text = """
os.write(store, b'row'); os.fsync(os.open('.', os.O_RDONLY)); os.fsync(os.open('other', os.O_RDWR | os.O_CREAT))
try: os.fsync(999)
except OSError: peer.send(b'stored')
"""
    trace = trace_of(home, STORE + text)
    assert [each.returned for each in trace.calls if each.name == "fsync"] == [0, 0, -errno.EBADF]
    assert unflushed_at(trace.calls, sends(trace)[0]) == {str(home / "store")}


def test_power_cut(home: Path, tmp_path: Path) -> None:
    """What was flushed is there, what was not is lost, and what was there before tracing is kept."""
    text = "os.write(store, b'kept'); os.fsync(store); os.write(store, b'lost'); peer.send(b'stored')"
    trace = trace_of(home, text, before=STORE + "os.write(store, b'first ')\n")
    assert (home / "store").read_bytes() == b"first keptlost"
    trace.disk.at(0, tmp_path / "at start")
    assert (tmp_path / "at start/store").read_bytes() == b"first "
    trace.disk.at(sends(trace)[0], tmp_path / "at reply")
    assert (tmp_path / "at reply/store").read_bytes() == b"first kept"
    trace.disk.at(len(trace.calls), tmp_path / "at end")
    assert (tmp_path / "at end/store").read_bytes() == b"first kept"


CHANGES = [
    "os.write(store, b'AB')",
    "os.writev(store, [b'A', b'BC'])",
    "os.pwrite(store, b'AB', 10)",
    "os.pwritev(store, [b'A', b'BC'], 1)",
    "os.ftruncate(store, 2)",
    "os.ftruncate(store, 9)",
    "os.posix_fallocate(store, 3, 9)",
    "os.lseek(store, 3, 0); os.write(store, b'AB')",
    "store = os.open(name, os.O_WRONLY | os.O_APPEND); os.write(store, b'AB'); os.write(store, b'CD')",
    "os.open(name, os.O_WRONLY | os.O_TRUNC); os.write(store, b'AB')",
    "os.unlink(name); store = os.open(name, os.O_RDWR | os.O_CREAT); os.write(store, b'AB')",
    "os.mkdir('below'); store = os.open('below/other', os.O_RDWR | os.O_CREAT); os.write(store, b'AB')",
]


def test_every_change_is_done_again(home: Path, tmp_path: Path) -> None:
    """The image of a file that was flushed at the end is what the file is; each is named after its change."""
    text = ""
    for name, change in enumerate(CHANGES):
        (home / str(name)).write_bytes(b"12345")
        text += f"name = '{name}'; store = os.open(name, os.O_RDWR); {change}; os.fsync(store)\n"
    trace = trace_of(home, text)
    trace.disk.at(len(trace.calls), tmp_path / "image")
    assert contents(tmp_path / "image") == contents(home)


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_cannot_be_done_again(tmp_path: Path) -> None:
    """A change whose effect is not known is not passed over."""
    disk = Disk(Path("/home"), {}, [call("fallocate", 0, 1)._replace(offset=None), call("fsync", 2, 3)])
    with pytest.raises(NotImplementedError, match="fallocate"):
        disk.at(2, tmp_path)


def test_messages(home: Path) -> None:
    """Whatever way bytes leave or enter by a socket, they are recorded, and only as many as did."""
    text = """
peer.send(b'one'); peer.sendmsg([b'two', b'-', b'three']); os.write(peer.fileno(), b'four')
peer.recv(1); buffers = bytearray(2), bytearray(9); peer.recvmsg_into(buffers)
"""
    with program(home, text) as running, traced(running.pid) as trace:
        running.peer.send(b"go" + b"abcdef")
        trace.join(60)
    assert [each.data for each in trace.calls if each.is_send] == [b"one", b"two-three", b"four"]
    assert [each.data for each in trace.calls if each.is_receive] == [b"go", b"a", b"bcdef"]
    assert {each.path.partition("[")[0] for each in trace.calls if each.is_send or each.is_receive} == {"socket:"}


SQLITE = """
def connect():
    db = sqlite3.connect('store.sqlite', isolation_level=None)
    db.execute('PRAGMA synchronous=%s'); db.execute('PRAGMA wal_autocheckpoint=5')
    return db
db = connect(); db.execute('PRAGMA journal_mode=WAL'); db.execute('CREATE TABLE sent (row INTEGER)'); db.close()
"""
COMMITS = """
db = connect()
for row in range(9):
    db.execute('INSERT INTO sent VALUES (?)', (row,))
    peer.send(bytes([row]))
"""


def missing_rows(trace: Trace, images: Path) -> list[int]:
    """How many of the rows that were sent by then a power cut at each send would have lost."""
    missing = []
    for count, index in enumerate(sends(trace), start=1):
        trace.disk.at(index, images / str(count))
        with closing(sqlite3.connect(images / str(count) / "store.sqlite")) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            missing.append(count - len(db.execute("SELECT row FROM sent").fetchall()))
    return missing


def test_sqlite_that_flushes(home: Path, tmp_path: Path) -> None:
    """With FULL, each row is on disk when it is sent, also after a checkpoint."""
    trace = trace_of(home, COMMITS, before=SQLITE % "FULL")
    assert [unflushed_at(trace.calls, index) for index in sends(trace)] == [set()] * 9
    assert missing_rows(trace, tmp_path) == [0] * 9
    assert {Path(each.path).suffix for each in trace.calls if each.is_change} == {".sqlite", ".sqlite-wal"}


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_sqlite_that_does_not_flush(home: Path, tmp_path: Path, synchronous: str) -> None:
    """With less than FULL, rows are sent that a power cut takes."""
    trace = trace_of(home, COMMITS, before=SQLITE % synchronous)
    assert str(home / "store.sqlite-wal") in unflushed_at(trace.calls, sends(trace)[0])
    assert missing_rows(trace, tmp_path)[0] == 1


def test_the_process_goes_on(home: Path) -> None:
    """After the block the process lives as before, can be traced again, and ends as it likes."""
    before = "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    text = "peer.send(b'1'); peer.recv(2); peer.send(b'2'); peer.recv(2); sys.exit(7)"
    with program(home, text, before) as running:
        for expected in (b"1", b"2"):
            open_before = descriptors(os.getpid())
            with traced(running.pid) as trace:
                running.go()
                assert running.peer.recv(1) == expected
                eventually(lambda: running.state == "S")
            assert [each.data for each in trace.calls if each.is_send] == [expected]
            assert [each.returned for each in trace.calls if each.is_receive] == [2]
            assert descriptors(os.getpid()) == open_before
        running.go()
        assert running.process.wait(60) == 7


def test_every_thread(home: Path) -> None:
    """Threads that were there, and those that come, are all seen; a call that has ended is recorded."""
    before = """
start = threading.Barrier(4)
def send(): start.wait(); peer.send(b'x')
for _ in range(3): threading.Thread(target=send).start()
"""
    text = """
start.wait()
threads = [threading.Thread(target=peer.send, args=(b'y',)) for _ in range(20)]
for thread in threads: thread.start()
for thread in threads: thread.join()
peer.recv(1)
"""
    with program(home, text, before) as running, traced(running.pid) as trace:
        running.go()
        received = 0
        while received < 23:
            received += len(running.peer.recv(23))
    assert sorted(each.data for each in trace.calls if each.is_send) == [b"x"] * 3 + [b"y"] * 20
    assert len({each.thread for each in trace.calls if each.data == b"x"}) == 3


def test_killed(home: Path) -> None:
    """A process that is killed while it is traced ends so for its parent too."""
    text = "while True: os.write(store, b'row')"
    with program(home, text, before=STORE) as running:
        with traced(running.pid, home) as trace:
            running.go()
            eventually(lambda: trace.calls)
            os.kill(running.pid, signal.SIGKILL)
            trace.join(60)
        assert running.process.wait(60) == -signal.SIGKILL


def test_stopped(home: Path) -> None:
    """A process that a signal has stopped is traced without being let go, and goes on when it is told to."""
    with program(home, "peer.send(b'x')") as running:
        os.kill(running.pid, signal.SIGSTOP)
        eventually(lambda: running.state == "T")
        with traced(running.pid):
            running.go()
            running.peer.settimeout(0.1)
            with pytest.raises(TimeoutError):
                running.peer.recv(1)
        eventually(lambda: running.state == "T")
        with traced(running.pid) as trace:
            os.kill(running.pid, signal.SIGCONT)
            trace.join(60)
        assert [each.data for each in trace.calls if each.is_send] == [b"x"]


def test_forbidden(home: Path) -> None:
    """What may not be traced is said to be so: here because somebody else does."""
    with program(home, "") as running, traced(running.pid):
        with pytest.raises(TracingForbidden, match=rf"may not trace {running.pid} \(python.*whose tracer is \d+"):
            with traced(running.pid):
                pass


def test_unknown_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose calls have other numbers is refused by name."""
    monkeypatch.setattr(tracing, "_MACHINES", ("vax",))
    with pytest.raises(TracingForbidden, match=os.uname().machine), traced(os.getpid()):
        pass


def test_ended(home: Path) -> None:
    """A process that has ended, and nobody has waited for, is not there."""
    with program(home, "") as running:
        running.go()
        eventually(lambda: not is_alive(running.pid))
        with pytest.raises(ProcessLookupError, match=str(running.pid)), traced(running.pid):
            pass


def test_lost_sight(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still unseen, as when its parent took a stop from the tracer, is not waited for."""
    monkeypatch.setattr(Trace, "_let_go_on", lambda *_: None)
    with program(home, "") as running:
        with pytest.raises(AssertionError, match=f"lost sight of process {running.pid}: did its parent"):
            with traced(running.pid):
                monkeypatch.setattr(tracing, "STOP_SECONDS", 0.1)
        assert running.process.wait(60) == -signal.SIGKILL


WRITE = call("pwrite64", 10, 20, b"a")
SEND = call("sendto", 50, 60)


@pytest.mark.parametrize(
    "flushes, covered",
    [
        ([], False),
        ([call("fsync", 30, 40)], True),
        ([call("fsync", 30, 40)._replace(returned=-errno.EIO)], False),
        ([call("sync_file_range", 30, 40)], False),
        ([call("fsync", 15, 40)], False),
        ([call("fsync", 30, 55)], False),
        ([call("fsync", 30, 35), call("fsync", 15, 40)], True),
    ],
    ids=["none", "between", "failed", "weak", "began too early", "ended too late", "two"],
)
def test_calls_at_the_same_time(tmp_path: Path, flushes: list[SystemCall], covered: bool) -> None:  # noqa: FBT001
    """A flush covers what ended before it began, once it has ended."""
    calls = sorted([WRITE, *flushes, SEND], key=lambda each: each.ended)
    assert unflushed_at(calls, calls.index(SEND)) == (set() if covered else {WRITE.path})
    Disk(Path("/home"), {WRITE.path: b"b"}, calls).at(calls.index(SEND), tmp_path)
    assert (tmp_path / "store").read_bytes() == (b"a" if covered else b"b")


def test_change_that_has_not_ended() -> None:
    """A change that is still going on when the reply leaves is not flushed."""
    assert unflushed_at([SEND, WRITE._replace(ended=70)], 0) == {WRITE.path}
    assert unflushed_at([SEND, WRITE._replace(began=55, ended=70)], 0) == set()
