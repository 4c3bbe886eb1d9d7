"""Real processes, spawned, and never left behind."""

import os
import posix
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import multiprocess

from stepwell.process import SpawnedProcess

CHILD_SECONDS = 60
"""A forked child that hangs is ended by its own alarm."""

CONTEXT = multiprocess.get_context("spawn")


@contextmanager
def spawned(target: Callable[..., object], *arguments: object, timeout_s: float = 60.0) -> Iterator[SpawnedProcess]:
    """Run a process for the duration of the block; join it at the end, or kill it if it does not end in time."""
    process = SpawnedProcess(target, arguments)
    process.start()
    try:
        yield process
        process.join(timeout_s)
    finally:
        if process.exitcode is None:
            process.kill()
            process.join()
        process.close()


def run_all(target: Callable[..., object], arguments: Sequence[tuple[object, ...]], timeout_s: float = 120.0) -> None:
    """Run a process for each tuple of arguments, all at once; each has to end well."""
    processes = [SpawnedProcess(target, each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout_s)
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.close()
    assert codes == [0] * len(arguments), f"exit codes {codes}, {len(late)} of them too late"


def fork(deed: Callable[[], None], *, is_measured: bool = False) -> int:
    """A forked child that does the deed and never comes back; its exit code is 1 if the deed failed.

    Measure a child that runs lines which no other test runs. It takes long, because the child writes down everything
    that its parent has covered so far.

    A child of a process with other threads must not be measured: coverage has locks, which one of these threads may
    hold at the moment of the fork, and which the child would then wait for in vain.
    """
    trace = sys.gettrace()
    if not is_measured:
        sys.settrace(None)  # before the fork, because functions of ours are called in the child before it returns
    pid = os.fork()
    if pid:
        sys.settrace(trace)
        return pid
    leave = os._exit if is_measured else posix._exit  # coverage replaces the first, to write down its data there
    code = 1
    try:
        signal.alarm(CHILD_SECONDS)
        deed()
        code = 0
    finally:
        leave(code)


def in_forked_child(deed: Callable[[], None], *, is_measured: bool = False) -> None:
    """Have a forked child do the deed; it has to come to its end there."""
    _, status = os.waitpid(fork(deed, is_measured=is_measured), 0)
    assert os.waitstatus_to_exitcode(status) == 0


def is_alive(pid: int) -> bool:
    """Return True if a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def kill(pid: int) -> None:
    """End a process the hard way."""
    os.kill(pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    """Return the number of descriptors that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
