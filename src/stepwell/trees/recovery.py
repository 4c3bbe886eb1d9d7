"""Recovery of transactions that earlier processes did not finish at a root.

All functions need the root's lock, so that a transaction which is found cannot be a running one. By its stage:

- staging, spent: the tree does not depend on it, and it is removed;
- open: the tree may be half changed, and it is undone;
- done: it was committed, and only the caller can find out whether it counts. It stays until the caller calls
  `finalize` or `undo`;
- left: it was undone as far as possible; its old contents stay for a person until the next transaction begins.

A transaction is accepted by its seal alone, in every stage. Directories without one are left exactly as they are, and
`untrusted` lists them.

Every step can be repeated: a process that is killed during recovery leaves a state that the next recovery continues.
"""

from __future__ import annotations

from stepwell.errors import StoreDamaged, TreeConflict
from stepwell.trees.change_plan import conflict
from stepwell.trees.lock import RootLock
from stepwell.trees.sealed_name import Stage, TransactionRef, check_name
from stepwell.trees.staging_dir import StagingDir, UntrustedDirectory
from stepwell.trees.syscalls import wrap_os_errors
from stepwell.trees.undo import undo as undo_by_log


def recover(lock: RootLock) -> None:
    """Undo every transaction that was not committed, and remove what is of no use; entering a transaction does so, too.

    Raises `TreeConflict` if another program changed files of one since, and `StoreDamaged` if its log is not the one
    that it wrote; the rest of the tree is recovered first.
    """
    with wrap_os_errors(f"{lock.root.path!r} cannot be recovered"):
        recover_staging(lock.staging)


def committed(lock: RootLock) -> list[str]:
    """Return the names of transactions that were committed here and neither finalized nor undone since."""
    with wrap_os_errors(f"what is pending at {lock.root.path!r} cannot be read"):
        return [found.name for found in lock.staging.list() if found.stage is Stage.DONE]


def untrusted(lock: RootLock) -> list[UntrustedDirectory]:
    """Return the directories in `.stepwell` that recovery left alone, because they are not of this user's processes."""
    with wrap_os_errors(f"what is pending at {lock.root.path!r} cannot be read"):
        return lock.staging.untrusted()


def finalize(lock: RootLock, name: str) -> None:
    """Make a committed transaction final, by removing what is needed to undo it; `NotFound` if there is none."""
    check_name(name)
    with wrap_os_errors(f"{name!r} cannot be finalized"):
        lock.staging.discard(lock.staging.find(name, Stage.DONE))


def undo(lock: RootLock, name: str) -> None:
    """Undo a committed transaction: the tree becomes what it was before it.

    Raises `NotFound` if there is none, and `TreeConflict` if another program changed some of its files since.
    """
    check_name(name)
    with wrap_os_errors(f"{name!r} cannot be undone"):
        # It is open first: if the process dies while undoing, the next recovery goes on instead of asking again.
        undo_open(lock.staging, lock.staging.set_stage(lock.staging.find(name, Stage.DONE), Stage.OPEN))


def recover_staging(staging: StagingDir) -> None:
    """Do what `recover` does, with errors of the file system as they are.

    A conflict or a damaged log in one transaction does not keep the others from being recovered: it is raised at the
    end.
    """
    failures: list[TreeConflict | StoreDamaged] = []
    for found in staging.list():
        match found.stage:
            case Stage.STAGING | Stage.SPENT:
                staging.remove(found)
            case Stage.OPEN:
                try:
                    undo_open(staging, found)
                except (TreeConflict, StoreDamaged) as failure:
                    failures.append(failure)
            case Stage.DONE | Stage.LEFT:
                pass
    if failures:
        raise failures[0]


def undo_open(staging: StagingDir, found: TransactionRef) -> None:
    """Undo an open transaction and end it.

    Files that another program changed since are left alone. Then the old contents stay in a directory of the stage
    "left", and the `TreeConflict` names every such path and that directory. The next transaction removes it.
    """
    with staging.opened(found) as directory:
        mismatches = undo_by_log(staging.root, directory, staging.read_log(found, directory))
    if not mismatches:
        staging.discard(found)
        return
    left = staging.set_stage(found, Stage.LEFT)
    raise conflict(
        mismatches,
        f"{found.name!r} was undone, except for what another program changed since, which was left alone "
        f"(what was there before is in {staging.path(left)!r}, until the next transaction at this root begins)",
    )


def remove_left(staging: StagingDir) -> None:
    """Remove the old contents that earlier transactions left for a person."""
    for found in staging.list():
        if found.stage is Stage.LEFT:
            staging.discard(found)
