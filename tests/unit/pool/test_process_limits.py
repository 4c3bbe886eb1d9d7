"""What a worker does first: it cannot outlive its parent, and it is held to its limits."""

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from stepwell.pool.process_limits import EXIT_ORPHANED, ProcessLimits, restrict_process
from tests.support.processes import is_alive, kill
from tests.support.wait import promptly

ORPHAN_SECONDS = 2.0
MIB = 1024 * 1024

GUARDED = """
import faulthandler, json, os, resource, signal, sys
from stepwell.pool.process_limits import ProcessLimits, restrict_process
{before}
restrict_process(ProcessLimits(parent_pid=int(sys.argv[1]), **json.loads(sys.argv[2])))
{after}
"""

REPORT = """
print(json.dumps({
    "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "data": resource.getrlimit(resource.RLIMIT_DATA),
    "nice": os.nice(0),
    "faulthandler": faulthandler.is_enabled(),
}))
"""

WAIT = "print(os.getpid(), flush=True); signal.pause()"


def command(before: str = "", after: str = "", parent: int | None = None, **limits: int) -> list[str]:
    code = GUARDED.format(before=before, after=after)
    return [sys.executable, "-c", code, str(parent or os.getpid()), json.dumps(limits)]


def report(before: str = "", **limits: int) -> dict[str, object]:
    done = subprocess.run(command(before, REPORT, **limits), capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_signals_are_as_a_worker_needs_them() -> None:
    """Whatever the program has ignored or blocked: Ctrl-C is for the program, and SIGTERM ends a worker."""
    before = "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    found = report(before)
    assert (found["sigint"], found["sigterm"], found["blocked"]) == (True, True, 0)
    assert found["core"] == [0, 0]
    assert found["faulthandler"]


def test_limits_that_are_not_given_stay_as_they_are() -> None:
    """They are the program's own."""
    found = report()
    assert found["data"] == [*resource.getrlimit(resource.RLIMIT_DATA)]
    assert found["nice"] == os.nice(0)


def test_limits_that_are_given() -> None:
    """Memory in bytes, and niceness on top of the program's."""
    found = report(max_memory_bytes=512 * MIB, nice=3)
    assert found["data"] == [512 * MIB, 512 * MIB]
    assert found["nice"] == min(os.nice(0) + 3, 19)


def test_limit_above_what_is_allowed() -> None:
    """A lower one that somebody has set before holds."""
    before = f"resource.setrlimit(resource.RLIMIT_DATA, ({512 * MIB}, {512 * MIB}))"
    assert report(before, max_memory_bytes=1024 * MIB)["data"] == [512 * MIB, 512 * MIB]


def test_memory_past_the_limit_is_an_error() -> None:
    """Not a death: the worker can say what happened."""
    after = f"try: bytes({1024 * MIB})\nexcept MemoryError: print('refused')"
    done = subprocess.run(command(after=after, max_memory_bytes=256 * MIB), capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def test_program_without_a_stderr() -> None:
    """There is nowhere to write a fault to."""
    assert report("sys.stderr = None")["faulthandler"] is False


def test_worker_of_another_parent_ends_at_once() -> None:
    """Its own was gone before it could be bound to it."""
    done = subprocess.run(command(after="print('still here')", parent=1), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (EXIT_ORPHANED, "")


def test_worker_dies_with_its_parent() -> None:
    """The kernel sees to it, whatever the worker is doing."""
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    code = GUARDED.format(before="sys.argv[1] = str(os.getppid())", after=WAIT)
    parent = [sys.executable, "-c", starter, sys.executable, "-c", code, "0", "{}"]
    with subprocess.Popen(parent, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        kill(running.pid)
        running.wait(60)
        promptly(lambda: not is_alive(pid), ORPHAN_SECONDS)


def test_worker_dies_with_the_thread_that_started_it() -> None:
    """Which is why whoever starts workers does it from a thread that lives as long."""
    started: list[subprocess.Popen[str]] = []
    has_started, may_end = threading.Event(), threading.Event()

    def start() -> None:
        started.append(subprocess.Popen(command(after=WAIT), stdout=subprocess.PIPE, text=True))
        has_started.set()
        may_end.wait(60)

    thread = threading.Thread(target=start)
    thread.start()
    has_started.wait(60)
    with started[0] as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        assert process.poll() is None
        may_end.set()
        thread.join()
        promptly(lambda: process.poll() is not None, ORPHAN_SECONDS)
        assert process.returncode == -signal.SIGKILL


def test_kernel_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that could be orphaned does not work."""
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=lambda *_: -1))
    ctypes.set_errno(0)
    with pytest.raises(OSError, match="does not bind"):
        restrict_process(ProcessLimits(parent_pid=os.getppid()))
