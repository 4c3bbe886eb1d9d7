"""The lock of a root: one transaction, recovery or rollback at a tree at a time.

The lock is an exclusive `flock` on the file `.stepwell/lock`. The kernel releases it when its holder's descriptor is
closed, so a killed process never leaves a locked tree. A `flock` belongs to an open file, not to a process, and each
`RootLock` opens the file anew; so it excludes other threads of the same process, too.

Programs that do not use this package, such as editors, are not excluded. Transactions detect their changes instead.
Captures and copies of this tree, or of one that overlaps it, are excluded by a `TreeLock`.

The lock file may have come with the tree. It is used if it is a regular file with one name. Anything else is refused:
a link or a second name would let the lock's holder overwrite another file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Final, Self

from stepwell import limits
from stepwell.errors import Busy, EscapesRoot
from stepwell.trees.entry import STAGING_DIR
from stepwell.trees.key import load_key
from stepwell.trees.root import Root
from stepwell.trees.sealed_name import RootIdentity, Sealer
from stepwell.trees.staging_dir import StagingDir, open_staging_dir
from stepwell.trees.syscalls import wrap_os_errors
from stepwell.trees.tree_lock import Purpose, TreeLock

LOCK: Final = "lock"


class RootLock:
    """A context manager that holds the lock of a root, and has the root and its staging directory open.

    While it is held, no other transaction runs at this root. Whatever unfinished transaction is found there was left
    by a process that has ended; `recovery` decides about it, and a `TreeTransaction` can be run under the same lock.
    Not reentrant. Belongs to the thread that entered it. Entering raises `Busy`, with the holder's process id, if the
    lock is not free within `wait_s`, `TreeInUse` if the tree is being captured, `TreeFailed` if the root cannot be
    written or there is no key for it, and `EscapesRoot` if `.stepwell` or the lock in it is something else than it
    should be.
    """

    def __init__(self, root: str | os.PathLike[str], *, wait_s: float = limits.TREE_LOCK_SECONDS) -> None:
        self._path = root
        self._wait_s = wait_s
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack, wrap_os_errors(f"{os.fspath(self._path)!r} cannot be locked"):
            self.root = stack.enter_context(Root(self._path))
            stack.enter_context(TreeLock(self.root, Purpose.CHANGE, wait_s=self._wait_s))
            self.staging = stack.enter_context(_locked_staging_dir(self.root, self._wait_s))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


@contextmanager
def _locked_staging_dir(root: Root, wait_s: float) -> Generator[StagingDir]:
    """Open the staging directory of a root, created if need be, and hold its lock until the block ends."""
    sealer = Sealer(load_key(root), RootIdentity.of(root.descriptor))
    descriptor = open_staging_dir(root)
    try:
        lock = _open_lock_file(root, descriptor)
        try:
            _acquire(lock, root, wait_s)
            staging = StagingDir(root, descriptor, sealer)
            staging.write_gitignore()
            yield staging
        finally:
            os.close(lock)
    finally:
        os.close(descriptor)


def _open_lock_file(root: Root, directory: int) -> int:
    """Return a descriptor of the lock file, created if need be; `EscapesRoot` if it is not a file of its own."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(LOCK, flags, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:  # a link, a directory, a socket
            raise _no_lock_file(root) from error
        raise
    status = os.fstat(lock)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
        return lock
    os.close(lock)
    raise _no_lock_file(root)


def _no_lock_file(root: Root) -> EscapesRoot:
    return EscapesRoot(
        f"{root.path}/{STAGING_DIR}/{LOCK} is no regular file, or has a second name, and cannot be the lock of the "
        "tree: move it away"
    )


def _acquire(lock: int, root: Root, wait_s: float) -> None:
    """Lock the file, trying again until `wait_s` have passed, and write this process's id into it.

    A blocking `flock` has no timeout, so it is polled.
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                pid = _holder_pid(lock)
                raise Busy(
                    f"process {pid} is changing {root.path!r}, and has been for {wait_s:g} s: try again later",
                    pid=pid,
                ) from None
            time.sleep(limits.TREE_LOCK_PAUSE_SECONDS)
    with suppress(OSError):  # on a full disk the lock holds all the same; only its holder cannot be named
        os.truncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid()}).encode(), 0)


def _holder_pid(lock: int) -> int | None:
    """Return the process id that the lock's holder wrote; None if the holder has not written it yet, or could not."""
    try:
        found = json.loads(os.pread(lock, limits.TREE_LOCK_BYTES_MAX, 0))
        return found["pid"] if isinstance(found["pid"], int) else None
    except (ValueError, KeyError, TypeError):
        return None
