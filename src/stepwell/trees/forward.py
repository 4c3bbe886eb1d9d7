"""From before to after, by the log: what the log says, in an order in which every moment can be undone.

Whoever else works in the tree at the same time is not locked out, so that each deed is one that refuses rather than
overwrites, where there is one, and what is replaced is looked at immediately before.
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
from stepwell.trees.undo import loosen, sync_all, tighten
from stepwell.trees.undo_log import UndoItem, new_name, old_name

DISTURBED: Final = "somebody changed the tree at the same time, and it was put back"
_MET: Final = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY})
"""How a deed shows that the tree is not any more what was planned for."""


class ForwardPass:
    """One run of a plan, with what it needs in the transaction's directory."""

    def __init__(self, root: Root, directory: int, plan: ChangePlan, check: Callable[[], None]) -> None:
        self._root = root
        self._directory = directory
        self._log = plan.log
        self._found = plan.found
        self._check = check
        self._unlinkable: set[int] = set()

    def run(self) -> None:
        """Everything, synced."""
        loosen(self._root, self._log.loosened)
        self._keep_old()
        self._remove()
        self._make()
        self._check()
        self._compare_old(range(len(self._log.items)))
        sync_all(self._root, self._log)
        tighten(self._root, self._log.loosened[::-1])

    def _keep_old(self) -> None:
        """A second name for everything that goes; where a file may have none, it is moved there when it goes."""
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
        self._compare_old(number for number in range(len(self._log.items)) if number not in self._unlinkable)

    def _compare_old(self, numbers: Iterable[int]) -> None:
        """What was kept is what was compared: nobody wrote into it since."""
        changed = [
            _written(item)
            for number in numbers
            if (item := self._log.items[number]).before
            and signature_at(self._old(number)) != self._found[item.path].signature
        ]
        if changed:
            raise conflict(changed, DISTURBED)

    def _remove(self) -> None:
        for number, item in enumerate(self._log.items):
            if item.before and (not item.after or number in self._unlinkable):
                self._check()
                with self._place(item.path) as place:
                    self._require_same(item, place)
                    if number in self._unlinkable:
                        syscalls.rename(place, self._old(number))
                    else:
                        syscalls.unlink(place)
        for raw, _ in self._log.removed:
            self._check()
            with self._place(os.fsdecode(raw)) as place:
                syscalls.rmdir(place)

    def _make(self) -> None:
        for raw in self._log.made:
            self._check()
            with self._place(os.fsdecode(raw)) as place:
                syscalls.mkdir(place)
        for number, item in enumerate(self._log.items):
            if item.after:
                self._check()
                with self._place(item.path) as place:
                    if item.before and number not in self._unlinkable:
                        self._require_same(item, place)
                        syscalls.rename(self._new(number), place)
                    else:
                        self._put_new(self._new(number), place)

    def _put_new(self, new: Place, place: Place) -> None:
        """Never over what somebody else put there: a link refuses that, and a rename would not."""
        try:
            syscalls.link(new, place)
        except OSError as error:
            if error.errno not in syscalls.UNLINKABLE:
                raise
            syscalls.rename(new, place)

    def _require_same(self, item: UndoItem, place: Place) -> None:
        if signature_at(place) != self._found[item.path].signature:
            raise conflict([_written(item)], DISTURBED)

    @contextmanager
    def _place(self, path: str) -> Generator[Place]:
        try:
            with self._root.place(path) as place:
                yield place
        except OSError as error:
            if error.errno not in _MET:
                raise
            found = Mismatch(path, "what was there a moment ago", (error.strerror or str(error)).lower())
            raise conflict([found], DISTURBED) from error

    def _old(self, number: int) -> Place:
        return Place(self._directory, old_name(number))

    def _new(self, number: int) -> Place:
        return Place(self._directory, new_name(number))


def _written(item: UndoItem) -> Mismatch:
    return Mismatch(item.path, str(item.before), "what somebody wrote meanwhile")
