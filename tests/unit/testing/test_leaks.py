"""The leak check can fail: each kind of thing that is left behind is found, and named."""

import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import multiprocess
import pytest

from stepwell.testing.leaks import no_leaks
from tests.support.wait import PATIENCE_SECONDS, eventually

AT_ONCE = 0.05
"""A leak does not end by itself, so there is nothing to wait for."""


@pytest.fixture(autouse=True)
def temporary_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place for temporary files of each test alone: managers of other tests remove dead socket directories."""
    with tempfile.TemporaryDirectory(prefix="sw-") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield


@contextmanager
def reported(pattern: str) -> Iterator[ExitStack]:
    """Expect the block's leak to be reported so; what is pushed on the stack clears it away afterwards."""
    with ExitStack() as cleanup, pytest.raises(AssertionError, match=pattern), no_leaks(AT_ONCE):
        yield cleanup


def test_nothing_left_is_no_leak() -> None:
    """Whatever is closed, joined or removed inside the block is not reported."""
    with no_leaks(PATIENCE_SECONDS), tempfile.TemporaryFile(), tempfile.TemporaryDirectory(prefix="stepwell-"):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_joined_process_is_no_leak() -> None:
    """The helper that multiprocess starts with its first process, and keeps, is not the test's."""
    with no_leaks(PATIENCE_SECONDS):
        process = multiprocess.get_context("spawn").Process(target=int)
        process.start()
        process.join()
        process.close()


def test_what_is_still_ending_is_waited_for() -> None:
    """A thread that ends by itself after the block is not reported."""
    timer = threading.Timer(0.1, int)
    with no_leaks(PATIENCE_SECONDS):
        timer.start()


def test_error_of_the_block_comes_first() -> None:
    """A block that fails is not also accused of what its failure left."""
    left, right = socket.socketpair()
    with left, right, pytest.raises(ZeroDivisionError), no_leaks(AT_ONCE), left.dup() as _:
        raise ZeroDivisionError


def test_thread() -> None:
    """A thread is named by its name."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="idler")
    with reported("thread idler") as cleanup:
        thread.start()
        cleanup.callback(thread.join)
        cleanup.callback(done.set)


def test_child() -> None:
    """A child process is named by its command line."""
    with reported(r"process \d+: sleep 1000") as cleanup:
        child = cleanup.enter_context(subprocess.Popen(["sleep", "1000"]))
        cleanup.callback(child.kill)


def test_child_that_nobody_waited_for() -> None:
    """A zombie is a leak too."""
    with reported(r"process \d+: ended, and its parent did not wait for it") as cleanup:
        child = cleanup.enter_context(subprocess.Popen(["true"]))
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_grandchild_that_outlived_its_parent() -> None:
    """A descendant is found although the kernel has given it another parent."""
    with reported(r"process \d+: sleep 1000") as cleanup:
        orphan = subprocess.check_output(["sh", "-c", "sleep 1000 >/dev/null & echo $!"])
        cleanup.callback(os.kill, int(orphan), signal.SIGKILL)


def test_descriptor() -> None:
    """A descriptor is named by what it is open on."""
    with reported(r"descriptor \d+ -> socket:") as cleanup:
        for end in socket.socketpair():
            cleanup.enter_context(end)


def test_memory_file() -> None:
    """Shared memory without a name in the file system is found by its descriptor."""
    with reported(r"descriptor \d+ -> /memfd:arena") as cleanup:
        cleanup.callback(os.close, os.memfd_create("arena"))


def test_mapping_of_a_closed_memory_file() -> None:
    """Memory that is still mapped is found although its descriptor is closed."""
    with reported(r"descriptor \d+ -> /memfd:arena") as cleanup:
        memory = os.memfd_create("arena")
        os.truncate(memory, mmap.PAGESIZE)
        cleanup.enter_context(mmap.mmap(memory, mmap.PAGESIZE))
        os.close(memory)


def test_named_shared_memory() -> None:
    """A segment is found although nobody has it open."""
    with reported(f"shared memory /dev/shm/stepwell-{os.getpid()}") as cleanup:
        memory = SharedMemory(f"stepwell-{os.getpid()}", create=True, size=1)
        memory.close()
        cleanup.callback(memory.unlink)


@pytest.mark.parametrize("parent", [None, "XDG_RUNTIME_DIR"])
def test_socket_directory(parent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of ours is found in either place in which a manager makes one, and its sockets are named."""
    if parent is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    with reported(r"directory .*/stepwell-\w+ with the sockets manager") as cleanup:
        directory = tempfile.mkdtemp(prefix="stepwell-", dir=parent and os.environ[parent])
        cleanup.callback(Path(directory).rmdir)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{directory}/manager")
        cleanup.callback(Path(directory, "manager").unlink)


