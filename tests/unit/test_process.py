"""One way to start a process: nothing of the program runs again, nothing is left, and no end stays unseen."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import multiprocess
import pytest
from multiprocess.connection import Connection, wait
from multiprocess.process import current_process

from stepwell.process import ChildProcess, SpawnedProcess, describe_exit, search_path
from stepwell.testing.leaks import no_leaks
from tests.support.processes import is_alive, kill
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

MODULE = "tests.unit.test_process"


def main(settings: str) -> int:
    """What a `ChildProcess` runs here: its exit code is in its settings, and comes when the socket ends."""
    given = json.loads(settings)
    with socket.socket(fileno=given["socket"]) as line:
        line.sendall(b"ready")
        while line.recv(1):
            pass
    return int(given["code"])


def describe(pipe: Connection) -> None:
    """Say what a child finds around itself."""
    with pipe:
        stdin = str(Path("/proc/self/fd/0").readlink())
        parent = multiprocess.parent_process()
        pipe.send((os.getpgrp() == os.getpid(), stdin, sys.path, parent is not None and parent.is_alive()))


def describe_multiprocess(pipe: Connection) -> None:
    """Say what a function of the user finds that starts processes itself."""
    with pipe:
        default = multiprocess.get_start_method(allow_none=True)
        pipe.send((default, current_process().daemon))


def start_and_pass_on(pipe: Connection) -> None:
    """Start a process from a process, which says what it finds."""
    inner = SpawnedProcess(describe_multiprocess, (pipe,))
    inner.start()
    inner.join()


def leave_child(pipe: Connection) -> None:
    """End at once, and leave a forked child that holds every descriptor."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        while True:
            signal.pause()
    pipe.send(pid)
    os._exit(5)


def start_another(pipe: Connection) -> None:
    """Start a process from a process."""
    inner = SpawnedProcess(pipe.send, ("from inside",))
    inner.start()
    inner.join()
    inner.close()


def fail() -> None:
    raise ZeroDivisionError


@contextmanager
def running(code: int = 0) -> Iterator[ChildProcess]:
    child = ChildProcess(MODULE, lambda descriptor: json.dumps({"socket": descriptor, "code": code}))
    try:
        assert child.socket.recv(10) == b"ready"
        yield child
    finally:
        child.end(0.0)
        child.close()


# What the child finds.


def test_child_is_alone_in_its_group(capfd: pytest.CaptureFixture[str]) -> None:
    """With nothing on its standard input, and the program's path behind its own."""
    ours, theirs = multiprocess.Pipe()
    with ours:
        process = SpawnedProcess(describe, (theirs,))
        process.start()
        theirs.close()
        leads_group, stdin, path, has_parent = ours.recv()
        process.join()
        assert (process.exitcode, leads_group, stdin, has_parent) == (0, True, "/dev/null", True)
        process.close()
    assert {*search_path()} <= {*path}
    assert path[0] != str(Path.cwd())
    assert capfd.readouterr().err == ""


def test_standard_error_of_its_own() -> None:
    """A child's traceback goes where its owner wants it."""
    reader, writer = os.pipe()
    with open(reader) as written:  # noqa: PTH123
        process = SpawnedProcess(fail, stderr=writer)
        process.start()
        os.close(writer)
        told = written.read()
    process.join()
    assert process.exitcode == 1
    process.close()
    assert "in fail\n    raise ZeroDivisionError" in told


def test_process_starts_a_process() -> None:
    """As any other may."""
    ours, theirs = multiprocess.Pipe()
    with ours, theirs:
        process = SpawnedProcess(start_another, (theirs,))
        process.start()
        assert ours.recv() == "from inside"
        process.join()
        assert process.exitcode == 0
        process.close()


