"""The forward pass of a transaction: change the tree as the log says, in an order that can be undone at every moment.

Old contents get second names before anything is removed. Then files and directories go, directories come, and files
come. At the end every touched directory is synced.

Other programs may work in the tree at the same time; they are not locked out. So the pass uses calls that refuse to
overwrite, where the kernel has one, and compares a file that it replaces with the planned one immediately before. A
difference raises `TreeConflict`, and the transaction undoes everything.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from stepwell.trees import syscalls
from stepwell.trees.change_plan import ChangePlan, Mismatch, conflict
from stepwell.trees.root import Root, signature_at
from stepwell.trees.syscalls import Place
from stepwell.trees.undo import make_writable, restore_modes, sync_all
from stepwell.trees.undo_log import UndoItem, new_name, old_name

DISTURBED: Final = "another program changed the tree at the same time, and it was put back"
_DISTURBED_ERRNOS: Final = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY})
"""Errors of a step which mean that another program changed the tree after the plan was made."""


class ForwardPass:
    """One run of a change plan; `directory` is the transaction's open directory with the new contents.

    The transaction owns it and calls `run` once. `check` is called before each step in the tree, and stops the pass by
    raising. The pass undoes nothing itself: the transaction does, from the log.
    """

    def __init__(self, root: Root, directory: int, plan: ChangePlan, check: Callable[[], None]) -> None:
        self._root = root
        self._directory = directory
        self._log = plan.log
        self._found = plan.found
        self._check = check
        self._unlinkable: set[int] = set()
        """Numbers of items whose file system allows no second names; the files are moved instead."""

    def run(self) -> None:
        """Make all changes and sync them; `TreeConflict` if another program changed the tree meanwhile."""
        make_writable(self._root, self._log.loosened)
        self._link_old()
        self._remove()
        self._create()
        self._check()
        # After the last change: a program may have written into an old file through a descriptor that it had open.
        self._require_old_unchanged(range(len(self._log.items)))
        sync_all(self._root, self._log)
        restore_modes(self._root, self._log.loosened[::-1])  # last, because syncing needs read permission

    def _link_old(self) -> None:
        """Give every file that goes a second name, `old-N`; a file that cannot have one is moved there when it goes."""
        for number, item in enumerate(self._log.items):
            if item.before:
                with self._place(item.path) as place:
                    try:
                        syscalls.link(place, self._old(number))
                    except OSError as error:
                        if error.errno not in syscalls.UNLINKABLE:
                            raise
                        self._unlinkable.add(number)
        syscalls.sync(self._directory, "old-*")
        self._require_old_unchanged(number for number in range(len(self._log.items)) if number not in self._unlinkable)

    def _require_old_unchanged(self, numbers: Iterable[int]) -> None:
        """Raise `TreeConflict` if an old file was written to since the plan compared it."""
        changed = [
            _written(item)
            for number in numbers
            if (item := self._log.items[number]).before
            and signature_at(self._old(number)) != self._found[item.path].signature
        ]
        if changed:
            raise conflict(changed, DISTURBED)

    def _remove(self) -> None:
        """Remove the files that go, then the directories that are empty after that.

        A replaced file that has no second name is moved away here, because renaming the new content over it would
        destroy it.
        """
        for number, item in enumerate(self._log.items):
            if item.before and (not item.after or number in self._unlinkable):
                self._check()
                with self._place(item.path) as place:
                    self._require_unchanged(item, place)
                    if number in self._unlinkable:
                        syscalls.rename(place, self._old(number))
                    else:
                        syscalls.unlink(place)
        for raw, _ in self._log.removed:
            self._check()
            with self._place(os.fsdecode(raw)) as place:
                syscalls.rmdir(place)

    def _create(self) -> None:
        """Create directories, then put the new contents in place, replacing files atomically."""
        for raw in self._log.made:
            self._check()
            with self._place(os.fsdecode(raw)) as place:
                syscalls.mkdir(place)
        for number, item in enumerate(self._log.items):
            if item.after:
                self._check()
                with self._place(item.path) as place:
                    if item.before and number not in self._unlinkable:
                        self._require_unchanged(item, place)
                        syscalls.rename(self._new(number), place)
                    else:
                        self._place_new(self._new(number), place)

    def _place_new(self, new: Place, place: Place) -> None:
        """Put a new content where no file is expected. `link` never replaces another file; `rename` would."""
        try:
            syscalls.link(new, place)
        except OSError as error:
            if error.errno not in syscalls.UNLINKABLE:
                raise
            syscalls.rename(new, place)

    def _require_unchanged(self, item: UndoItem, place: Place) -> None:
        """Raise `TreeConflict` unless the path still has the file that the plan compared."""
        if signature_at(place) != self._found[item.path].signature:
            raise conflict([_written(item)], DISTURBED)

    @contextmanager
    def _place(self, path: str) -> Generator[Place]:
        """Open the place of a path for one step, and raise `TreeConflict` for errors that another program caused."""
        try:
            with self._root.place(path) as place:
                yield place
        except OSError as error:
            if error.errno not in _DISTURBED_ERRNOS:
                raise
            found = Mismatch(path, "what was there a moment ago", (error.strerror or str(error)).lower())
            raise conflict([found], DISTURBED) from error

    def _old(self, number: int) -> Place:
        return Place(self._directory, old_name(number))

    def _new(self, number: int) -> Place:
        return Place(self._directory, new_name(number))


def _written(item: UndoItem) -> Mismatch:
    return Mismatch(item.path, str(item.before), "what another program wrote meanwhile")
