"""What a piece of code leaves behind in the process, on the machine and among its descendants.

Everything is read from the kernel, because what has leaked is by definition no longer in anybody's hands.
A descendant is a child, or a process that inherited our tag in its environment: a worker whose manager was
killed has another parent, but still the tag.
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
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import multiprocess.resource_tracker

SETTLE_SECONDS = 3.0
"""How long what is ending may take to end: more than the 2 s that a worker may outlive its manager."""

POLL_SECONDS = 0.01

_TAG = "STEPWELL_LEAK_CHECK"
_STANDARD_STREAMS = 2
"""The last of the descriptors that belong to the test runner, which redirects them as it likes."""


class Resource(NamedTuple):
    """Something that can be left behind."""

    kind: str
    name: str


Snapshot = frozenset[Resource]


@contextmanager
def no_leaks(settle_seconds: float = SETTLE_SECONDS) -> Generator[None]:
    """Fail if the block leaves behind what was not there before; an error of the block itself comes first."""
    _start_helpers()
    before = _snapshot()
    yield
    if left := _left_behind(before, settle_seconds):
        raise AssertionError("left behind:\n" + "\n".join(f"  {_describe(resource)}" for resource in left))


@contextmanager
def private_runtime_directory() -> Generator[Path]:
    """Give this process and its children a place for sockets in which no other test run makes any.

    The name is short, because a socket's path is bounded at 107 bytes.
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
    """Start, before anything is counted, what lives as long as the process once something needs it."""
    os.environ.setdefault(_TAG, secrets.token_hex(8))
    multiprocess.resource_tracker.ensure_running()
    multiprocessing.resource_tracker.ensure_running()


def _left_behind(before: Snapshot, settle_seconds: float) -> list[Resource]:
    if not _new_since(before):
        return []
    # What only a reference cycle holds is not held.
    gc.collect()
    deadline = time.monotonic() + settle_seconds
    never = threading.Event()
    lasting = _new_since(before)
    while (left := _new_since(before)) and time.monotonic() < deadline:
        never.wait(POLL_SECONDS)
        lasting &= left
    # Other programs of the machine make directories all the time. One that was not there from the beginning is theirs.
    return sorted(each for each in left if each.kind != "directory" or each in lasting)


def _snapshot() -> Snapshot:
    return frozenset(chain(_processes(), _threads(), _descriptors(), _socket_directories(), _shared_memory()))


def _new_since(before: Snapshot) -> set[Resource]:
    """Ask whose something is only where it is new: there is much, and seldom anything new."""
    return {resource for resource in _snapshot() - before if _is_ours(resource)}


def _is_ours(resource: Resource) -> bool:
    """What may be of any process on the machine is not ours for being new."""
    match resource.kind:
        case "process":
            return _is_descendant(resource.name)
        case "directory":
            return not _listens_elsewhere(resource.name)
        case "shared memory":
            return not any(_maps(each.name, resource.name) for each in _processes() if not _is_of_this_tree(each.name))
        case _:
            return True


def _listens_elsewhere(directory: str) -> bool:
    """Return True if a process outside this tree has a socket in the directory."""
    rows = (row.split(maxsplit=7) for row in Path("/proc/net/unix").read_text().splitlines())
    sockets = {f"socket:[{row[6]}]" for row in rows if row[-1].startswith(f"{directory}/")}
    return bool(sockets) and any(
        _has_open(each.name, sockets) for each in _processes() if not _is_of_this_tree(each.name)
    )


def _has_open(pid: str, names: set[str]) -> bool:
    with suppress(OSError):
        return any(os.readlink(f"/proc/{pid}/fd/{entry}") in names for entry in os.listdir(f"/proc/{pid}/fd"))
    return False


def _is_of_this_tree(pid: str) -> bool:
    return pid == str(os.getpid()) or _is_descendant(pid)


def _maps(pid: str, path: str) -> bool:
    with suppress(OSError):
        return path.encode() in Path(f"/proc/{pid}/maps").read_bytes()
    return False


def _processes() -> Iterator[Resource]:
    return (Resource("process", entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _is_descendant(pid: str) -> bool:
    try:
        # The name, in parentheses, may hold anything; state and parent follow it.
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        return parent == str(os.getpid()) or f"{_TAG}={os.environ[_TAG]}".encode() in _words(pid, "environ")
    except OSError:
        return False


def _words(pid: str, file: str) -> list[bytes]:
    return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")


def _threads() -> Iterator[Resource]:
    return (Resource("thread", f"{thread.name} ({thread.ident})") for thread in threading.enumerate())


def _descriptors() -> Iterator[Resource]:
    """Mapped memory is among them: a `mmap` keeps a descriptor of its own for as long as it is mapped."""
    for entry in os.listdir("/proc/self/fd"):
        # The descriptor that lists the directory is itself listed, and gone.
        with suppress(FileNotFoundError):
            if int(entry) > _STANDARD_STREAMS:
                yield Resource("descriptor", f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}")


def _socket_directories() -> Iterator[Resource]:
    for parent in {tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())}:
        with suppress(FileNotFoundError):  # a runtime directory that is only named
            for name in os.listdir(parent):
                if name.startswith("stepwell-"):
                    yield Resource("directory", os.path.join(parent, name))


def _shared_memory() -> Iterator[Resource]:
    return (Resource("shared memory", f"/dev/shm/{name}") for name in os.listdir("/dev/shm"))


def _describe(resource: Resource) -> str:
    """Name the resource so that whoever reads it finds who made it."""
    match resource.kind:
        case "process":
            detail = _process_detail(resource.name)
        case "directory":
            detail = _directory_detail(Path(resource.name))
        case _:
            detail = ""
    return f"{resource.kind} {resource.name}{detail}"


def _process_detail(pid: str) -> str:
    with suppress(OSError):
        command = b" ".join(_words(pid, "cmdline")).decode(errors="replace").strip()
        return f": {command or 'ended, and nobody waited for it'}"
    return ""


def _directory_detail(directory: Path) -> str:
    with suppress(OSError):
        sockets = [path.name for path in directory.iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]
        return f" with the sockets {', '.join(sockets)}" if sockets else ""
    return ""
