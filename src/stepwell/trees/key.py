"""The key with which transactions are sealed: 32 random bytes in a file of this user, outside every tree.

It is `tree.key` in `$XDG_STATE_HOME/stepwell`, or in `~/.local/state/stepwell`. The first transaction of a user creates
it. There is one for all trees, so that any process of the user can recover what another one left. Transactions that
were interrupted before the key was lost are reported and left alone, like those of an attacker.

The same directory has the table of tree locks (`tree_lock`).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from stepwell import limits
from stepwell.errors import TreeFailed
from stepwell.text import plural
from stepwell.trees import syscalls
from stepwell.trees.root import Root
from stepwell.trees.syscalls import Place, wrap_os_errors

_FILE: Final = "tree.key"
_ADVICE: Final = "XDG_STATE_HOME can name another directory for it, which must stay"


def load_key(root: Root) -> bytes:
    """Return this user's key, created if there is none.

    Raises `TreeFailed` if it lies below the root, if it or its directory is open to other users or not this user's,
    or if it cannot be read or created.
    """
    path = state_directory()
    with (
        wrap_os_errors(f"the key of tree transactions in {path!r} cannot be read or created ({_ADVICE})"),
        open_state_directory(root) as directory,
    ):
        return _read(directory, path) or _create(directory, path)


@contextmanager
def open_state_directory(root: Root) -> Generator[int]:
    """Open the state directory for the block, created if need be.

    Raises `TreeFailed` if it lies below the root, is open to other users, or is another user's.
    """
    path = state_directory()
    _require_outside(root, path)
    # The mode is for the last directory. Those above it are shared with other programs, and have the usual mode.
    os.makedirs(path, 0o700, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _require_private(os.fstat(directory), path, "chmod 700")
        yield directory
    finally:
        os.close(directory)


def state_directory() -> str:
    """Return the path of the state directory. The XDG standard says to ignore a relative value."""
    given = os.environ.get("XDG_STATE_HOME", "")
    above = given if os.path.isabs(given) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(above):
        raise TreeFailed("this user has no home directory for the state of trees: set XDG_STATE_HOME")
    return os.path.join(above, "stepwell")


def _require_outside(root: Root, path: str) -> None:
    """Raise `TreeFailed` if the directory is part of the tree: a plan or an archive could then replace the key."""
    root_status = os.fstat(root.descriptor)
    above = os.path.realpath(path)
    while True:
        with suppress(OSError):  # it does not exist yet, or is closed to this user
            if os.path.samestat(root_status, os.stat(above)):
                raise TreeFailed(
                    f"the state of trees, such as the key of their transactions, is in {path!r}, which is in the tree "
                    f"{root.path!r}: set XDG_STATE_HOME to a directory outside of it"
                )
        if above == (above := os.path.dirname(above)):
            return


def _require_private(status: os.stat_result, path: str, command: str) -> None:
    """Raise `TreeFailed` if another user owns a file or directory, or has any permission on it."""
    if status.st_uid != os.geteuid():
        raise TreeFailed(f"{path!r} is for the key of tree transactions, and is another user's: {_ADVICE}")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TreeFailed(
            f"{path!r} is open to other users, who could then forge transactions: make sure that its content is yours, "
            f"and `{command}` it"
        )


def _read(directory: int, above: str) -> bytes | None:
    """Return the key in an open directory; None if there is none."""
    path = os.path.join(above, _FILE)
    try:
        descriptor = os.open(_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise _no_key(path, "is a symbolic link") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _no_key(path, "is no file")
        _require_private(status, path, "chmod 600")
        key = os.read(descriptor, limits.TREE_KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(key) != limits.TREE_KEY_BYTES:
        raise _no_key(path, f"has {plural(len(key), 'byte')} or more instead of {limits.TREE_KEY_BYTES}")
    return key


def _no_key(path: str, problem: str) -> TreeFailed:
    return TreeFailed(
        f"{path!r} {problem}, and should be the key of tree transactions: move it away, and another one is made; "
        "transactions that were interrupted before are then left alone"
    )


def _create(directory: int, above: str) -> bytes:
    """Create the key and return it. Of several processes that do this at once, all return the key of the first.

    The draft is complete and on disk before it gets its name, and `link` does not replace the file of another process.
    """
    draft = Place(directory, f"{_FILE}.{secrets.token_hex(8)}")
    syscalls.write(draft, secrets.token_bytes(limits.TREE_KEY_BYTES), 0o600)
    try:
        with suppress(FileExistsError):
            syscalls.link(draft, Place(directory, _FILE))
    finally:
        syscalls.unlink(draft)
    syscalls.sync(directory, above)
    parent = os.open(os.path.dirname(above), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.sync(parent, os.path.dirname(above))
    finally:
        os.close(parent)
    key = _read(directory, above)
    if key is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _FILE)
    return key
