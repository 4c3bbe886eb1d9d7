"""Paths and modes of the files in a tree: the checks that the manager and the code that walks trees share.

A path is relative to a root and has one spelling. An entry of a tree is a regular file; a symbolic link, whose content
is its target; or an empty directory, whose content is empty. A mode is the number that `stat` and git use. Only the
permissions of files are recorded, without set-user-id and similar bits, because applying a change must not grant them.
"""

from __future__ import annotations

import stat
from typing import Annotated, Final

from msgspec import Meta

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import InvalidArgument
from stepwell.text import plural


def path_problem(path: str) -> str | None:
    """Return the reason why a path is not valid, or None if it is.

    A valid path cannot leave its root and has only one spelling: not absolute, no `..`, no `.`, no empty part, no NUL.
    """
    if not path or len(path) > limits.PATH_CHARS_MAX:
        return f"has {plural(len(path), 'character')}, 1 to {limits.PATH_CHARS_MAX:,} are allowed"
    if path.startswith("/"):
        return "is absolute"
    if "\0" in path:
        return "contains a NUL character"
    parts = path.split("/")
    if ".." in parts:
        return "leaves its root by '..'"
    return "is not normalised" if "." in parts or "" in parts else None


PERMISSIONS: Final = 0o777
"""The bits of a mode that are permissions."""
REGULAR: Final = stat.S_IFREG | 0o644
"""A file that its owner may read and write and others may read: the mode of a file whose mode is not known."""
EXECUTABLE: Final = stat.S_IFREG | 0o755
"""Like `REGULAR`, and executable."""
LINK: Final = stat.S_IFLNK
"""A symbolic link. It has no permissions of its own."""
DIRECTORY: Final = stat.S_IFDIR
"""An empty directory. It is recorded without permissions."""

EMPTY_DIGEST: Final = digest_of(b"")
"""The digest of an empty content, which is the content of an empty directory."""

Mode = Annotated[
    int,
    Meta(
        ge=0,
        le=0o177777,
        description="a mode is 0o100000 with permissions, 0o120000 for a link or 0o040000 for a directory",
    ),
]
"""A file mode as a number. `check_mode` checks which numbers are allowed."""


def check_mode(mode: int | None, digest: bytes | None, what: str) -> None:
    """Raise `InvalidArgument` if no entry of a tree with this content can have the mode. None means "not known"."""
    if mode is None:
        return
    if digest is None:
        raise InvalidArgument(f"{what}_mode is given, but {what} is absent: give both or neither")
    if not (mode in {LINK, DIRECTORY} or mode & ~PERMISSIONS == stat.S_IFREG):
        raise InvalidArgument(
            f"{what}_mode is {mode:#o}: give 0o100000 with permissions (stat.S_IFREG | 0o644), "
            "0o120000 for a link or 0o040000 for an empty directory"
        )
    if mode == DIRECTORY and digest != EMPTY_DIGEST:
        raise InvalidArgument(f"{what} is a directory by its mode, and has content: a directory's is b''")


def git_mode(mode: int | None) -> int:
    """Return the mode that git stores: of a file's permissions it keeps only whether the owner may execute it."""
    if mode is None:
        return REGULAR
    if stat.S_ISREG(mode):
        return EXECUTABLE if mode & stat.S_IXUSR else REGULAR
    return mode
