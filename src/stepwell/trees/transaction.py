"""Changes to a tree that happen entirely or not at all, whatever happens to the process or the power meanwhile.

    with TreeTransaction(root, name, deltas, read_body) as change:  # compared, staged; nothing touched yet
        change.go(check)  # the tree is after, and was read back
        ...               # prove it: leaving the block here undoes everything
        change.keep()     # the tree stays after; a crash leaves it to `pending`
        change.settle()   # and there is no way back any more

What is on disk before what. On the right is what a loss of power in between would otherwise do.

    1. each new content, then the log, then the names of both    a log that names what is not there
    2. the name `NAME.open`                                      a tree that changes, and nobody knows
    3. second names of all old contents                          an old content gone for good
    4. changes in the tree: names go, directories go and come, names come
    5. every directory in which a name changed                   a transaction that is done, and half of it is missing
    6. the name `NAME.done`

Old contents are second names of the same files, so that undoing gives back the very file, with its owner and times;
and somebody who writes into one while we work, through the name it had or a descriptor, is noticed at the end, and gets
it back. A file that is replaced is there at every moment, old or new. A hard link between files of a tree ends where
one of them is replaced; extended attributes are not carried over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import AlreadyExists, InvalidArgument, TreeConflict, TreeFailed
from stepwell.trees import syscalls
from stepwell.trees import undo_log as logs
from stepwell.trees.change_plan import ChangePlan, Mismatch, conflict, is_met, look_within, plan
from stepwell.trees.entry import PERMISSIONS, Delta, TreeEntry
from stepwell.trees.forward import DISTURBED, ForwardPass
from stepwell.trees.recovery import RootLock, recover_area, take_back
from stepwell.trees.staging import Stage, StagingDir, check_name, failures, reason_of
from stepwell.trees.syscalls import Place
from stepwell.trees.undo_log import UndoItem, new_name

ReadBody = Callable[[bytes], bytes | memoryview]
"""The content that has a digest."""


def _always() -> None:
    pass


class TreeTransaction:
    """One list of changes to one root. It holds the root's lock from entering to leaving, or is part of a turn there.

    With `resumes`, one of the same name that was done is gone on with, if the tree is still what it left, instead of
    being refused; where it is not, it is undone, and begun anew.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | RootLock,
        name: str,
        deltas: Iterable[Delta],
        read_body: ReadBody,
        *,
        wait_s: float = limits.TREE_LOCK_SECONDS,
        resumes: bool = False,
    ) -> None:
        check_name(name)
        self._given = root
        self._name = name
        self._deltas = tuple(deltas)
        self._read_body = read_body
        self._wait_s = wait_s
        self._resumes = resumes
        self._stack = ExitStack()
        self._stage: Stage | None = None
        self.is_there = False
        """Every path was already what it shall be: there is nothing to do."""

    def __enter__(self) -> Self:
        with ExitStack() as stack, failures(f"nothing of {self._name!r} was done"):
            given = self._given
            turn = given if isinstance(given, RootLock) else stack.enter_context(RootLock(given, wait_s=self._wait_s))
            self._root, self._area = turn.root, turn.area
            recover_area(self._area)
            self._plan = self._planned(turn)
            self._log = self._plan.log
            self.is_there = self._plan.is_there and self._stage is None
            if not self._plan.is_there:
                self._stage_all(self._area)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self._give_up(error)

    def _planned(self, turn: RootLock) -> ChangePlan:
        if (self._name, Stage.DONE) in self._area.list():
            if not self._resumes:
                raise AlreadyExists(f"{self._name!r} was done at this root already: settle or undo it first")
            with suppress(TreeConflict):
                found = plan(self._root, self._deltas)
                if found.is_there:
                    self._stage = Stage.DONE
                    return found
            turn.undo(self._name)
        return plan(self._root, self._deltas)

    def rename(self, to: str) -> None:
        """What is known of it on disk has another name from now on; the tree is as it is."""
        check_name(to)
        if self._stage is not None and to != self._name:
            with failures(f"{self._name!r} cannot be renamed"):
                self._area.rename(self._name, to, self._stage)
        self._name = to

    def go(self, check: Callable[[], None] = _always) -> None:
        """Make the tree what it shall be, and read it back. `check` may raise before each deed: all is undone then."""
        if self.is_there or self._stage is Stage.DONE:
            check()
            return
        if self._stage is not Stage.STAGING:
            raise InvalidArgument(f"{self._name!r} goes once, in the block of its transaction")
        try:
            with failures(f"{self._name!r} cannot be done"):
                self._area.move(self._name, Stage.STAGING, Stage.OPEN)
                self._stage = Stage.OPEN
                with self._area.opened(self._name, Stage.OPEN) as directory:
                    ForwardPass(self._root, directory, self._plan, check).run()
                self._verify(DISTURBED)
        except BaseException as error:
            self._give_up(error)
            raise

    def keep(self) -> None:
        """The tree stays what it is now, though this process may end: until `settle`, it can be undone.

        It is read once more: what was run to prove it may have changed it, and then it proved something else.
        """
        if not self.is_there and self._stage not in {Stage.OPEN, Stage.DONE}:
            raise InvalidArgument(f"{self._name!r} has not gone: there is nothing to keep")
        with failures(f"{self._name!r} cannot be kept"):
            self._verify("the tree is no longer what was made of it, and is not kept")
            if self._stage is Stage.OPEN:
                self._area.move(self._name, Stage.OPEN, Stage.DONE)
                self._stage = Stage.DONE

    def undo(self) -> None:
        """The tree is what it was before, also if it was kept. Where it was found as it shall be, it stays so."""
        if self._stage is Stage.DONE:
            self._stage = Stage.OPEN
        self._give_up(None)

    def settle(self) -> None:
        """There is no way back any more."""
        if self.is_there:
            return
        if self._stage is not Stage.DONE:
            raise InvalidArgument(f"{self._name!r} was not kept: there is nothing to settle")
        with failures(f"{self._name!r} cannot be settled"):
            self._area.spend(self._name, Stage.DONE)
        self._stage = None

    def _give_up(self, error: BaseException | None) -> None:
        """Undo what is not kept. What was left alone is told, with the error that led here as its context."""
        stage, self._stage = self._stage, None
        if stage not in {Stage.STAGING, Stage.OPEN}:
            return
        try:
            self._take_back()
        except OSError as refused:
            raise TreeFailed(
                f"{self._name!r} cannot be undone now ({reason_of(refused)}): the next transaction at "
                f"{self._root.path!r} will try again",
            ) from (error or refused)

    def _take_back(self) -> None:
        """From where it really is: what was renamed and could not be synced is further than we know."""
        actual = {stage for name, stage in self._area.list() if name == self._name}
        if Stage.STAGING in actual:
            with suppress(OSError):  # it is thrown away by the next transaction
                self._area.remove(self._name, Stage.STAGING)
            return
        if Stage.DONE in actual:
            self._area.move(self._name, Stage.DONE, Stage.OPEN)
        take_back(self._area, self._name)

    def _stage_all(self, area: StagingDir) -> None:
        """New contents and the log, on disk, where they disturb nobody."""
        area.make(self._name)
        self._stage = Stage.STAGING
        try:
            with area.opened(self._name, Stage.STAGING) as directory:
                for number, item in enumerate(self._log.items):
                    if item.after:
                        self._stage_one(Place(directory, new_name(number)), item, item.after)
                syscalls.write(Place(directory, logs.NAME), logs.encode(self._log), 0o600)
                syscalls.sync(directory, "new-*")
        except BaseException as error:
            self._give_up(error)
            raise

    def _stage_one(self, place: Place, item: UndoItem, after: TreeEntry) -> None:
        body = self._read_body(after.digest)
        if digest_of(body) != after.digest:
            raise InvalidArgument(f"path {item.path[:200]!r}: the body that was given has another digest")
        if after.kind == stat.S_IFLNK:
            syscalls.symlink(bytes(body), place)
        else:
            syscalls.write(place, body, (after.mode or 0) & PERMISSIONS, self._owner(item.path))

    def _owner(self, path: str) -> tuple[int, int] | None:
        """Whose file it stays, if it is not ours."""
        owner = self._plan.found[path].owner
        return None if owner == (os.geteuid(), os.getegid()) else owner

    def _verify(self, what: str) -> None:
        mismatches: list[Mismatch] = []
        for path, wanted in self._plan.wanted.items():
            found = look_within(self._root, path)
            if not is_met(wanted, found):
                mismatches.append(Mismatch(path, str(wanted or "nothing"), str(found)))
        if mismatches:
            raise conflict(mismatches, what)
