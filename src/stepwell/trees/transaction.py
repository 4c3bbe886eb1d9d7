"""Change a tree entirely or not at all, whatever happens to the process or the power meanwhile.

    with TreeTransaction(root, name, deltas, read_body) as change:  # compared and staged; the tree is untouched
        change.apply(check)  # the tree is after, and was read back
        ...                  # validate it: leaving the block here undoes everything
        change.commit()      # the tree stays after; after a crash `recovery.committed` lists the transaction
        change.finalize()    # it can no longer be undone

The order in which things reach the disk. On the right is what a loss of power would otherwise do.

    1. each new content, then the log, then the names of both    a log that names contents which are not there
    2. the name `NAME.SEAL.open`                                 a tree that changes without a log to undo it
    3. second names of all old contents                          an old content gone for good
    4. changes in the tree: names go, directories go and come, names come
    5. every directory in which a name changed                   a transaction that is done, and half of it is missing
    6. the name `NAME.SEAL.done`

Only the directory's name has the seal by which recovery accepts the transaction, so it is on disk with the name.

Old contents are second names (hard links) of the same files. So undoing restores the very file, with its owner and
times. If another program writes into an old file while the transaction runs, through its former name or an open
descriptor, this is detected at the end, and the file is put back with what was written. A file that is replaced exists
at every moment, old or new. A hard link between files of a tree ends when one of them is replaced; extended attributes
are not carried over.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import msgspec

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import AlreadyExists, InvalidArgument, TreeConflict, TreeFailed
from stepwell.trees import recovery, syscalls
from stepwell.trees import undo_log as logs
from stepwell.trees.change_plan import ChangePlan, Mismatch, conflict, inspect_within, is_matched, plan
from stepwell.trees.conflict_diff import ReadBody
from stepwell.trees.entry import PERMISSIONS, Delta, TreeEntry
from stepwell.trees.forward import DISTURBED, ForwardPass
from stepwell.trees.lock import RootLock
from stepwell.trees.sealed_name import Stage, TransactionRef, check_name
from stepwell.trees.staging_dir import StagingDir
from stepwell.trees.syscalls import Place, describe_os_error, wrap_os_errors
from stepwell.trees.undo_log import UndoItem, new_name


def _no_check() -> None:
    pass


class TreeTransaction:
    """One list of changes to one root, as a context manager for one thread.

    It holds the root's lock from entering to leaving; given a `RootLock`, it runs under that one instead. Entering
    recovers what earlier transactions left, compares the tree with every delta's `before`, removes the old contents
    that an earlier undo left for a person, and writes all new contents to the staging directory. It raises
    `TreeConflict`, naming every path, if the tree is not as expected, and writes nothing to the tree.

    Guarantee: until `commit` returns, every way out of the block, including a crash, ends with the tree as it was.
    Files that another program changed meanwhile are left alone and named in a `TreeConflict`. After `commit`, the tree
    stays changed until `undo`; a crash leaves the decision to the next caller (`recovery.finalize` or `recovery.undo`).

    With `resumes`, a committed transaction of the same name is continued if the tree is still as it left it, and
    undone and started again if not. Without `resumes`, it is an `AlreadyExists`.
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
        self._root_or_lock = root
        self._name = name
        self._deltas = tuple(deltas)
        self._read_body = read_body
        self._wait_s = wait_s
        self._resumes = resumes
        self._stack = ExitStack()
        self._stored: TransactionRef | None = None
        """The transaction on disk; None before it is staged, and after it has ended."""
        self.is_already_applied = False
        """True if every path was found as it shall be, so that there is nothing to do and nothing on disk."""

    def __enter__(self) -> Self:
        with ExitStack() as stack, wrap_os_errors(f"nothing of {self._name!r} was done"):
            given = self._root_or_lock
            lock = given if isinstance(given, RootLock) else stack.enter_context(RootLock(given, wait_s=self._wait_s))
            self._root, self._staging = lock.root, lock.staging
            recovery.recover_staging(self._staging)
            self._plan = self._make_plan(lock)
            self._log = self._plan.log
            self.is_already_applied = self._plan.is_already_applied and self._stored is None
            recovery.remove_left(self._staging)
            if not self._plan.is_already_applied:
                self._stage_all(self._staging)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            self._undo_uncommitted(error)

    def _make_plan(self, lock: RootLock) -> ChangePlan:
        """Compare the tree with the deltas; before that, continue or undo a committed transaction of this name."""
        committed = [each for each in self._staging.list() if (each.name, each.stage) == (self._name, Stage.DONE)]
        if committed:
            if not self._resumes:
                raise AlreadyExists(f"{self._name!r} was committed at this root already: finalize or undo it first")
            with suppress(TreeConflict):
                found = plan(self._root, self._deltas, self._read_body)
                if found.is_already_applied:
                    self._stored = committed[0]
                    return found
            recovery.undo(lock, self._name)
        return plan(self._root, self._deltas, self._read_body)

    def rename(self, to: str) -> None:
        """Give the transaction another name on disk; the tree is not touched."""
        check_name(to)
        if self._stored is not None and to != self._name:
            with wrap_os_errors(f"{self._name!r} cannot be renamed"):
                self._stored = self._staging.rename(self._stored, to)
        self._name = to

    def apply(self, check: Callable[[], None] = _no_check) -> None:
        """Make the changes in the tree, and read it back.

        `check` is called before each step and may raise, for instance because a lease was lost. Then, and after any
        other error, everything is undone before the error is raised. Without anything to do, `check` is called once.
        """
        if self.is_already_applied or self._stage is Stage.DONE:
            check()
            return
        if self._stored is None or self._stored.stage is not Stage.STAGING:
            raise InvalidArgument(f"{self._name!r} is applied once, in the block of its transaction")
        try:
            with wrap_os_errors(f"{self._name!r} cannot be done"):
                self._stored = self._staging.set_stage(self._stored, Stage.OPEN)
                with self._staging.opened(self._stored) as directory:
                    ForwardPass(self._root, directory, self._plan, check).run()
                self._verify(DISTURBED)
        except BaseException as error:
            self._undo_uncommitted(error)
            raise

    def commit(self) -> None:
        """Make the changed tree survive the end of this process; until `finalize`, it can still be undone.

        The tree is read once more, because a program that was run to validate it may have changed it; then something
        else was validated, and this raises `TreeConflict`.
        """
        if not self.is_already_applied and self._stage not in {Stage.OPEN, Stage.DONE}:
            raise InvalidArgument(f"{self._name!r} was not applied: there is nothing to commit")
        with wrap_os_errors(f"{self._name!r} cannot be committed"):
            self._verify("the tree is no longer what was made of it, and is not committed")
            if self._stored is not None and self._stored.stage is Stage.OPEN:
                self._stored = self._staging.set_stage(self._stored, Stage.DONE)

    def undo(self) -> None:
        """Restore the tree as it was before, also after `commit`. A tree that was found already changed stays so."""
        self._undo(None)

    def finalize(self) -> None:
        """End a committed transaction by removing the old contents: from now on it cannot be undone."""
        if self.is_already_applied:
            return
        if self._stored is None or self._stored.stage is not Stage.DONE:
            raise InvalidArgument(f"{self._name!r} was not committed: there is nothing to finalize")
        with wrap_os_errors(f"{self._name!r} cannot be finalized"):
            self._staging.discard(self._stored)
        self._stored = None

    @property
    def _stage(self) -> Stage | None:
        return self._stored.stage if self._stored else None

    def _undo_uncommitted(self, error: BaseException | None) -> None:
        """Undo what is staged or applied, unless it was committed; `error` is the reason."""
        if self._stage is Stage.DONE:
            self._stored = None
        self._undo(error)

    def _undo(self, error: BaseException | None) -> None:
        """Undo what is on disk; `error` is the reason, and becomes the cause of a failure.

        Raises `TreeConflict` if some files were left alone, and `TreeFailed` if the file system refuses; then the next
        transaction at this root tries again.
        """
        stored, self._stored = self._stored, None
        if stored is None:
            return
        try:
            self._undo_on_disk(stored)
        except OSError as refused:
            raise TreeFailed(
                f"{self._name!r} cannot be undone now ({describe_os_error(refused)}): the next transaction at "
                f"{self._root.path!r} will try again",
            ) from (error or refused)

    def _undo_on_disk(self, stored: TransactionRef) -> None:
        """Undo from the stage and name that are on disk, not those in memory.

        They differ if a rename succeeded and the sync after it failed. `NotFound` if it is spent already, or gone.
        """
        found = self._staging.find_log(stored.log_tag)
        if found.stage is Stage.STAGING:
            with suppress(OSError):  # the tree is untouched, and the next transaction removes it
                self._staging.remove(found)
            return
        if found.stage is Stage.DONE:
            found = self._staging.set_stage(found, Stage.OPEN)
        recovery.undo_open(self._staging, found)

    def _stage_all(self, staging: StagingDir) -> None:
        """Write the new contents and the log to the staging directory, and sync them; the tree is not touched."""
        log = logs.encode(msgspec.structs.replace(self._log, nonce=secrets.token_bytes(limits.TREE_NONCE_BYTES)))
        self._stored = staging.create(self._name, log)
        try:
            with staging.opened(self._stored) as directory:
                for number, item in enumerate(self._log.items):
                    if item.after:
                        self._stage_one(Place(directory, new_name(number)), item, item.after)
                syscalls.write(Place(directory, logs.NAME), log, 0o600)
                syscalls.sync(directory, "new-*")
        except BaseException as error:
            self._undo_uncommitted(error)
            raise

    def _stage_one(self, place: Place, item: UndoItem, after: TreeEntry) -> None:
        body = self._read_body(after.digest)
        if digest_of(body) != after.digest:
            shown = item.path[: limits.PATH_CHARS_SHOWN]
            raise InvalidArgument(f"path {shown!r}: the body that was given has another digest")
        if after.kind == stat.S_IFLNK:
            syscalls.symlink(bytes(body), place)
        else:
            syscalls.write(place, body, (after.mode or 0) & PERMISSIONS, self._owner(item.path))

    def _owner(self, path: str) -> tuple[int, int] | None:
        """Return the owner that a replaced file keeps; None if it is this process's user anyway."""
        owner = self._plan.found[path].owner
        return None if owner == (os.geteuid(), os.getegid()) else owner

    def _verify(self, what: str) -> None:
        """Read every changed path back, and raise a `TreeConflict` that begins with `what` unless all are as wanted."""
        mismatches: list[Mismatch] = []
        for path, wanted in self._plan.wanted.items():
            found = inspect_within(self._root, path)
            if not is_matched(wanted, found):
                mismatches.append(Mismatch(path, str(wanted or "nothing"), str(found)))
        if mismatches:
            raise conflict(mismatches, what)
