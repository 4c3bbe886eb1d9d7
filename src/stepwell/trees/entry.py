"""The values that a tree is made of: `TreeEntry`, `Delta`, and the rules for paths.

A tree is a map from path to entry. An entry is a regular file, a symbolic link (its target is its content, and is never
followed) or an empty directory; directories with something in them are implied by the paths. An entry's mode is what
git would record, with all nine permission bits. Permissions of directories, owners and times are not part of a tree.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.domain.changesets.paths import path_problem
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import EscapesRoot, InvalidArgument

PERMISSIONS: Final = 0o777
DEFAULT_MODE: Final = stat.S_IFREG | 0o644
"""The mode of a new file for which none was recorded."""

STAGING_DIR: Final = ".stepwell"
"""The directory in a root in which transactions keep their logs and contents."""

RESERVED: Final = frozenset({".git", STAGING_DIR})
"""Names that are never part of a tree, at any depth: a plan that could write a git hook could run programs."""

EMPTY: Final = digest_of(b"")


class TreeEntry(Struct, frozen=True, array_like=True):
    """One file, symbolic link or empty directory, by the digest of its content; a link's content is its target.

    A mode of None stands for a regular file whose permissions were not recorded: it matches any permissions.
    """

    mode: int | None
    digest: bytes

    @property
    def kind(self) -> int:
        """The file type, as `stat.S_IFMT` gives it."""
        return stat.S_IFREG if self.mode is None else stat.S_IFMT(self.mode)

    @property
    def is_directory(self) -> bool:
        return self.kind == stat.S_IFDIR

    def is_matched_by(self, found: TreeEntry | None) -> bool:
        """Return True if the found entry has the same type, content and, where this one's is known, the same mode."""
        if found is None or found.kind != self.kind:
            return False
        if self.is_directory:
            return True
        is_same_mode = self.mode is None or self.mode == found.mode
        return is_same_mode and self.digest == found.digest

    def __str__(self) -> str:
        """The entry as a message shows it."""
        if self.is_directory:
            return "a directory"
        if self.kind == stat.S_IFLNK:
            return f"a symbolic link {self.digest.hex()[:12]}"
        mode = "" if self.mode is None else f" {stat.S_IMODE(self.mode):o}"
        return f"a file{mode} {self.digest.hex()[:12]}"


DIRECTORY: Final = TreeEntry(stat.S_IFDIR, EMPTY)


class Delta(Struct, frozen=True):
    """The change of one path. None means that there is no entry: nothing at all, or a directory with entries in it.

    Making one raises `EscapesRoot` for a path that does not stay below the root, and `InvalidArgument` for an entry
    that is neither a file nor a link nor a directory.
    """

    path: str
    before: TreeEntry | None
    after: TreeEntry | None

    def __post_init__(self) -> None:
        check_target(self.path)
        for entry in (self.before, self.after):
            if entry is not None and entry.kind not in {stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR}:
                shown = self.path[: limits.PATH_CHARS_SHOWN]
                raise InvalidArgument(f"path {shown!r}: a tree has files, symbolic links and directories only")

    @property
    def reverse(self) -> Delta:
        """The delta that takes this one back."""
        return Delta(self.path, self.after, self.before)


def normal_mode(mode: int) -> int:
    """Return the part of `st_mode` that an entry has: for a file its type and permissions, else the type only."""
    return mode & (stat.S_IFREG | PERMISSIONS) if stat.S_ISREG(mode) else stat.S_IFMT(mode)


def check_target(path: str) -> None:
    """Raise `EscapesRoot` unless the path is relative, normalised and free of reserved names.

    Unlike a path in a changeset, it may have bytes that are no text, because it comes from a directory on disk.
    """
    if problem := _problem(path):
        shown = path[: limits.PATH_CHARS_SHOWN]
        raise EscapesRoot(f"path {shown!r} {problem}: give it relative to the root, normalised")


def _problem(path: str) -> str | None:
    if problem := path_problem(path):
        return problem
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return "cannot be the name of a file"
    reserved = [part for part in path.split("/") if part.casefold() in RESERVED]
    return f"leads into {reserved[0]!r}, which is not part of a tree" if reserved else None


def parent_of(path: str) -> str:
    """Return the directory that a path is in; '' is the root."""
    return path.rpartition("/")[0]


def ancestors_of(path: str) -> list[str]:
    """Return the directories above a path, the nearest first, without the root."""
    found: list[str] = []
    while path := parent_of(path):
        found.append(path)
    return found


def depth_of(path: str) -> int:
    """Return how many directories below the root a path's directory is."""
    return path.count("/")
