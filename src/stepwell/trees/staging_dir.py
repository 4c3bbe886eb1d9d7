"""`.stepwell`, the directory in a root in which transactions keep their log, their new contents and the old ones.

The state of a transaction is the suffix of its directory, so that every change of state is one atomic rename:

    NAME.SEAL.staging   the tree is untouched: the directory may be removed
    NAME.SEAL.open      the log in it is complete and on disk; the tree may be anywhere between before and after
    NAME.SEAL.done      committed: the tree is after, and what is needed to undo it is still here
    NAME.SEAL.spent     of no use any more, and perhaps half removed
    NAME.SEAL.left      undone, except for files that another program had changed; their old contents are here, for a
                        person, until the next transaction at this root

The directory may have come with the tree, from a repository or an archive, and all that is in it may be planted. So
only directories whose name has the right seal are transactions (see `sealed_name`). A log is used if it has the hash
that is in the seal. Other directories with one of these suffixes are *untrusted*: nothing in them is opened, they stay
exactly as they are, and `untrusted` lists them for the user. Nothing here follows a symbolic link or waits for a pipe.

The directory is in the root, not beside each target, for three reasons. What a killed process leaves is in one place,
and a program that reads the tree meanwhile does not see it. New contents can be written before the directories that
they belong to exist. And it is on the same file system, so that renames are atomic. A part of a tree that is a mounted
file system of its own is therefore a root of its own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import AlreadyExists, EscapesRoot, NotFound
from stepwell.trees import syscalls
from stepwell.trees import undo_log as logs
from stepwell.trees.entry import STAGING_DIR
from stepwell.trees.root import Root
from stepwell.trees.sealed_name import Sealer, Stage, TransactionRef
from stepwell.trees.syscalls import Place

_IGNORE: Final = ".gitignore"
_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SEAL: Final = (
    "its name has no seal of this user for this directory (it came with the tree or a copy of it, or an earlier "
    "version of stepwell or another user made it)"
)


class UntrustedDirectory(Struct, frozen=True):
    """A directory of `.stepwell` that is named like a transaction and was left as it is, with the reason."""

    path: str
    reason: str


class StagingDir:
    """The open `.stepwell` of a root, whose lock the caller holds.

    `lock.RootLock` makes it and closes it. Because the lock is exclusive, no other process changes what is listed here
    between two calls. Methods raise `OSError` as the kernel gives it; callers wrap it with what they were doing.
    """

    def __init__(self, root: Root, descriptor: int, sealer: Sealer) -> None:
        self.root = root
        self.descriptor = descriptor
        self._sealer = sealer

    def untrusted(self) -> list[UntrustedDirectory]:
        """Return what is named like a transaction and is none, or has files of which no transaction knows.

        For use after recovery: a staged or spent transaction that is here then could not be removed.
        """
        reasons = {
            entry: found if isinstance(found, str) else "it has files that no transaction wrote"
            for entry, found in self._examined()
            if isinstance(found, str) or found.stage in {Stage.STAGING, Stage.SPENT}
        }
        return [UntrustedDirectory(self._shown(entry), reason) for entry, reason in reasons.items()]

    def list(self) -> list[TransactionRef]:
        """Return the transactions of this user's own processes that are here, in order of name."""
        return [found for _, found in self._examined() if isinstance(found, TransactionRef)]

    def find(self, name: str, stage: Stage) -> TransactionRef:
        """Return the transaction of a name that is in a stage; `NotFound` if there is none."""
        for found in self.list():
            if (found.name, found.stage) == (name, stage):
                return found
        raise NotFound(f"{self.root.path!r} has no transaction {name!r} that is {stage}: see what is pending")

    def find_log(self, log_tag: bytes) -> TransactionRef:
        """Return the transaction with a log, in any stage that can be undone; `NotFound` if there is none."""
        for found in self.list():
            if found.log_tag == log_tag and found.stage in {Stage.STAGING, Stage.OPEN, Stage.DONE}:
                return found
        raise NotFound(f"{self.root.path!r} no longer has the transaction: it cannot be undone")

    def create(self, name: str, log: bytes) -> TransactionRef:
        """Create the directory of a transaction that has not touched the tree yet, sealed for its log."""
        created = self._sealer.seal(name, Stage.STAGING, self._sealer.tag_log(log))
        syscalls.mkdir(self._place(created), 0o700)
        return created

    def set_stage(self, found: TransactionRef, to: Stage) -> TransactionRef:
        """Move a transaction to another stage, on disk when this returns, and return it."""
        return self._rename(found, self._sealer.seal(found.name, to, found.log_tag))

    def rename(self, found: TransactionRef, to: str) -> TransactionRef:
        """Give a transaction another name in the same stage, on disk when this returns, and return it."""
        if any((each.name, each.stage) == (to, found.stage) for each in self.list()):
            raise AlreadyExists(f"{self.root.path!r} has a transaction {to!r} that is {found.stage} already")
        return self._rename(found, self._sealer.seal(to, found.stage, found.log_tag))

    def remove(self, found: TransactionRef) -> None:
        """Remove a transaction's files and its directory. A crash in between is harmless: recovery removes the rest.

        Files of other programs stay, and with them the directory; `untrusted` lists it.
        """
        with self.opened(found) as descriptor:
            for entry in sorted(os.listdir(descriptor)):
                if logs.is_own_file(entry):
                    with suppress(IsADirectoryError):
                        syscalls.unlink(Place(descriptor, entry))
        try:
            syscalls.rmdir(self._place(found))
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise

    def discard(self, found: TransactionRef) -> None:
        """End a transaction: mark it as spent in one step, then remove it.

        Without the mark, a crash during the removal would leave an open or done transaction without its old contents.
        """
        self.remove(self.set_stage(found, Stage.SPENT))

    @contextmanager
    def opened(self, found: TransactionRef) -> Generator[int]:
        """Open a transaction's directory for the block."""
        place = self._place(found)
        descriptor = os.open(place.name, _DIRECTORY_FLAGS, dir_fd=place.directory)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def read_log(self, found: TransactionRef, directory: int) -> logs.UndoLog:
        """Return the log in a transaction's open directory; `StoreDamaged` if it is not the one that was sealed."""
        where = f"{self.path(found)}/{logs.NAME}"
        data = _read_file(Place(directory, logs.NAME), limits.TREE_LOG_BYTES_MAX)
        if data is None or self._sealer.tag_log(data) != found.log_tag:
            raise logs.damaged(where, "it is missing, or has another content")
        return logs.decode(data, where)

    def path(self, found: TransactionRef) -> str:
        """The path of a transaction's directory, for messages only: all work is done through descriptors."""
        return self._shown(found.directory)

    def write_gitignore(self) -> None:
        """Make git, and programs that read git's rules, ignore `.stepwell`, unless it has a `.gitignore` already.

        It is written under another name first, because a half-written one would stay for good.
        """
        if _IGNORE not in os.listdir(self.descriptor):
            draft = Place(self.descriptor, self._sealer.draft_name(_IGNORE))
            with suppress(FileNotFoundError):
                syscalls.unlink(draft)
            syscalls.write(draft, b"*\n", 0o644)
            syscalls.rename(draft, Place(self.descriptor, _IGNORE))

    def _examined(self) -> Generator[tuple[str, TransactionRef | str]]:
        """Yield every entry that is named like a transaction, in order: with the transaction, or why it is none."""
        for entry in sorted(os.listdir(self.descriptor)):
            name, _, suffix = entry.rpartition(".")
            if not name or suffix not in {*Stage}:
                continue
            found = self._sealer.open(entry)
            if found is None:
                yield entry, _NO_SEAL
            elif not stat.S_ISDIR(os.lstat(entry, dir_fd=self.descriptor).st_mode):
                yield entry, "it is no directory"
            else:
                yield entry, found

    def _rename(self, found: TransactionRef, to: TransactionRef) -> TransactionRef:
        syscalls.rename(self._place(found), self._place(to))
        syscalls.sync(self.descriptor, STAGING_DIR)
        return to

    def _place(self, found: TransactionRef) -> Place:
        return Place(self.descriptor, found.directory)

    def _shown(self, entry: str) -> str:
        return f"{self.root.path}/{STAGING_DIR}/{entry}"


def _read_file(place: Place, bytes_max: int) -> bytes | None:
    """Return a file's content; None if it is missing, no regular file, or larger than `bytes_max`."""
    try:
        status = os.lstat(place.name, dir_fd=place.directory)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > bytes_max:
        return None
    with open(os.open(place.name, _FILE_FLAGS, dir_fd=place.directory), "rb") as file:
        return file.read(bytes_max)


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
