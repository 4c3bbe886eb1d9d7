"""Recovery of transactions that earlier processes did not finish at a root.

All functions need the root's lock, so that a transaction which is found cannot be a running one. By its stage:

- staging, spent: the tree does not depend on it, and it is removed;
- open: the tree may be half changed, and it is undone;
- done: it was committed, and only the caller can find out whether it counts. It stays until the caller calls
  `finalize` or `undo`;
- left: it was undone as far as possible; its old contents stay for a person.

Every step can be repeated: a process that is killed during recovery leaves a state that the next recovery continues.
"""

from __future__ import annotations

import os

from stepwell.errors import TreeConflict
from stepwell.trees import undo_log as logs
from stepwell.trees.change_plan import conflict
from stepwell.trees.lock import RootLock
from stepwell.trees.staging_dir import Stage, StagingDir, check_name
from stepwell.trees.syscalls import wrap_os_errors
from stepwell.trees.undo import undo as undo_by_log


def recover(lock: RootLock) -> None:
    """Undo every transaction that was not committed, and remove what is of no use; entering a transaction does so, too.

    Raises `TreeConflict` if another program changed files of one since; the rest of the tree is recovered first.
    """
    with wrap_os_errors(f"{lock.root.path!r} cannot be recovered"):
        recover_staging(lock.staging)


def committed(lock: RootLock) -> list[str]:
    """Return the names of transactions that were committed here and neither finalized nor undone since."""
    with wrap_os_errors(f"what is pending at {lock.root.path!r} cannot be read"):
        return [name for name, stage in lock.staging.list() if stage is Stage.DONE]


def finalize(lock: RootLock, name: str) -> None:
    """Make a committed transaction final, by removing what is needed to undo it; `NotFound` if there is none."""
    check_name(name)
    with wrap_os_errors(f"{name!r} cannot be finalized"):
        lock.staging.discard(name, Stage.DONE)


def undo(lock: RootLock, name: str) -> None:
    """Undo a committed transaction: the tree becomes what it was before it.

    Raises `NotFound` if there is none, and `TreeConflict` if another program changed some of its files since.
    """
    check_name(name)
    with wrap_os_errors(f"{name!r} cannot be undone"):
        # It is open first: if the process dies while undoing, the next recovery goes on instead of asking again.
        lock.staging.set_stage(name, Stage.DONE, Stage.OPEN)
        undo_open(lock.staging, name)


def recover_staging(staging: StagingDir) -> None:
    """Do what `recover` does, with errors of the file system as they are.

    A conflict in one transaction does not keep the others from being recovered: it is raised at the end.
    """
    conflicts: list[TreeConflict] = []
    for name, stage in staging.list():
        match stage:
            case Stage.STAGING | Stage.SPENT:
                staging.remove(name, stage)
            case Stage.OPEN:
                try:
                    undo_open(staging, name)
                except TreeConflict as found:
                    conflicts.append(found)
            case Stage.DONE | Stage.LEFT:
                pass
    if conflicts:
        raise conflicts[0]


def undo_open(staging: StagingDir, name: str) -> None:
    """Undo an open transaction and end it.

    Files that another program changed since are left alone. Then the old contents stay in `NAME.left`, and the
    `TreeConflict` names every such path and that directory.
    """
    with staging.opened(name, Stage.OPEN) as directory:
        left = undo_by_log(staging.root, directory, _read_log(staging, name, directory))
    if not left:
        staging.discard(name, Stage.OPEN)
        return
    staging.set_stage(name, Stage.OPEN, Stage.LEFT)
    raise conflict(
        left,
        f"{name!r} was undone, except for what another program changed since, which was left alone "
        f"(what was there before is in {staging.path(name, Stage.LEFT)!r})",
    )


def _read_log(staging: StagingDir, name: str, directory: int) -> logs.UndoLog:
    descriptor = os.open(logs.NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    with open(descriptor, "rb") as file:
        return logs.decode(file.read(), f"{staging.path(name, Stage.OPEN)}/{logs.NAME}")