@pytest.mark.parametrize("way", ["script", "standard input"])
def test_main_is_not_run_again(tmp_path: Path, way: str) -> None:
    """Of an unguarded script, and of one that has no file; the program's exit does not wait for the process."""
    program = textwrap.dedent(f"""
        import sys
        sys.path.append({str(Path(__file__).parents[2])!r})
        from stepwell.process import ChildProcess
        import json, multiprocess, os
        child = ChildProcess({MODULE!r}, lambda descriptor: json.dumps({{"socket": descriptor, "code": 0}}))
        assert child.socket.recv(10) == b"ready"
        children = os.popen(f"ps --ppid {{os.getpid()}} -o args=").read()
        assert "resource_tracker" not in children, children
        assert multiprocess.active_children() == []
        print("done", child.pid)
    """)
    script = tmp_path / "script.py"
    script.write_text(program)
    command = [sys.executable, str(script) if way == "script" else "-"]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.returncode, done.stdout.split()[0]) == ("", 0, "done")
    pid = int(done.stdout.split()[1])
    eventually(lambda: not is_alive(pid))


def test_daemonic_process_starts_one() -> None:
    """`multiprocess` forbids children to its daemons, because it would not join them; ours end by themselves."""
    ours, theirs = multiprocess.Pipe()
    with ours, theirs:
        daemon = multiprocess.get_context("spawn").Process(target=start_another, args=(theirs,), daemon=True)
        daemon.start()
        assert ours.poll(60)
        assert ours.recv() == "from inside"
        daemon.join()
        daemon.close()


@pytest.mark.parametrize("daemon", [False, True])
def test_child_may_start_processes_in_its_own_way(*, daemon: bool) -> None:
    """A function of the user finds the default start method of `multiprocess`, and is no daemon even in one."""
    ours, theirs = multiprocess.Pipe()
    with ours, theirs:
        program = multiprocess.get_context("spawn").Process(target=start_and_pass_on, args=(theirs,), daemon=daemon)
        program.start()
        assert ours.recv() == (None, False)
        program.join()
        program.close()


def test_path_in_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for the working directory is left out; everything else stays."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    assert search_path() == [str(gone), str(tmp_path)]
    gone.rmdir()
    assert search_path() == [str(tmp_path)]
    monkeypatch.chdir(tmp_path)


# Its end.


def test_end_is_seen_while_a_grandchild_lives() -> None:
    """The sentinel is the process, and not a pipe that a forked child holds open."""
    ours, theirs = multiprocess.Pipe()
    with ours, theirs:
        process = SpawnedProcess(leave_child, (theirs,))
        process.start()
        left = ours.recv()
        assert wait([process.sentinel], 60) == [process.sentinel]
        process.join(60)
        assert process.exitcode == 5
        process.close()
        assert is_alive(left)
        kill(left)


def test_exit_code_of_main() -> None:
    """`main` returns it when the socket ends."""
    with no_leaks(), running(7) as child:
        assert child.exit_code() is None
        assert child.wait(0.0) is None
        child.disconnect()
        assert child.wait(60) == 7
        child.kill()
        child.disconnect()
        child.close()
        child.close()
        assert (child.exit_code(), child.wait(), child.end(0.0)) == (7, 7, 7)


def test_process_that_does_not_end_is_killed() -> None:
    """When its time is over, and not before."""
    with running() as child:
        os.kill(child.pid, signal.SIGSTOP)
        child.disconnect()
        assert child.end(time.monotonic() + 0.1) == -signal.SIGKILL


def test_child_that_dies_before_it_reads() -> None:
    """Is seen by its exit code, and costs the program nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepwell.process._BOOT", "import os; os.close({descriptor}); os._exit(3)")
        process = SpawnedProcess(print, ("x" * 1_000_000,))
        process.start()
    process.join()
    assert process.exitcode == 3
    process.close()


@pytest.mark.parametrize(
    "code, told",
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGTERM, "was killed by SIGTERM"),
        (-signal.SIGKILL, "was killed by SIGKILL, perhaps for want of memory"),
        (-(signal.SIGRTMIN + 1), f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_description_of_an_exit(code: int, told: str) -> None:
    """With the name of the signal, where it has one."""
    assert describe_exit(code) == told
