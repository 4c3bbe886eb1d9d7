"""The leak check: processes, threads, descriptors, sockets and shared memory that a block of code leaves behind.

Everything is read from the kernel, because a leaked resource has no owner left that could be asked. A descendant is a
child of this process, or a process that has our tag in its environment: a worker whose manager was killed has another
parent, but still the tag.
"""

from __future__ import annotations

import gc
import multiprocessing.resource_tracker
import os
import secrets
import stat
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import multiprocess.resource_tracker

from stepwell import limits

_TAG = "STEPWELL_LEAK_CHECK"
_STANDARD_STREAMS = 2
"""The last of the descriptors that belong to the test runner, which redirects them as it likes."""


class Resource(NamedTuple):
    """A resource that can be left behind: its kind, and a name that is unique while it exists."""

    kind: str
    name: str


Snapshot = dict[str, frozenset[str]]
"""The names of the resources that exist at one moment, by their kind."""


@contextmanager
def no_leaks(settle_seconds: float = limits.LEAK_SETTLE_SECONDS) -> Generator[None]:
    """Raise `AssertionError` if the block leaves behind a resource that was not there before.

    Resources that are ending have `settle_seconds` to end. An error of the block itself is raised without a check.
    """
    _start_helpers()
    # A fixture may end inside the block and restore the environment. Directories elsewhere would then all seem new.
    sockets = os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())
    before = _snapshot(sockets)
    yield
    if left := _left_behind(before, sockets, settle_seconds):
        raise AssertionError("left behind:\n" + "\n".join(f"  {_describe(resource)}" for resource in left))


@contextmanager
def private_runtime_directory() -> Generator[Path]:
    """Give this process and its children a directory for sockets that no other test run uses.

    The name is short, because the kernel bounds a socket's path at 107 bytes.
    """
    outer = os.environ.get("XDG_RUNTIME_DIR")
    with tempfile.TemporaryDirectory(prefix="sw-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        try:
            yield Path(directory)
        finally:
            if outer is None:
                del os.environ["XDG_RUNTIME_DIR"]
            else:
                os.environ["XDG_RUNTIME_DIR"] = outer


def _start_helpers() -> None:
    """Start the helper processes that live as long as this process, before the first snapshot is taken."""
    os.environ.setdefault(_TAG, secrets.token_hex(8))
    multiprocess.resource_tracker.ensure_running()
    multiprocessing.resource_tracker.ensure_running()


def _left_behind(before: Snapshot, sockets: str, settle_seconds: float) -> list[Resource]:
    """Return the new resources that are still there after the time to settle."""
    if not _new_since(before, sockets):
        return []
    # An object that only a reference cycle holds is no leak.
    gc.collect()
    deadline = time.monotonic() + settle_seconds
    pause = threading.Event()
    remaining = _new_since(before, sockets)
    while (left := _new_since(before, sockets)) and time.monotonic() < deadline:
        pause.wait(limits.LEAK_POLL_SECONDS)
        remaining &= left
    # Other programs of the machine make directories all the time. One that was not there from the beginning is theirs.
    return sorted(each for each in left if each.kind != "directory" or each in remaining)


def _snapshot(sockets: str) -> Snapshot:
    """Return the resources that exist now; `sockets` is the directory in which managers make theirs.

    This runs twice a test. Therefore it takes the names as the kernel lists them, in as few steps as possible.
    """
    return {
        "process": frozenset(os.listdir("/proc")),  # and some other entries, which `_is_ours` finds to be none
        "thread": frozenset(_threads()),
        "descriptor": frozenset(_descriptors()),
        "directory": frozenset(_socket_directories(sockets)),
        "shared memory": frozenset(_shared_memory()),
    }


def _new_since(before: Snapshot, sockets: str) -> set[Resource]:
    """Return the resources that are new and ours.

    Ownership is checked for new resources only, because the check is slow and there is seldom a new one.
    """
    new = (Resource(kind, name) for kind, names in _snapshot(sockets).items() for name in names - before[kind])
    return {resource for resource in new if _is_ours(resource)}


def _is_ours(resource: Resource) -> bool:
    """Return True if a new resource belongs to this process or a descendant.

    Processes, socket directories and shared memory are listed for the whole machine, and other programs make some at
    any time.
    """
    match resource.kind:
        case "process":
            return resource.name.isdecimal() and _is_descendant(resource.name)
        case "directory":
            return not _listens_elsewhere(resource.name)
        case "shared memory":
            return not any(_maps(pid, resource.name) for pid in _processes() if not _is_of_this_tree(pid))
        case _:
            return True


def _listens_elsewhere(directory: str) -> bool:
    """Return True if a process outside this tree has a socket in the directory."""
    rows = (row.split(maxsplit=7) for row in Path("/proc/net/unix").read_text().splitlines())
    sockets = {f"socket:[{row[6]}]" for row in rows if row[-1].startswith(f"{directory}/")}
    return bool(sockets) and any(_has_open(pid, sockets) for pid in _processes() if not _is_of_this_tree(pid))


def _has_open(pid: str, names: set[str]) -> bool:
    with suppress(OSError):
        return any(os.readlink(f"/proc/{pid}/fd/{entry}") in names for entry in os.listdir(f"/proc/{pid}/fd"))
    return False


def _is_of_this_tree(pid: str) -> bool:
    return pid == str(os.getpid()) or _is_descendant(pid)


def _maps(pid: str, path: str) -> bool:
    """Return True if a process has mapped a file, under whichever name.

    The C library creates a semaphore under a temporary name, so its creator never has the path among its mappings.
    """
    with suppress(OSError):
        file = os.stat(path)
        device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}"
        return f" {device} {file.st_ino} ".encode() in Path(f"/proc/{pid}/maps").read_bytes()
    return False


