"""Back to what was before, from the log and what is found: the same for a failure, a crash and a change of mind.

Nothing is remembered about how far the transaction came, or an earlier undoing: every step looks first, so that each
may have happened already, and the whole may be interrupted and begun again. What is there is

- what was there before: nothing is to be done;
- what the transaction put there, or nothing: what was there before is put back;
- anything else: somebody changed it since. It is left alone, and named.
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

_IN_THE_WAY = (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError, EscapesRoot)
"""How a place shows that it is not what the log left: somebody else was there."""


def undo(root: Root, directory: int, log: UndoLog) -> list[Mismatch]:
    """Put everything back, synced; what could not be, because somebody changed it since."""
    return _Undoing(root, directory, log).run()


class _Undoing:
    def __init__(self, root: Root, directory: int, log: UndoLog) -> None:
        self._root = root
        self._directory = directory
        self._log = log
        self._left: dict[str, Mismatch] = {}

    def run(self) -> list[Mismatch]:
        loosen(self._root, self._log.loosened)
        for item in self._log.items:
            if item.after and not item.before:
                self._take_away(item)
        for raw in reversed(self._log.made):
            self._unmake(os.fsdecode(raw))
        for raw, mode in reversed(self._log.removed):
            self._remake(os.fsdecode(raw), mode)
        for number, item in enumerate(self._log.items):
            if item.before:
                self._put_back(number, item)
        syscalls.sync(self._directory, "old-*")
        sync_all(self._root, self._log)
        tighten(self._root, self._log.removed)
        tighten(self._root, self._log.loosened[::-1])
        return [*self._left.values()]

    def _take_away(self, item: UndoItem) -> None:
        found = self._look(item.path)
        if found is None or found.is_directory or (found.leaf is None and not found.is_other):
            return
        if item.after is None or not item.after.is_met_by(found.leaf):
            self._leave(item.path, str(item.after), str(found))
            return
        with self._root.place(item.path) as place:
            syscalls.unlink(place)

    def _unmake(self, path: str) -> None:
        try:
            with self._root.place(path) as place:
                syscalls.rmdir(place)
        except (FileNotFoundError, NotADirectoryError, EscapesRoot):
            pass  # gone, or not made yet
        except OSError as error:
            # What somebody else put there, as a program that was run in the tree, keeps it; the leaf that was to be
            # here, if there was one, will be missed below.
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise

    def _remake(self, path: str, mode: int) -> None:
        try:
            with self._root.place(path) as place:
                syscalls.mkdir(place, mode | stat.S_IRWXU)
        except FileExistsError:
            found = self._look(path)
            if found is not None and not found.is_directory:
                self._leave(path, "a directory", str(found))
        except _IN_THE_WAY:
            self._leave(path, "a directory", "nothing, and no place for it")

    def _put_back(self, number: int, item: UndoItem) -> None:
        old = Place(self._directory, old_name(number))
        kept = signature_at(old)
        try:
            with self._root.place(item.path) as place:
                now = signature_at(place)
                if kept is not None and now is not None and now.inode == kept.inode:
                    return  # two names of what was there
                if self._may_replace(item):
                    if kept is None:
                        raise FileNotFoundError
                    syscalls.rename(old, place)
        except _IN_THE_WAY:
            self._leave(item.path, str(item.before), str(self._look(item.path) or "something behind a link"))

    def _may_replace(self, item: UndoItem) -> bool:
        found = self._root.look(item.path)
        if item.before is not None and item.before.is_met_by(found.leaf):
            return False
        is_ours = item.after is not None and item.after.is_met_by(found.leaf)
        is_nothing = found.leaf is None and not found.is_other
        if not is_ours and not is_nothing:
            self._leave(item.path, str(item.after or "nothing"), str(found))
        return is_ours or is_nothing

    def _look(self, path: str) -> FoundEntry | None:
        with suppress(EscapesRoot):
            return self._root.look(path)
        return None

    def _leave(self, path: str, expected: str, found: str) -> None:
        self._left.setdefault(path, Mismatch(path, expected, found))


Modes = tuple[tuple[bytes, int], ...]
"""Directories, and the permissions that are theirs."""


def loosen(root: Root, modes: Modes) -> None:
    """Have directories writable for a time: the highest first, so that there is a way to the others."""
    for raw, mode in modes:
        path = os.fsdecode(raw)
        with suppress(FileNotFoundError, NotADirectoryError, EscapesRoot), root.directory(path) as descriptor:
            _set_mode(descriptor, mode | stat.S_IRWXU, path)


def tighten(root: Root, modes: Modes) -> None:
    """Give directories that are still there their own permissions: the lowest first, while there is a way to them."""
    for raw, mode in modes:
        path = os.fsdecode(raw)
        with suppress(FileNotFoundError, NotADirectoryError, EscapesRoot), root.readable(path) as descriptor:
            if _set_mode(descriptor, mode, path):
                syscalls.sync(descriptor, path or ".")


def _set_mode(descriptor: int, mode: int, path: str) -> bool:
    if stat.S_IMODE(os.fstat(descriptor).st_mode) == mode:
        return False
    syscalls.chmod(descriptor, mode, path or ".")
    return True


def sync_all(root: Root, log: UndoLog) -> None:
    """Every directory in which a name came, went or was replaced, as far as it is still there."""
    for path in log.touched:
        with suppress(FileNotFoundError, NotADirectoryError, EscapesRoot), root.readable(path) as descriptor:
            syscalls.sync(descriptor, path or ".")
