"""Scratch copies of a tree: a private directory with the files of a tree, in which an agent works by itself.

A copy has what a capture of the tree would see: files, symbolic links as they are, and empty directories, but nothing
that git ignores and no `.git`. The rules and the index of the tree's own repositories still decide what is ignored in
the copy (`ScratchCopy.repositories`), so that a capture in the copy finds what a capture in the tree would have found.

Copies are in `scratch` in this user's state directory, which no other user can enter and which is never below the root.
Each has a lock file beside it; its owner holds the lock. A copy whose lock is free was left by a process that is gone,
and is removed when the next copy is made.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.trees.entry import PERMISSIONS, parent_of
from stepwell.trees.ignore import Repository, find_repository
from stepwell.trees.key import state_directory
from stepwell.trees.root import Root
from stepwell.trees.syscalls import Place, wrap_os_errors
from stepwell.trees.tree_lock import LockedFile, Purpose, TreeLock, new_token, open_table, table_lock, try_lock
from stepwell.trees.walk import WalkResult, walk

_SCRATCH: Final = "scratch"
_SUFFIX: Final = ".use"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_IGNORE: Final = ".gitignore"


class ScratchCopy(Struct, frozen=True):
    """A copy of a tree: its path, and the repositories whose rules hold in it, for `TreeCapture`."""

    path: str
    repositories: Mapping[str, Repository]


@contextmanager
def scratch_copy(root: str | os.PathLike[str]) -> Generator[ScratchCopy]:
    """Copy a tree for the block, and remove the copy at its end, also after an exception.

    No plan is applied to the tree while it is copied. Raises `InvalidArgument` if the root is no directory or the tree
    is too large, `Busy` if the tree is being changed for too long, and `TreeFailed` if the file system refuses.
    """
    with wrap_os_errors(f"{os.fspath(root)!r} cannot be copied"), Root(root) as source:
        with open_table(source, _SCRATCH) as table:
            above = os.path.join(state_directory(), _SCRATCH)
            _remove_left(table, above)
            token = new_token()
            with table_lock(table):
                owned = LockedFile(table, f"{token}{_SUFFIX}")
        path = os.path.join(above, token)
        try:
            with TreeLock(source, Purpose.COPY, wait_s=limits.TREE_LOCK_SECONDS):
                copied = _copy(source, path)
        except BaseException:
            _discard(path, owned)
            raise
    pid = os.getpid()
    try:
        yield copied
    finally:
        if pid == os.getpid():  # not a forked child that leaves the same block
            _discard(path, owned)


def _remove_left(table: int, above: str) -> None:
    """Remove the copies of processes that are gone, each under its own lock, so that no two processes do it."""
    for name in os.listdir(table):
        if name.endswith(_SUFFIX):
            with suppress(FileNotFoundError), _locked_if_left(table, name) as is_left:
                if is_left and _remove_all(os.path.join(above, name.removesuffix(_SUFFIX))):
                    os.unlink(name, dir_fd=table)


@contextmanager
def _locked_if_left(table: int, name: str) -> Generator[bool]:
    """Lock the file of a copy for the block, and give True, if its owner is gone.

    The table's lock is held while the file is examined: a file that was just made is then locked by its owner already.
    """
    with table_lock(table):
        descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=table)
        is_left = try_lock(descriptor)
    try:
        yield is_left
    finally:
        os.close(descriptor)


def _discard(path: str, owned: LockedFile) -> None:
    """Remove a copy, then its lock file. What cannot be removed, because a program is at work there, stays for later.

    Then its lock file stays, too, and the next copy that is made removes both.
    """
    if _remove_all(path):
        owned.remove()
    else:
        owned.close()


def _remove_all(path: str) -> bool:
    """Remove a directory with all that is in it, and return True if nothing of it is left.

    Programs may have left directories that their owner may not change: these are opened first. Links are not followed.
    """
    with suppress(OSError):
        os.chmod(path, 0o700)
    for directory, names, _ in os.walk(path):
        for each in (os.path.join(directory, name) for name in names):
            if not os.path.islink(each):
                with suppress(OSError):
                    os.chmod(each, 0o700)
    shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)


def _copy(source: Root, above: str) -> ScratchCopy:
    """Copy what belongs to a tree into a new private directory, in which the copy has the name of the root."""
    found = walk(source)
    if (size := sum(each.size for each in found.entries.values())) > limits.TREE_SPOOL_BYTES_MAX:
        raise InvalidArgument(
            f"{source.path!r} has {size:,} bytes, and a copy has at most {limits.TREE_SPOOL_BYTES_MAX:,}: have git "
            "ignore what is not yours, or take a part of the tree"
        )
    os.mkdir(above, 0o700)
    path, repositories = _repositories(source, found, above)
    os.makedirs(path, exist_ok=True)
    for entry, status in found.entries.items():
        target = os.path.join(path, entry)
        if stat.S_ISDIR(status.mode):
            os.makedirs(target, exist_ok=True)
            continue
        os.makedirs(os.path.join(path, parent_of(entry)), exist_ok=True)
        with suppress(FileNotFoundError), source.place(entry) as place:  # another program has just removed it
            _copy_entry(place, target)
    return ScratchCopy(path, repositories)


def _repositories(source: Root, found: WalkResult, above: str) -> tuple[str, dict[str, Repository]]:
    """Return the path of the copy, and the repositories that decide in it, by path in the tree.

    If the root is not the top of its repository, the copy is as deep below a directory that stands for the top, with
    the ignore rules of the directories between, because git reads these, too.
    """
    name = os.path.basename(os.path.realpath(source.path)) or "root"
    path, repositories = os.path.join(above, name), dict[str, Repository]()
    for at in sorted(found.repositories):
        with source.readable(at) as directory:
            repository = find_repository(directory)
        if repository is None:
            continue
        git_dir, prefix = repository
        if not at and prefix:
            top = os.path.join(above, "top")
            path = os.path.join(top, prefix.rstrip("/"))
            os.makedirs(path)
            _copy_rules_above(source, path, prefix.count("/"))
            repositories[at] = Repository(git_dir, top)
        else:
            repositories[at] = Repository(git_dir, os.path.join(path, at) if at else path)
    return path, repositories


def _copy_rules_above(source: Root, path: str, levels: int) -> None:
    """Copy the `.gitignore` of so many directories above the root to the directories above its copy."""
    for level in range(1, levels + 1):
        up = "/".join([".."] * level)
        with suppress(FileNotFoundError):
            directory = os.open(up, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=source.descriptor)
            try:
                _copy_entry(Place(directory, _IGNORE), os.path.normpath(os.path.join(path, up, _IGNORE)))
            finally:
                os.close(directory)


def _copy_entry(place: Place, target: str) -> None:
    """Copy a file with its permissions and times, or a symbolic link as it is."""
    status = os.lstat(place.name, dir_fd=place.directory)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(os.fsencode(place.name), dir_fd=place.directory), os.fsencode(target))
    elif stat.S_ISREG(status.st_mode):
        source = os.open(place.name, _READ, dir_fd=place.directory)
        try:
            with open(os.open(target, _NEW, 0o600), "wb", buffering=0) as copy:
                _copy_bytes(source, copy.fileno())
                os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
                os.fchmod(copy.fileno(), status.st_mode & PERMISSIONS)
        finally:
            os.close(source)


def _copy_bytes(source: int, target: int) -> None:
    """Copy a file's content; the kernel shares the blocks of both files where the file system can."""
    try:
        while os.copy_file_range(source, target, limits.TREE_PART_BYTES * limits.KIB):
            pass
    except OSError:  # the kernel cannot do it between these two file systems
        while part := os.read(source, limits.TREE_PART_BYTES):
            while part:
                part = part[os.write(target, part) :]