def _processes() -> Iterator[str]:
    return (entry for entry in os.listdir("/proc") if entry.isdecimal())


def _is_descendant(pid: str) -> bool:
    """Return True if a process is a child of this one, or has inherited its tag."""
    try:
        # The name, in parentheses, may hold anything; state and parent follow it.
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return parent == str(os.getpid()) or f"{_TAG}={os.environ[_TAG]}".encode() in _null_separated(pid, "environ")
    except OSError:
        return False


def _null_separated(pid: str, file: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")


def _threads() -> list[str]:
    return [f"{thread.name} ({thread.ident})" for thread in threading.enumerate()]


def _descriptors() -> Iterator[str]:
    """Yield the open descriptors. Mapped memory is among them, because an `mmap` keeps a descriptor of its own."""
    for entry in os.listdir("/proc/self/fd"):
        # The descriptor that lists the directory is itself listed, and gone.
        with suppress(FileNotFoundError):
            if int(entry) > _STANDARD_STREAMS:
                yield f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}"


def _socket_directories(parent: str) -> Iterator[str]:
    """Yield the directories in which managers listen.

    They are only searched where this process would make one. The directory for temporary files belongs to all programs
    of the machine, and one of them may leave a directory of its own there at any time.
    """
    with suppress(FileNotFoundError):  # the environment may name a directory that does not exist
        for name in os.listdir(parent):
            if name.startswith("stepwell-"):
                yield os.path.join(parent, name)


def _shared_memory() -> Iterator[str]:
    return (f"/dev/shm/{name}" for name in os.listdir("/dev/shm"))


def _describe(resource: Resource) -> str:
    """Return a resource with details that help to find the code that made it."""
    match resource.kind:
        case "process":
            detail = _process_detail(resource.name)
        case "directory":
            detail = _directory_detail(Path(resource.name))
        case _:
            detail = ""
    return f"{resource.kind} {resource.name}{detail}"


def _process_detail(pid: str) -> str:
    """Return the command line of a process."""
    with suppress(OSError):
        command = b" ".join(_null_separated(pid, "cmdline")).decode(errors="replace").strip()
        return f": {command or 'ended, and its parent did not wait for it'}"
    return ""


def _directory_detail(directory: Path) -> str:
    """Return the names of the sockets in a directory."""
    with suppress(OSError):
        sockets = [path.name for path in directory.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]
        return f" with the sockets {', '.join(sockets)}" if sockets else ""
    return ""
