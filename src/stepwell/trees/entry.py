"""What a tree is made of. A tree is a map from path to leaf; directories with something in them are implied by it.

A leaf is a regular file, a symbolic link, whose target is its content and is never followed, or a directory with
nothing in it. Its mode is what git would say, with all nine permission bits; those of directories, owners and times are
not part of a tree.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from msgspec import Struct

from stepwell.domain.changesets.paths import path_problem
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import EscapesRoot, InvalidArgument

PERMISSIONS: Final = 0o777
DEFAULT_MODE: Final = stat.S_IFREG | 0o644
"""Of a new file, where nobody knows better."""

AREA: Final = ".stepwell"
"""Where transactions keep what they need, in the root."""

RESERVED: Final = frozenset({".git", AREA})
"""Never part of a tree, at any depth: a hook that somebody could place there would run."""

EMPTY: Final = digest_of(b"")


class TreeEntry(Struct, frozen=True, array_like=True):
    """One file, link or empty directory, by content. A mode of None is that of any regular file."""

    mode: int | None
    digest: bytes

    @property
    def kind(self) -> int:
        """As in `stat.S_IFMT`."""
        return stat.S_IFREG if self.mode is None else stat.S_IFMT(self.mode)

    @property
    def is_directory(self) -> bool:
        return self.kind == stat.S_IFDIR

    def is_met_by(self, found: TreeEntry | None) -> bool:
        """Whether what was found is this, as far as this says what it is."""
        if found is None or found.kind != self.kind:
            return False
        if self.is_directory:
            return True
        is_same_mode = self.mode is None or self.mode == found.mode
        return is_same_mode and self.digest == found.digest

    def __str__(self) -> str:
        if self.is_directory:
            return "a directory"
        if self.kind == stat.S_IFLNK:
            return f"a symbolic link {self.digest.hex()[:12]}"
        mode = "" if self.mode is None else f" {stat.S_IMODE(self.mode):o}"
        return f"a file{mode} {self.digest.hex()[:12]}"


DIRECTORY: Final = TreeEntry(stat.S_IFDIR, EMPTY)


class Delta(Struct, frozen=True):
    """What becomes of one path. None means that there is no leaf: nothing at all, or a directory with others in it."""

    path: str
    before: TreeEntry | None
    after: TreeEntry | None

    def __post_init__(self) -> None:
        check_target(self.path)
        for leaf in (self.before, self.after):
            if leaf is not None and leaf.kind not in {stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR}:
                raise InvalidArgument(f"path {self.path[:200]!r}: a leaf is a file, a symbolic link or a directory")

    @property
    def reverse(self) -> Delta:
        """What takes it back."""
        return Delta(self.path, self.after, self.before)


def normal_mode(mode: int) -> int:
    """The part of `st_mode` that a leaf has."""
    return mode & (stat.S_IFREG | PERMISSIONS) if stat.S_ISREG(mode) else stat.S_IFMT(mode)


def check_target(path: str) -> None:
    """Refuse what is no path below a root, or is nobody's business. Unlike a recorded path, it may be any bytes."""
    if problem := _problem(path):
        raise EscapesRoot(f"path {path[:200]!r} {problem}: give it relative to the root, normalised")


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
    """The directory that a path is in; '' is the root."""
    return path.rpartition("/")[0]


def ancestors_of(path: str) -> list[str]:
    """The directories above a path, the nearest first, without the root."""
    found: list[str] = []
    while path := parent_of(path):
        found.append(path)
    return found


def depth_of(path: str) -> int:
    return path.count("/")
