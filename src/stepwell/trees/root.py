"""A root, and the way down from it: through open directories, one component at a time, never through a link.

The root is opened once. What somebody makes of its path afterwards, or of a component on the way, leads nowhere else:
each step down is a call that refuses a symbolic link, and everything is done in the directory that it opened.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import EscapesRoot, InvalidArgument
from stepwell.trees.entry import DIRECTORY, TreeEntry, normal_mode, parent_of
from stepwell.trees.syscalls import Place

_DOWN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Signature(Struct, frozen=True):
    """By which a file is known again without being read. Its change time is not: a second name changes that."""

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class FoundEntry(Struct, frozen=True):
    """What is at a path. Neither leaf nor `is_other`: nothing."""

    leaf: TreeEntry | None = None
    is_bare: bool = False  # a directory with nothing in it
    is_other: bool = False  # a pipe, a socket or a device: nothing that a tree has
    signature: Signature | None = None
    owner: tuple[int, int] | None = None

    @property
    def is_directory(self) -> bool:
        return self.leaf is not None and self.leaf.is_directory

    def __str__(self) -> str:
        return "something else" if self.is_other else str(self.leaf) if self.leaf else "nothing"


class Root:
    """An open directory, below which paths are found."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self.descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidArgument(f"the root {self.path!r} cannot be opened: {reason}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    @contextmanager
    def directory(self, path: str) -> Generator[int]:
        """A directory below the root, opened for going on from there; '' is the root."""
        descriptor = os.dup(self.descriptor)
        try:
            walked: list[str] = []
            for part in path.split("/") if path else ():
                walked.append(part)
                below = _step_down(descriptor, part, "/".join(walked))
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def readable(self, path: str) -> Generator[int]:
        """A directory below the root, opened to be listed, synced or given another mode."""
        with self.directory(path) as descriptor:
            opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        try:
            yield opened
        finally:
            os.close(opened)

    @contextmanager
    def place(self, path: str) -> Generator[Place]:
        """Where a path is: the directory, opened, and the name in it."""
        with self.directory(parent_of(path)) as descriptor:
            yield Place(descriptor, path.rpartition("/")[2])

    def names(self, path: str) -> list[str]:
        """What is in a directory."""
        with self.readable(path) as descriptor:
            return os.listdir(descriptor)

    def look(self, path: str) -> FoundEntry:
        """What is at a path, its content read. Behind a file there is nothing; behind a link is not looked."""
        try:
            with self.place(path) as place:
                return look_at(place)
        except (FileNotFoundError, NotADirectoryError):
            return FoundEntry()

    def kind(self, path: str) -> int:
        """The type of what is at a path, as in `stat.S_IFMT`; 0 for nothing."""
        try:
            with self.place(path) as place:
                return stat.S_IFMT(os.lstat(place.name, dir_fd=place.directory).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return 0


def _step_down(descriptor: int, part: str, path: str) -> int:
    try:
        return os.open(part, _DOWN, dir_fd=descriptor)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(part, dir_fd=descriptor).st_mode):
            raise EscapesRoot(
                f"{path[:200]!r} is a symbolic link, and what is behind it is not in the tree: "
                "name the path where it really is"
            ) from None
        raise


def look_at(place: Place) -> FoundEntry:
    """What has a name; `FileNotFoundError` if nothing has."""
    status = os.lstat(place.name, dir_fd=place.directory)
    owner = status.st_uid, status.st_gid
    if stat.S_ISDIR(status.st_mode):
        return FoundEntry(DIRECTORY, is_bare=not _names(place))
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(os.fsencode(place.name), dir_fd=place.directory)
        return FoundEntry(TreeEntry(stat.S_IFLNK, digest_of(target)), signature=Signature.of(status), owner=owner)
    if not stat.S_ISREG(status.st_mode):
        return FoundEntry(is_other=True)
    digest, status = _hashed(place)
    return FoundEntry(TreeEntry(normal_mode(status.st_mode), digest), signature=Signature.of(status), owner=owner)


def _names(place: Place) -> list[str]:
    descriptor = os.open(place.name, _READ | os.O_DIRECTORY, dir_fd=place.directory)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _hashed(place: Place) -> tuple[bytes, os.stat_result]:
    descriptor = os.open(place.name, _READ, dir_fd=place.directory)
    try:
        before = os.fstat(descriptor)
        hashed = hashlib.sha256()
        while part := os.read(descriptor, limits.TREE_PART_BYTES):
            hashed.update(part)
        return hashed.digest(), before
    finally:
        os.close(descriptor)


def signature_at(place: Place) -> Signature | None:
    """By which what has a name is known again; None if nothing has it."""
    try:
        return Signature.of(os.lstat(place.name, dir_fd=place.directory))
    except FileNotFoundError:
        return None