def test_directory_that_another_program_left() -> None:
    """A program that is killed leaves its directory among the temporary files of the machine. It is not ours."""
    with no_leaks(PATIENCE_SECONDS):
        directory = Path(tempfile.mkdtemp(prefix="stepwell-"))
    directory.rmdir()


def test_directory_of_another_name() -> None:
    """The runtime directory of a user belongs to all programs; only what managers make there is looked for."""
    with no_leaks(AT_ONCE):
        directory = Path(tempfile.mkdtemp(prefix="other-", dir=os.environ["XDG_RUNTIME_DIR"]))
    directory.rmdir()


def test_environment_that_changes_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fixture for the whole run ends inside the check of its last test. What was elsewhere before is no leak."""
    with tempfile.TemporaryDirectory(prefix="stepwell-"), no_leaks(AT_ONCE):
        monkeypatch.delenv("XDG_RUNTIME_DIR")


def test_directory_of_another_program() -> None:
    """It is not reported while that program listens there: other runs on the machine have the same names."""
    stranger = (
        "import os, socket, sys\n"
        "if os.fork(): os._exit(0)\n"
        "with socket.socket(socket.AF_UNIX) as listener:\n"
        "    listener.bind(sys.argv[1] + '/manager')\n"
        "    os.write(1, b'bound')\n"
        "    os.read(0, 1)\n"
    )
    (its_input, our_output), (our_input, its_output) = os.pipe(), os.pipe()
    with ExitStack() as cleanup:
        for descriptor in (its_input, our_input, its_output):
            cleanup.callback(os.close, descriptor)
        with no_leaks(PATIENCE_SECONDS):
            directory = tempfile.mkdtemp(prefix="stepwell-")
            subprocess.run(
                [sys.executable, "-c", stranger, directory], stdin=its_input, stdout=its_output, env={}, check=True
            )
            assert os.read(our_input, 5) == b"bound"
        os.close(our_output)
        Path(directory, "manager").unlink()
        Path(directory).rmdir()


def test_is_cheap() -> None:
    """Nobody is tempted to turn the check off: it costs a test less than 2 ms."""

    def is_quick() -> bool:
        """One of the attempts is not held up by what else the machine does."""
        began = time.perf_counter()
        with no_leaks():
            pass
        return time.perf_counter() - began < 0.002

    eventually(is_quick)


@pytest.mark.parametrize(
    "file, mapping",
    [
        ("", "f = open('/dev/shm/' + name, 'w+b'); f.truncate(9); m = mmap.mmap(f.fileno(), 9)"),
        ("sem.", "semaphore = _multiprocessing.SemLock(1, 1, 1, '/' + name, False)"),
    ],
    ids=["mapped file", "semaphore that only its creator has open"],
)
def test_shared_memory_of_others(file: str, mapping: str) -> None:
    """What a process has mapped that is none of ours is its own business, however new it is."""
    own = f"stepwell-others-{os.getpid()}"
    name = f"/dev/shm/{file}{own}"  # noqa: S108 - that is where shared memory is
    program = f"import _multiprocessing, mmap, sys; name = {own!r}; {mapping}; sys.stdin.read()"
    reader, writer = os.pipe()
    with ExitStack() as cleanup:
        cleanup.callback(os.close, writer)
        clean = {key: text for key, text in os.environ.items() if not key.startswith(("STEPWELL", "COVERAGE"))}
        with no_leaks(PATIENCE_SECONDS):
            # Its parent ends at once, so that it is nobody's child.
            command = ["sh", "-c", '"$0" -I -c "$1" <&3 >/dev/null 2>&1 &', sys.executable, program]
            subprocess.run(command, env=clean, check=True, preexec_fn=lambda: os.dup2(reader, 3), pass_fds=(3,))
            os.close(reader)
            eventually(Path(name).exists)
            cleanup.callback(os.unlink, name)
