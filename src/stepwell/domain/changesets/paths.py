"""Paths inside a tree: relative and normalised, wherever they come from."""

from __future__ import annotations

import stat
from typing import Annotated, Final

from msgspec import Meta

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import InvalidArgument


def path_problem(path: str) -> str | None:
    """Why a path is none that leads to somewhere below a root, and in one spelling only; None if it is."""
    if not path or len(path) > limits.PATH_CHARS_MAX:
        return f"has {len(path)} characters, 1 to {limits.PATH_CHARS_MAX} are allowed"
    if path.startswith("/"):
        return "is absolute"
    if "\0" in path:
        return "contains a NUL character"
    parts = path.split("/")
    if ".." in parts:
        return "leaves its root by '..'"
    return "is not normalised" if "." in parts or "" in parts else None


PERMISSIONS: Final = 0o777
REGULAR: Final = stat.S_IFREG | 0o644
EXECUTABLE: Final = stat.S_IFREG | 0o755
LINK: Final = stat.S_IFLNK
DIRECTORY: Final = stat.S_IFDIR

EMPTY_DIGEST: Final = digest_of(b"")
"""What is in an empty directory."""

Mode = Annotated[
    int,
    Meta(
        ge=0,
        le=0o177777,
        description="a mode is 0o100000 with permissions, 0o120000 for a link or 0o040000 for a directory",
    ),
]


def check_mode(mode: int | None, digest: bytes | None, what: str) -> None:
    """Refuse a mode that no leaf with this content has. None: not known."""
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
    """The mode that git would keep: of a file's permissions, only whether its owner may execute it."""
    if mode is None:
        return REGULAR
    if stat.S_ISREG(mode):
        return EXECUTABLE if mode & stat.S_IXUSR else REGULAR
    return mode
