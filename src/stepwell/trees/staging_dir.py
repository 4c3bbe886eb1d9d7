"""`.stepwell`, the directory in a root in which transactions keep their log, their new contents and the old ones.

The state of a transaction is the suffix of its directory, so that every change of state is one atomic rename:

    NAME.staging   the tree is untouched: the directory may be removed
    NAME.open      the log in it is complete and on disk; the tree may be anywhere between before and after
    NAME.done      committed: the tree is after, and what is needed to undo it is still here
    NAME.spent     of no use any more, and perhaps half removed
    NAME.left      undone, except for files that another program had changed; their old contents are here, for a person

The directory is in the root, not beside each target, for three reasons. What a killed process leaves is in one place,
and a program that reads the tree meanwhile does not see it. New contents can be written before the directories that
they belong to exist. And it is on the same file system, so that renames are atomic. A part of a tree that is a mounted
file system of its own is therefore a root of its own.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Final

from stepwell import limits
from stepwell.errors import EscapesRoot, InvalidArgument, NotFound
from stepwell.trees import syscalls
from stepwell.trees.entry import STAGING_DIR
from stepwell.trees.root import Root
from stepwell.trees.syscalls import Place

_IGNORE: Final = ".gitignore"
_NAME: Final = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{limits.TREE_TRANSACTION_NAME_CHARS_MAX - 1}}}")
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Stage(StrEnum):
    """The state of a transaction, as in the suffix of its directory; the module's table says what each means."""

    STAGING = "staging"
    OPEN = "open"
    DONE = "done"
    SPENT = "spent"
    LEFT = "left"


def check_name(name: str) -> None:
    """Raise `InvalidArgument` unless the name can be part of a directory's name: no slash, no leading dot, not long."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[: limits.PATH_CHARS_SHOWN]!r} names no transaction: use up to "
            f"{limits.TREE_TRANSACTION_NAME_CHARS_MAX} letters, digits, '_', '-' and '.'"
        )


class StagingDir:
    """The open `.stepwell` of a root, whose lock the caller holds.

    `lock.RootLock` makes it and closes it. Because the lock is exclusive, no other process changes what is listed here
    between two calls. Methods raise `OSError` as the kernel gives it; callers wrap it with what they were doing.
    """

    def __init__(self, root: Root, descriptor: int) -> None:
        self.root = root
        self.descriptor = descriptor

    def list(self) -> list[tuple[str, Stage]]:
        """Return the transactions that are here with their stages, in order of name. Other files are passed over."""
        found: list[tuple[str, Stage]] = []
        for entry in sorted(os.listdir(self.descriptor)):
            name, _, suffix = entry.rpartition(".")
            if name and suffix in {*Stage}:
                found.append((name, Stage(suffix)))
        return found

    def create(self, name: str) -> None:
        """Create the directory of a transaction that has not touched the tree yet."""
        syscalls.mkdir(self._place(name, Stage.STAGING), 0o700)

    def set_stage(self, name: str, stage: Stage, to: Stage) -> None:
        """Move a transaction from one stage to another, on disk when this returns; `NotFound` if it is not there."""
        if to is Stage.LEFT:
            self._remove_earlier_left(name)
        try:
            syscalls.rename(self._place(name, stage), self._place(name, to))
        except FileNotFoundError:
            raise self._not_found(name, stage) from None
        self.sync()

    def rename(self, name: str, to: str, stage: Stage) -> None:
        """Give a transaction another name in the same stage, on disk when this returns."""
        syscalls.rename(self._place(name, stage), self._place(to, stage))
        self.sync()

    def sync(self) -> None:
        """Write the names in `.stepwell`, and so the stages, to the disk."""
        syscalls.sync(self.descriptor, STAGING_DIR)

    def remove(self, name: str, stage: Stage) -> None:
        """Remove a transaction's files and its directory. A crash in between is harmless: recovery removes the rest."""
        with self.opened(name, stage) as descriptor:
            for entry in sorted(os.listdir(descriptor)):
                syscalls.unlink(Place(descriptor, entry))
        syscalls.rmdir(self._place(name, stage))

    def discard(self, name: str, stage: Stage) -> None:
        """End a transaction: mark it as spent in one step, then remove it.

        Without the mark, a crash during the removal would leave an open or done transaction without its old contents.
        """
        self.set_stage(name, stage, Stage.SPENT)
        self.remove(name, Stage.SPENT)

    @contextmanager
    def opened(self, name: str, stage: Stage) -> Generator[int]:
        """Open a transaction's directory for the block; `NotFound` if the transaction is not in that stage."""
        place = self._place(name, stage)
        try:
            descriptor = os.open(place.name, _DIRECTORY_FLAGS, dir_fd=place.directory)
        except FileNotFoundError:
            raise self._not_found(name, stage) from None
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def path(self, name: str, stage: Stage) -> str:
        """The path of a transaction's directory, for messages only: all work is done through descriptors."""
        return f"{self.root.path}/{STAGING_DIR}/{name}.{stage}"

    def write_gitignore(self) -> None:
        """Make git, and programs that read git's rules, ignore `.stepwell`, unless it has a `.gitignore` already.

        It is written under another name first, because a half-written one would stay for good.
        """
        if _IGNORE not in os.listdir(self.descriptor):
            draft = Place(self.descriptor, f"{_IGNORE}.draft")
            with suppress(FileNotFoundError):
                syscalls.unlink(draft)
            syscalls.write(draft, b"*\n", 0o644)
            syscalls.rename(draft, Place(self.descriptor, _IGNORE))

    def _place(self, name: str, stage: Stage) -> Place:
        return Place(self.descriptor, f"{name}.{stage}")

    def _not_found(self, name: str, stage: Stage) -> NotFound:
        return NotFound(f"{self.root.path!r} has no transaction {name!r} that is {stage}: see what is pending")

    def _remove_earlier_left(self, name: str) -> None:
        """Remove what an earlier undo left under this name: only the latest old contents are kept for a person."""
        with suppress(NotFound):
            self.remove(name, Stage.LEFT)


def has_staging_dir(root: str | os.PathLike[str]) -> bool:
    """Return True if a transaction was ever begun at this root; then there may be something to recover."""
    return os.path.isdir(os.path.join(root, STAGING_DIR))


def open_staging_dir(root: Root) -> int:
    """Return a descriptor of `.stepwell` in a root, created if need be; `EscapesRoot` if it is a link or a file."""
    try:
        with suppress(FileExistsError):
            syscalls.mkdir(Place(root.descriptor, STAGING_DIR), 0o700)
        return os.open(STAGING_DIR, _DIRECTORY_FLAGS, dir_fd=root.descriptor)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise EscapesRoot(
                f"{root.path}/{STAGING_DIR} is no directory, and transactions keep their logs there: move it away"
            ) from error
        raise
