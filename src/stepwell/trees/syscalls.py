"""Every deed by which a tree is changed, each behind one seam.

Whoever wants to know what survives a death at a given point, or in which order things are written, sets `on_step`: it
is called before each deed, with its name and what it is done to. Nothing else in this package calls the kernel to
change something.

A `Place` is an open directory and a name in it, so that no deed ever resolves a path.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from stepwell import limits

UNLINKABLE: Final = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP})
"""How a file system says that this file cannot have a second name, though it may be moved."""


class Place(NamedTuple):
    """A name in an open directory."""

    directory: int
    name: str


def _nothing(_deed: str, _what: str) -> None:
    pass


on_step: Callable[[str, str], None] = _nothing


def write(place: Place, body: bytes | memoryview, mode: int, owner: tuple[int, int] | None = None) -> None:
    """A new file, with its mode, on the disk when this returns."""
    on_step("create", place.name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(place.name, flags, 0o600, dir_fd=place.directory)
    try:
        rest = memoryview(body).cast("B") if len(body) else memoryview(b"")
        while rest:
            on_step("write", place.name)
            rest = rest[os.write(descriptor, rest[: limits.TREE_PART_BYTES]) :]
        if owner is not None:
            on_step("chown", place.name)
            with suppress(PermissionError):  # then it is ours from now on, as with any editor
                os.fchown(descriptor, *owner)
        on_step("chmod", place.name)
        os.fchmod(descriptor, mode)
        on_step("sync", place.name)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def symlink(target: bytes, place: Place) -> None:
    on_step("symlink", place.name)
    os.symlink(target, os.fsencode(place.name), dir_fd=place.directory)


def link(source: Place, target: Place) -> None:
    """A second name for a file or a symbolic link; never over another."""
    on_step("link", target.name)
    os.link(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory, follow_symlinks=False)


def rename(source: Place, target: Place) -> None:
    on_step("rename", target.name)
    os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)


def unlink(place: Place) -> None:
    on_step("unlink", place.name)
    os.unlink(place.name, dir_fd=place.directory)


def mkdir(place: Place, mode: int = 0o777) -> None:
    on_step("mkdir", place.name)
    os.mkdir(place.name, mode, dir_fd=place.directory)


def rmdir(place: Place) -> None:
    on_step("rmdir", place.name)
    os.rmdir(place.name, dir_fd=place.directory)


def chmod(descriptor: int, mode: int, what: str) -> None:
    """Of an open directory, though it was opened for going through only: `/proc` has what is behind it."""
    on_step("chmod", what)
    os.chmod(f"/proc/self/fd/{descriptor}", mode)


def sync(descriptor: int, what: str) -> None:
    """Of an open directory: the names in it are there after a loss of power."""
    on_step("sync", what)
    os.fsync(descriptor)
