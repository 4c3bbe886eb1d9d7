"""Undo a transaction from its log and from what is found in the tree.

The same code runs after a failure, after a crash, and when a committed transaction is taken back. It keeps no record of
progress: every step inspects the path first, so a step may have happened already, and the whole pass may be interrupted
and started again. For each path there are three cases. The tree has

- what was there before: nothing is to be done;
- what the transaction put there, or nothing: the old content is put back;
- anything else: another program changed it since. It is left alone, and returned as a `Mismatch`.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from stepwell.errors import EscapesRoot
from stepwell.trees import syscalls
from stepwell.trees.change_plan import Mismatch
from stepwell.trees.root import FoundEntry, Root, signature_at
from stepwell.trees.syscalls import Place
from stepwell.trees.undo_log import UndoItem, UndoLog, old_name

_DISTURBED_ERRORS = (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError, EscapesRoot)
"""Errors which mean that a path is not as the log left it, because another program changed it."""


def undo(root: Root, directory: int, log: UndoLog) -> list[Mismatch]:
    """Restore everything that the log lists, and sync it. Return the paths that were left alone.

    `directory` is the transaction's open directory, which has the old contents. The caller holds the root's lock.
    """
    return _UndoPass(root, directory, log).run()


class _UndoPass:
    """One pass over a log, in the reverse of the forward order; see `undo`."""

    def __init__(self, root: Root, directory: int, log: UndoLog) -> None:
        self._root = root
        self._directory = directory
        self._log = log
        self._left: dict[str, Mismatch] = {}

    def run(self) -> list[Mismatch]:
        """Restore in an order in which every path has its directory, and every directory is free of created files."""
        make_writable(self._root, self._log.loosened)
        for item in self._log.items:
            if item.after and not item.before:
                self._remove_created_file(item)
        for raw in reversed(self._log.made):
            self._remove_created_directory(os.fsdecode(raw))
        for raw, mode in reversed(self._log.removed):
            self._recreate_directory(os.fsdecode(raw), mode)
        for number, item in enumerate(self._log.items):
            if item.before:
                self._restore_file(number, item)
        syscalls.sync(self._directory, "old-*")
        sync_all(self._root, self._log)
        restore_modes(self._root, self._log.removed)
        restore_modes(self._root, self._log.loosened[::-1])
        return [*self._left.values()]

    def _remove_created_file(self, item: UndoItem) -> None:
        """Remove a file that the transaction created, unless it was never created or was changed since."""
        found = self._inspect(item.path)
        if found is None or found.is_directory or (found.entry is None and not found.is_other):
            return
        if item.after is None or not item.after.is_matched_by(found.entry):
            self._leave_alone(item.path, str(item.after), str(found))
            return
        with self._root.place(item.path) as place:
            syscalls.unlink(place)

    def _remove_created_directory(self, path: str) -> None:
        """Remove a directory that the transaction created, if it is empty."""
        try:
            with self._root.place(path) as place:
                syscalls.rmdir(place)
        except (FileNotFoundError, NotADirectoryError, EscapesRoot):
            pass  # gone, or not made yet
        except OSError as error:
            # Files that another program put there, for instance a validation, keep the directory. If a file was here
            # before, its restoration below fails and is reported.
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise

    def _recreate_directory(self, path: str, mode: int) -> None:
        """Create a removed directory, writable until its files are back; its own mode is restored at the end."""
        try:
            with self._root.place(path) as place:
                syscalls.mkdir(place, mode | stat.S_IRWXU)
        except FileExistsError:
            found = self._inspect(path)
            if found is not None and not found.is_directory:
                self._leave_alone(path, "a directory", str(found))
        except _DISTURBED_ERRORS:
            self._leave_alone(path, "a directory", "nothing, and no place for it")

    def _restore_file(self, number: int, item: UndoItem) -> None:
        """Move the old content back to its path, unless it is still or again there."""
        old = Place(self._directory, old_name(number))
        saved = signature_at(old)
        try:
            with self._root.place(item.path) as place:
                now = signature_at(place)
                if saved is not None and now is not None and now.inode == saved.inode:
                    return  # both names are of the file that was there
                if self._may_replace(item):
                    if saved is None:
                        raise FileNotFoundError
                    syscalls.rename(old, place)
        except _DISTURBED_ERRORS:
            self._leave_alone(item.path, str(item.before), str(self._inspect(item.path) or "something behind a link"))

    def _may_replace(self, item: UndoItem) -> bool:
        """Return True if the path has nothing, or what the transaction put there; another program's file is kept."""
        found = self._root.inspect(item.path)
        if item.before is not None and item.before.is_matched_by(found.entry):
            return False
        is_ours = item.after is not None and item.after.is_matched_by(found.entry)
        is_nothing = found.entry is None and not found.is_other
        if not is_ours and not is_nothing:
            self._leave_alone(item.path, str(item.after or "nothing"), str(found))
        return is_ours or is_nothing

    def _inspect(self, path: str) -> FoundEntry | None:
        """Return what is at a path; None if a link is on the way to it."""
        with suppress(EscapesRoot):
            return self._root.inspect(path)
        return None

    def _leave_alone(self, path: str, expected: str, found: str) -> None:
        """Note a path that is not restored; the first reason for it counts."""
        self._left.setdefault(path, Mismatch(path, expected, found))


Modes = tuple[tuple[bytes, int], ...]
"""Directories with their permissions."""


def make_writable(root: Root, modes: Modes) -> None:
    """Give the owner all permissions on directories for a time: the highest first, so that the others are reachable."""
    for raw, mode in modes:
        path = os.fsdecode(raw)
        with suppress(FileNotFoundError, NotADirectoryError, EscapesRoot), root.directory(path) as descriptor:
            _set_mode(descriptor, mode | stat.S_IRWXU, path)


def restore_modes(root: Root, modes: Modes) -> None:
    """Give directories that still exist their own permissions: the lowest first, while they are reachable."""
    for raw, mode in modes:
        path = os.fsdecode(raw)
        with suppress(FileNotFoundError, NotADirectoryError, EscapesRoot), root.readable(path) as descriptor:
            if _set_mode(descriptor, mode, path):
                syscalls.sync(descriptor, path or ".")


def _set_mode(descriptor: int, mode: int, path: str) -> bool:
    """Set a directory's permissions; return False if it has them already."""
    if stat.S_IMODE(os.fstat(descriptor).st_mode) == mode:
        return False
    syscalls.chmod(descriptor, mode, path or ".")
    return True


def sync_all(root: Root, log: UndoLog) -> None:
    """Sync every directory in which a name was created, removed or replaced, if it still exists."""
    for path in log.touched:
        with suppress(FileNotFoundError, NotADirectoryError, EscapesRoot), root.readable(path) as descriptor:
            syscalls.sync(descriptor, path or ".")
