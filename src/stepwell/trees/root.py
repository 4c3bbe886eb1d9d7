"""An open root directory, and access to the paths below it without following symbolic links.

The root is opened once, by path. After that every directory is opened relative to its parent's descriptor, one
component at a time, by a call that refuses a symbolic link. A component that is no name, such as `..`, is refused. If
another program replaces the root's path, or a directory on the way, by a link meanwhile, all work still happens in the
directories that were opened, and never outside the tree.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import EscapesRoot, InvalidArgument
from stepwell.trees.entry import DIRECTORY, TreeEntry, normal_mode, parent_of
from stepwell.trees.syscalls import Place

_NO_NAMES: Final = frozenset({"", ".", ".."})
_DOWN = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Signature(Struct, frozen=True):
    """The status by which a file is recognised again without reading it.

    The change time (ctime) is not part of it, because giving the file a second name changes that time.
    """

    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        """Return the signature of a file with that status."""
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class FoundEntry(Struct, frozen=True):
    """The thing that was found at a path. With neither `entry` nor `is_other`, nothing is there."""

    entry: TreeEntry | None = None
    is_empty_directory: bool = False  # a directory with nothing in it
    is_other: bool = False  # a pipe, a socket or a device: nothing that a tree has
    signature: Signature | None = None
    owner: tuple[int, int] | None = None

    @property
    def is_directory(self) -> bool:
        return self.entry is not None and self.entry.is_directory

    def __str__(self) -> str:
        """The finding as a message shows it."""
        return "something else" if self.is_other else str(self.entry) if self.entry else "nothing"


class Root:
    """An open root directory; a context manager that closes it.

    It owns one descriptor and keeps no other state, so several threads may read through it. Methods take paths relative
    to the root and raise `EscapesRoot` if a symbolic link is on the way or a component is no name. Making one raises
    `InvalidArgument` if the path cannot be opened as a directory.
    """

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
        """Open a directory below the root for the block, as a base for further calls; '' is the root.

        The descriptor is an `O_PATH` one, which needs no read permission.
        """
        parts = _names_of(path) if path else []
        descriptor = os.dup(self.descriptor)
        try:
            walked: list[str] = []
            for part in parts:
                walked.append(part)
                below = _step_down(descriptor, part, "/".join(walked))
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def readable(self, path: str) -> Generator[int]:
        """Open a directory below the root for the block, to list it, sync it or set its mode."""
        with self.directory(path) as descriptor:
            opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
        try:
            yield opened
        finally:
            os.close(opened)

    @contextmanager
    def place(self, path: str) -> Generator[Place]:
        """Open the directory that a path is in for the block, and give it with the path's last component."""
        name = _names_of(path)[-1]
        with self.directory(parent_of(path)) as descriptor:
            yield Place(descriptor, name)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory."""
        with self.readable(path) as descriptor:
            return os.listdir(descriptor)

    def inspect(self, path: str) -> FoundEntry:
        """Return what is at a path, with the digest of its content. Below a file there is nothing."""
        try:
            with self.place(path) as place:
                return inspect_place(place)
        except (FileNotFoundError, NotADirectoryError):
            return FoundEntry()

    def kind(self, path: str) -> int:
        """Return the file type at a path, as `stat.S_IFMT` gives it; 0 for nothing."""
        try:
            with self.place(path) as place:
                return stat.S_IFMT(os.lstat(place.name, dir_fd=place.directory).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return 0


def _names_of(path: str) -> list[str]:
    """Return the components of a path; `EscapesRoot` if one is no name, so that no step leads upwards or to `/`."""
    parts = path.split("/")
    if not _NO_NAMES.isdisjoint(parts) or "\0" in path:
        raise EscapesRoot(f"path {path[: limits.PATH_CHARS_SHOWN]!r} is not relative to the root and normalised")
    return parts


def _step_down(descriptor: int, part: str, path: str) -> int:
    """Open one component. The kernel says "not a directory" for a link, too; then it is an `EscapesRoot`."""
    try:
        return os.open(part, _DOWN, dir_fd=descriptor)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(part, dir_fd=descriptor).st_mode):
            shown = path[: limits.PATH_CHARS_SHOWN]
            raise EscapesRoot(
                f"{shown!r} is a symbolic link, and what is behind it is not in the tree: "
                "name the path where it really is"
            ) from None
        raise


def inspect_place(place: Place) -> FoundEntry:
    """Return what has a name in an open directory; raise `FileNotFoundError` if nothing has."""
    status = os.lstat(place.name, dir_fd=place.directory)
    owner = status.st_uid, status.st_gid
    if stat.S_ISDIR(status.st_mode):
        return FoundEntry(DIRECTORY, is_empty_directory=not _names(place))
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
    """Return a file's digest and its status from before reading.

    If the file is written to while it is read, its later status differs from this one, so the change is noticed.
    """
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
    """Return the signature of the file with a name; None if there is none."""
    try:
        return Signature.of(os.lstat(place.name, dir_fd=place.directory))
    except FileNotFoundError:
        return None
