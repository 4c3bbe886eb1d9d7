"""What earlier processes left at a root: undone, thrown away, or told to whoever knows what to do about it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from stepwell import limits
from stepwell.errors import TreeConflict
from stepwell.trees import undo_log as logs
from stepwell.trees.change_plan import conflict
from stepwell.trees.root import Root
from stepwell.trees.staging import Stage, StagingDir, check_name, failures, locked
from stepwell.trees.undo import undo as undo_log


class RootLock:
    """A root for nobody else until the block ends: what was left there can be looked at, judged and gone on from.

    Whatever is done here meanwhile is ours. A done transaction that is found was left by somebody who has gone.
    """

    def __init__(self, root: str | os.PathLike[str], *, wait_s: float = limits.TREE_LOCK_SECONDS) -> None:
        self._path = root
        self._wait_s = wait_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack, failures(f"there is no turn at {os.fspath(self._path)!r}"):
            self.root = stack.enter_context(Root(self._path))
            self.area = stack.enter_context(locked(self.root, self._wait_s))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def pending(self) -> list[tuple[str, bool]]:
        """Each transaction that came to no end here, and whether it was done."""
        with failures(f"what is pending at {self.root.path!r} cannot be read"):
            return [
                (name, stage is Stage.DONE) for name, stage in self.area.list() if stage in {Stage.OPEN, Stage.DONE}
            ]

    def recover(self) -> None:
        """Undo what is unfinished, as entering a transaction does."""
        with failures(f"{self.root.path!r} cannot be recovered"):
            recover_area(self.area)

    def settle(self, name: str) -> None:
        """A done transaction is final: what was kept to go back is removed."""
        check_name(name)
        with failures(f"{name!r} cannot be settled"):
            self.area.spend(name, Stage.DONE)

    def undo(self, name: str) -> None:
        """A done transaction did not count: the tree becomes what it was before it."""
        check_name(name)
        with failures(f"{name!r} cannot be undone"):
            self.area.move(name, Stage.DONE, Stage.OPEN)
            take_back(self.area, name)


def pending(root: str | os.PathLike[str], *, wait_s: float = limits.TREE_LOCK_SECONDS) -> list[tuple[str, bool]]:
    """Each transaction that came to no end here, and whether it was done: then ask whoever knows, and settle or undo.

    One that was not done is undone by the next transaction at this root, or by `recover`.
    """
    with RootLock(root, wait_s=wait_s) as turn:
        return turn.pending()


def settle(root: str | os.PathLike[str], name: str, *, wait_s: float = limits.TREE_LOCK_SECONDS) -> None:
    """`RootLock.settle` alone."""
    with RootLock(root, wait_s=wait_s) as turn:
        turn.settle(name)


def undo(root: str | os.PathLike[str], name: str, *, wait_s: float = limits.TREE_LOCK_SECONDS) -> None:
    """`RootLock.undo` alone."""
    with RootLock(root, wait_s=wait_s) as turn:
        turn.undo(name)


def recover(root: str | os.PathLike[str], *, wait_s: float = limits.TREE_LOCK_SECONDS) -> None:
    """`RootLock.recover` alone."""
    with RootLock(root, wait_s=wait_s) as turn:
        turn.recover()


def recover_area(area: StagingDir) -> None:
    """Undo what is open, throw away what is of no use; what is done waits. Every one has its turn, then it is told."""
    conflicts: list[TreeConflict] = []
    for name, stage in area.list():
        match stage:
            case Stage.STAGING | Stage.SPENT:
                area.remove(name, stage)
            case Stage.OPEN:
                try:
                    take_back(area, name)
                except TreeConflict as found:
                    conflicts.append(found)
            case Stage.DONE | Stage.LEFT:
                pass
    if conflicts:
        raise conflicts[0]


def take_back(area: StagingDir, name: str) -> None:
    """Undo an open transaction, and be done with it."""
    with area.opened(name, Stage.OPEN) as directory:
        left = undo_log(area.root, directory, _read(area, name, directory))
    if not left:
        area.spend(name, Stage.OPEN)
        return
    area.move(name, Stage.OPEN, Stage.LEFT)
    raise conflict(
        left,
        f"{name!r} was undone, except for what somebody changed since, which was left alone "
        f"(what was there before is in {area.path(name, Stage.LEFT)!r})",
    )


def _read(area: StagingDir, name: str, directory: int) -> logs.UndoLog:
    descriptor = os.open(logs.NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb") as file:
        return logs.decode(file.read(), f"{area.path(name, Stage.OPEN)}/{logs.NAME}")
