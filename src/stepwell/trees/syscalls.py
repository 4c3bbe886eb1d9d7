"""System calls that change a tree, each preceded by a call of the hook `on_step`.

No other module of this package calls the kernel to change something. Tests set `on_step` to count the steps, to kill
the process before one of them, or to let one fail; so they can check what survives a crash at every point, and in which
order things reach the disk.

Each function takes a `Place`, an open directory and a name in it, so that no step resolves a path: a directory that is
renamed or replaced by a link meanwhile cannot redirect a change.

The module also turns the kernel's refusals into `TreeFailed`, with advice for the usual ones.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from stepwell import limits
from stepwell.errors import TreeFailed

UNLINKABLE: Final = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of `link` which mean that this file cannot have a second name here, though it can still be renamed."""


class Place(NamedTuple):
    """A name in an open directory. The descriptor belongs to the caller, who keeps it open while the place is used."""

    directory: int
    name: str


def _no_hook(_step: str, _what: str) -> None:
    pass


on_step: Callable[[str, str], None] = _no_hook
"""Called before each step, with the step's kind ("rename", "sync", …) and the name it is done to. Only tests set it."""


def write(place: Place, body: bytes | memoryview, mode: int, owner: tuple[int, int] | None = None) -> None:
    """Create a file with its content, mode and owner; it is on the disk when this returns.

    Raises `FileExistsError` if the name is taken. The file is readable by its owner alone until its mode is set.
    """
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
            # Only the superuser may give a file away. Otherwise the file becomes the caller's, as with any editor.
            with suppress(PermissionError):
                os.fchown(descriptor, *owner)
        on_step("chmod", place.name)
        os.fchmod(descriptor, mode)
        on_step("sync", place.name)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def symlink(target: bytes, place: Place) -> None:
    """Create a symbolic link. It has no content of its own to sync: syncing its directory is enough."""
    on_step("symlink", place.name)
    os.symlink(target, os.fsencode(place.name), dir_fd=place.directory)


def link(source: Place, target: Place) -> None:
    """Give a file or symbolic link a second name. Unlike `rename`, it never replaces an existing target."""
    on_step("link", target.name)
    os.link(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory, follow_symlinks=False)


def rename(source: Place, target: Place) -> None:
    """Move a name atomically; an existing file at the target is replaced."""
    on_step("rename", target.name)
    os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)


def unlink(place: Place) -> None:
    """Remove the name of a file or link."""
    on_step("unlink", place.name)
    os.unlink(place.name, dir_fd=place.directory)


def mkdir(place: Place, mode: int = 0o777) -> None:
    """Create a directory, with the mode as far as the process's umask allows."""
    on_step("mkdir", place.name)
    os.mkdir(place.name, mode, dir_fd=place.directory)


def rmdir(place: Place) -> None:
    """Remove a directory; the kernel refuses if something is in it."""
    on_step("rmdir", place.name)
    os.rmdir(place.name, dir_fd=place.directory)


def chmod(descriptor: int, mode: int, what: str) -> None:
    """Set the mode of an open directory.

    The descriptor may be an `O_PATH` one, which `fchmod` refuses; its entry in `/proc` accepts the change.
    """
    on_step("chmod", what)
    os.chmod(f"/proc/self/fd/{descriptor}", mode)


def sync(descriptor: int, what: str) -> None:
    """Write an open directory to the disk, so that the names in it survive a loss of power."""
    on_step("sync", what)
    os.fsync(descriptor)


@contextmanager
def wrap_os_errors(failure: str) -> Generator[None]:
    """Raise `TreeFailed` for an `OSError` of the block, beginning with `failure`."""
    try:
        yield
    except OSError as error:
        raise TreeFailed(f"{failure}: {describe_os_error(error)}", errno=error.errno or 0) from error


_ADVICE: Final = {
    errno.ENOSPC: "make room on the disk, and try again",
    errno.EDQUOT: "make room in the quota, and try again",
    errno.EACCES: "it takes an owner's permissions",
    errno.EPERM: "it takes an owner's permissions",
    errno.EROFS: "the file system is mounted read-only",
    errno.EXDEV: "a mounted file system is a root of its own: change it by itself",
}


def describe_os_error(error: OSError) -> str:
    """Return the kernel's message in lower case, with the file's name and, for usual errors, advice."""
    name = f" ({os.fsdecode(error.filename)!r})" if isinstance(error.filename, str | bytes) else ""
    advice = _ADVICE.get(error.errno or 0)
    return f"{(error.strerror or str(error)).lower()}{name}" + (f": {advice}" if advice else "")
