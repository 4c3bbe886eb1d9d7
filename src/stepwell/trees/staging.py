"""The directory `.stepwell` in a root: the lock by which transactions take turns, and what each keeps there.

The state of a transaction is in the name of its directory, so that every change of state is one rename:

    NAME.staging   nothing of the tree was touched: it may be thrown away
    NAME.open      the log in it is whole and on disk; the tree may be anywhere between before and after
    NAME.done      the tree is after; what is needed to go back is still here
    NAME.spent     of no use any more, and perhaps half removed
    NAME.left      undone, except for what somebody else had changed: the old contents are here, for a person

It is in the root, not beside each target, for three reasons: what a killed process leaves is in one place, and nobody
who looks at the tree meanwhile sees it; new contents can be written before the directories that they belong to exist;
and it is on the same file system, so that renames are atomic. A part of a tree that is a mounted file system of its own
is therefore a root of its own.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Final

from stepwell import limits
from stepwell.errors import Busy, EscapesRoot, InvalidArgument, NotFound, TreeFailed
from stepwell.trees import syscalls
from stepwell.trees.entry import AREA
from stepwell.trees.root import Root
from stepwell.trees.syscalls import Place

LOCK: Final = "lock"
_IGNORE: Final = ".gitignore"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DOWN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Stage(StrEnum):
    """How far a transaction has come."""

    STAGING = "staging"
    OPEN = "open"
    DONE = "done"
    SPENT = "spent"
    LEFT = "left"


def check_name(name: str) -> None:
    """A transaction's name is part of a file's name."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name[:200]!r} names no transaction: use up to 128 letters, digits, '_', '-' and '.'")


class StagingDir:
    """`.stepwell`, open, with its lock held."""

    def __init__(self, root: Root, descriptor: int) -> None:
        self.root = root
        self.descriptor = descriptor

    def list(self) -> list[tuple[str, Stage]]:
        """The transactions that are here, in order of name."""
        found: list[tuple[str, Stage]] = []
        for entry in sorted(os.listdir(self.descriptor)):
            name, _, suffix = entry.rpartition(".")
            if name and suffix in {*Stage}:
                found.append((name, Stage(suffix)))
        return found

    def make(self, name: str) -> None:
        """A directory for a transaction that has done nothing yet."""
        syscalls.mkdir(self._place(name, Stage.STAGING), 0o700)

    def move(self, name: str, stage: Stage, to: Stage) -> None:
        """Another state, on disk when this returns."""
        if to is Stage.LEFT:
            self._make_way(name)
        try:
            syscalls.rename(self._place(name, stage), self._place(name, to))
        except FileNotFoundError:
            raise self._none(name, stage) from None
        self.sync()

    def rename(self, name: str, to: str, stage: Stage) -> None:
        """Another name, in the same state, on disk when this returns."""
        syscalls.rename(self._place(name, stage), self._place(to, stage))
        self.sync()

    def sync(self) -> None:
        syscalls.sync(self.descriptor, AREA)

    def remove(self, name: str, stage: Stage) -> None:
        """Everything of a transaction. What is interrupted is gone on with by whoever comes next."""
        with self.opened(name, stage) as descriptor:
            for entry in sorted(os.listdir(descriptor)):
                syscalls.unlink(Place(descriptor, entry))
        syscalls.rmdir(self._place(name, stage))

    def spend(self, name: str, stage: Stage) -> None:
        """Done with: in one step it is of no use, and then it is removed."""
        self.move(name, stage, Stage.SPENT)
        self.remove(name, Stage.SPENT)

    @contextmanager
    def opened(self, name: str, stage: Stage) -> Generator[int]:
        """The directory of a transaction."""
        place = self._place(name, stage)
        try:
            descriptor = os.open(place.name, _DOWN, dir_fd=place.directory)
        except FileNotFoundError:
            raise self._none(name, stage) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def path(self, name: str, stage: Stage) -> str:
        """For people."""
        return f"{self.root.path}/{AREA}/{name}.{stage}"

    def _place(self, name: str, stage: Stage) -> Place:
        return Place(self.descriptor, f"{name}.{stage}")

    def _none(self, name: str, stage: Stage) -> NotFound:
        return NotFound(f"{self.root.path!r} has no transaction {name!r} that is {stage}: see what is pending")

    def _make_way(self, name: str) -> None:
        """Of two that were left under one name, the later one is kept: the earlier had its chance."""
        with suppress(NotFound):
            self.remove(name, Stage.LEFT)


def has_area(root: str | os.PathLike[str]) -> bool:
    """Whether somebody ever had a transaction there."""
    return os.path.isdir(os.path.join(root, AREA))


@contextmanager
def locked(root: Root, wait_s: float) -> Generator[StagingDir]:
    """The area of a root, made if need be, for nobody else until the block ends: the lock dies with its process."""
    descriptor = _open_area(root)
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=descriptor)
        try:
            _claim(lock, root, wait_s)
            _ignore_itself(descriptor)
            yield StagingDir(root, descriptor)
        finally:
            os.close(lock)
    finally:
        os.close(descriptor)


def _open_area(root: Root) -> int:
    try:
        with suppress(FileExistsError):
            syscalls.mkdir(Place(root.descriptor, AREA), 0o700)
        return os.open(AREA, _DOWN, dir_fd=root.descriptor)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise EscapesRoot(
                f"{root.path}/{AREA} is no directory, and transactions keep their logs there: move it away"
            ) from error
        raise


def _ignore_itself(descriptor: int) -> None:
    """For git, and for everything that reads what git reads."""
    if _IGNORE not in os.listdir(descriptor):
        draft = Place(descriptor, f"{_IGNORE}.draft")
        with suppress(FileNotFoundError):
            syscalls.unlink(draft)
        syscalls.write(draft, b"*\n", 0o644)
        syscalls.rename(draft, Place(descriptor, _IGNORE))


def _claim(lock: int, root: Root, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                pid = _holder(lock)
                raise Busy(
                    f"process {pid} is changing {root.path!r}, and has been for {wait_s:g} seconds: try again later",
                    pid=pid,
                ) from None
            time.sleep(limits.TREE_LOCK_PAUSE_SECONDS)
    with suppress(OSError):  # on a full disk the lock holds all the same, and only says less
        os.truncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid()}).encode(), 0)


def _holder(lock: int) -> int | None:
    try:
        found = json.loads(os.pread(lock, 4096, 0))
        return found["pid"] if isinstance(found["pid"], int) else None
    except (ValueError, KeyError, TypeError):
        return None


@contextmanager
def failures(doing: str) -> Generator[None]:
    """What the file system refuses, as an error of ours."""
    try:
        yield
    except OSError as error:
        raise TreeFailed(f"{doing}: {reason_of(error)}", errno=error.errno or 0) from error


_ADVICE: Final = {
    errno.ENOSPC: "make room on the disk, and try again",
    errno.EDQUOT: "make room in the quota, and try again",
    errno.EACCES: "it takes an owner's permissions",
    errno.EPERM: "it takes an owner's permissions",
    errno.EROFS: "the file system is mounted read-only",
    errno.EXDEV: "a mounted file system is a root of its own: change it by itself",
}


def reason_of(error: OSError) -> str:
    """What the system says, where, and what to do about it."""
    name = f" ({os.fsdecode(error.filename)!r})" if isinstance(error.filename, str | bytes) else ""
    advice = _ADVICE.get(error.errno or 0)
    return f"{(error.strerror or str(error)).lower()}{name}" + (f": {advice}" if advice else "")
