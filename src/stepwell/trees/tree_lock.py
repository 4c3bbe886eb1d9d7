"""Locks on trees that overlap: no capture runs beside another capture or a change of the same files.

`RootLock` keeps transactions at one root apart. A capture records whatever changes below its root, by whichever
program; so it also has to be kept apart from captures and changes at roots that contain its own root or lie in it. For
roots that overlap:

| a second … | beside a capture | beside a change | beside a copy |
|------------|------------------|-----------------|---------------|
| capture    | refused          | waits           | yes           |
| change     | refused          | see `RootLock`  | waits         |
| copy       | yes              | waits           | yes           |

A capture lasts as long as an agent works, so waiting for one is left to the caller. A change takes a moment.

Each use of a tree is one file in the table, the directory `trees` in this user's state directory. Its owner holds an
exclusive `flock` on it. The kernel releases the lock when the owner ends, in whatever way; so a file that is not locked
was left by a process that is gone, and is removed. A process adds its file while it holds the lock of the whole table.

Roots are compared by device and inode, not by path, so that links and mounts do not hide that they overlap. Only
processes with the same state directory see each other.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
import weakref
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.errors import Busy, TreeInUse
from stepwell.trees.key import open_state_directory, state_directory
from stepwell.trees.root import Root
from stepwell.trees.syscalls import wrap_os_errors

_TABLE: Final = "trees"
_MUTEX: Final = "table.lock"
_SUFFIX: Final = ".use"
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Purpose(StrEnum):
    """The reason for which a process uses a tree."""

    CAPTURE = "capture"
    CHANGE = "change"
    COPY = "copy"


_EXCLUDED: Final = {
    Purpose.CAPTURE: frozenset({Purpose.CAPTURE, Purpose.CHANGE}),
    Purpose.CHANGE: frozenset({Purpose.CAPTURE, Purpose.COPY}),
    Purpose.COPY: frozenset({Purpose.CHANGE}),
}
"""The uses that cannot run beside each use, at roots that overlap."""


class TreeUse(Struct, frozen=True):
    """One use of a tree, as the table has it. `inodes` are those of the root and of each directory above it."""

    purpose: Purpose
    pid: int
    root: str
    inodes: tuple[tuple[int, int], ...]
    plan_id: str | None = None
    tool: str | None = None

    def excludes(self, other: TreeUse) -> bool:
        """Return True if the two cannot run beside each other."""
        is_overlapping = self.inodes[0] in other.inodes or other.inodes[0] in self.inodes
        return is_overlapping and other.purpose in _EXCLUDED[self.purpose]


class TreeLock:
    """A context manager that enters one use of a tree into the table, and removes it at the end of the block.

    It may be left in another thread than it was entered in. Entering raises `TreeInUse` at once if the tree is being
    captured, `Busy` if another process still changes or copies it after `wait_s`, and `TreeFailed` if there is no state
    directory for the table. `plan_id` and `tool` are for the message of a process that is refused.
    """

    def __init__(
        self,
        root: Root,
        purpose: Purpose,
        *,
        plan_id: str | None = None,
        tool: str | None = None,
        wait_s: float = limits.TREE_LOCK_SECONDS,
    ) -> None:
        self._root = root
        self._use = TreeUse(purpose, os.getpid(), _text(root.path), tuple(_inodes(root)), plan_id, tool)
        self._wait_s = wait_s
        self._entry: LockedFile | None = None

    def __enter__(self) -> Self:
        where = f"in {state_directory()!r} (XDG_STATE_HOME can name another directory for it)"
        with wrap_os_errors(f"{self._use.root!r} cannot be entered in the table of tree locks {where}"):
            self._entry = _enter(self._root, self._use, self._wait_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entry is not None and self._use.pid == os.getpid():  # not a forked child that leaves the same block
            self._entry.remove()
            self._entry = None


class LockedFile:
    """A new file with an exclusive `flock`, which marks that its owner is there. It owns two descriptors.

    The caller holds the lock of the directory's table while it makes one (`table_lock`). A forked child closes the
    descriptors that it inherits; otherwise the lock would outlive its owner.
    """

    def __init__(self, directory: int, name: str, content: bytes = b"") -> None:
        self._name = name
        with ExitStack() as stack:
            self._directory = os.dup(directory)
            stack.callback(os.close, self._directory)
            self._descriptor = os.open(name, _CREATE | os.O_EXCL, 0o600, dir_fd=directory)
            stack.callback(os.close, self._descriptor)
            stack.callback(os.unlink, name, dir_fd=directory)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._descriptor, content, 0)
            stack.pop_all()
        _locked_files.add(self)

    def remove(self) -> None:
        """Remove the file and release its lock."""
        with suppress(OSError):  # the file may be gone with its directory; the lock is released all the same
            os.unlink(self._name, dir_fd=self._directory)
        self.close()

    def close(self) -> None:
        """Release the lock, and leave the file."""
        _locked_files.discard(self)
        os.close(self._descriptor)
        os.close(self._directory)


_locked_files: weakref.WeakSet[LockedFile] = weakref.WeakSet()


def _close_in_child() -> None:
    for locked in list(_locked_files):
        locked.close()


os.register_at_fork(after_in_child=_close_in_child)


def _enter(root: Root, use: TreeUse, wait_s: float) -> LockedFile:
    """Add a use to the table as soon as no other use excludes it."""
    deadline = time.monotonic() + wait_s
    with open_table(root, _TABLE) as table:
        while True:
            with table_lock(table):
                other = next((each for each in _live_uses(table) if use.excludes(each)), None)
                if other is None:
                    return LockedFile(table, f"{new_token()}{_SUFFIX}", msgspec.json.encode(use))
            if other.purpose is Purpose.CAPTURE:
                raise _captured(use, other)
            if time.monotonic() >= deadline:
                raise Busy(
                    f"process {other.pid} is at work in {other.root!r} ({other.purpose}), and has been for "
                    f"{wait_s:g} seconds: try again later",
                    pid=other.pid,
                )
            time.sleep(limits.TREE_LOCK_PAUSE_SECONDS)


def _captured(use: TreeUse, capture: TreeUse) -> TreeInUse:
    """Return the refusal of a use because of a capture, which it names."""
    why = (
        "two captures at the same time would record each other's changes; wait for its end, or work in a copy "
        "(context.workspace)"
        if use.purpose is Purpose.CAPTURE
        else "what is changed now would be recorded as its change; try again when it has ended"
    )
    return TreeInUse(
        f"process {capture.pid} is capturing {capture.root!r} for plan {capture.plan_id!r}, as tool {capture.tool!r}: "
        f"{why}",
        pid=capture.pid,
        plan_id=capture.plan_id,
        tool=capture.tool,
        root=capture.root,
    )


def new_token() -> str:
    """Return a random text for the name of a file in a table."""
    return secrets.token_hex(limits.TREE_LOCK_NAME_BYTES)


@contextmanager
def open_table(root: Root, name: str) -> Generator[int]:
    """Open a directory of the state directory for the block, created if need be; it must not lie below the root."""
    with open_state_directory(root) as state:
        try:
            table = os.open(name, _DIRECTORY, dir_fd=state)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process was quicker
                os.mkdir(name, 0o700, dir_fd=state)
            table = os.open(name, _DIRECTORY, dir_fd=state)
    try:
        yield table
    finally:
        os.close(table)


@contextmanager
def table_lock(table: int) -> Generator[None]:
    """Hold the lock of a whole table for the block, which takes a moment only.

    It is polled, because a process may be stopped while it holds the lock: then this raises `Busy`.
    """
    deadline = time.monotonic() + limits.TREE_TABLE_SECONDS
    mutex = os.open(_MUTEX, _CREATE, 0o600, dir_fd=table)
    try:
        while not try_lock(mutex):
            if time.monotonic() >= deadline:
                raise Busy("a stopped process holds the table of tree locks: try again when it goes on")
            time.sleep(limits.TREE_TABLE_PAUSE_SECONDS)
        yield
    finally:
        os.close(mutex)


def _live_uses(table: int) -> Generator[TreeUse]:
    """Yield the uses of processes that are there, and remove the files of others; under the lock of the table."""
    for name in sorted(os.listdir(table)):
        if not name.endswith(_SUFFIX):
            continue
        try:
            descriptor = os.open(name, _OPEN, dir_fd=table)
        except FileNotFoundError:  # its owner has just removed it
            continue
        try:
            if try_lock(descriptor):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=table)
            else:
                yield msgspec.json.decode(os.pread(descriptor, limits.TREE_USE_BYTES_MAX, 0), type=TreeUse)
        finally:
            os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Lock an open file, and return True; return False at once if another process has locked it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _inodes(root: Root) -> Generator[tuple[int, int]]:
    """Yield device and inode of a root and of each directory above it, as far as this user may go up."""
    descriptor = os.dup(root.descriptor)
    try:
        seen: tuple[int, int] | None = None
        while (found := _inode(descriptor)) != seen:
            yield found
            seen = found
            try:
                above = os.open("..", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError:  # closed to this user, or the directory was removed
                return
            os.close(descriptor)
            descriptor = above
    finally:
        os.close(descriptor)


def _inode(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _text(path: str) -> str:
    """Return a path as absolute, valid text, although a directory's name need not be."""
    return os.fsencode(os.path.abspath(path)).decode(errors="replace")
