"""Walk through a tree and return the status of every entry, without reading a content.

Each git repository below the root, the root's own or one inside it, decides what is ignored in it. Outside of
repositories, names of generated files decide (see `ignore`). Pipes, sockets and devices are passed over, because they
cannot be part of a tree. A directory whose whole content is ignored is not an empty directory, and so no entry; it is
listed as *fully ignored* instead, so that a capture can tell it from one that was removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import EscapesRoot, InvalidArgument
from stepwell.trees import ignore
from stepwell.trees.entry import normal_mode
from stepwell.trees.root import Root

_KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR})


class EntryStatus(Struct, frozen=True, gc=False):
    """The status of an entry, as the kernel gives it.

    A program that changes a file changes this, too, unless both happen within one tick of the file system's clock.
    """

    mode: int
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> EntryStatus:
        """Return the part of a `stat` result that is compared."""
        mode = normal_mode(status.st_mode)
        return cls(mode, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


class WalkResult(Struct, frozen=True):
    """The outcome of a walk, by path.

    `ignored` has whole directories by their own path, not what is in them. `fully_ignored` are directories that exist
    and have ignored content only. `repositories` are the directories at which the rules of a git repository begin.
    """

    entries: dict[str, EntryStatus]
    ignored: set[str]
    fully_ignored: set[str]
    repositories: set[str]


def walk(
    root: Root, also: Iterable[str] = (), repositories: Mapping[str, ignore.Repository] | None = None
) -> WalkResult:
    """Return every entry below a root that is not ignored, and those of the paths `also`, even if they are ignored.

    `repositories`, by path, are those whose rules hold in a copy of a tree; by default git finds them. Raises
    `InvalidArgument` if there are more than `limits.TREE_ENTRIES_MAX`.
    """
    found = _TreeWalk(root, repositories).run()
    for path in also:
        if path not in found.entries and (status := _status(root, path)):
            found.entries[path] = status
    return found


def _status(root: Root, path: str) -> EntryStatus | None:
    """Return the status of a file or link that the walk did not list; None if there is none.

    Empty directories need no second look: the walk lists them unless they are ignored or gone.
    """
    try:
        with root.place(path) as place:
            status = os.lstat(place.name, dir_fd=place.directory)
    except (FileNotFoundError, NotADirectoryError, EscapesRoot):
        return None
    return EntryStatus.of(status) if stat.S_IFMT(status.st_mode) in _KINDS - {stat.S_IFDIR} else None


class _TreeWalk:
    """The state of one walk. It uses a list of directories instead of recursion, because a tree may be deep."""

    def __init__(self, root: Root, repositories: Mapping[str, ignore.Repository] | None) -> None:
        self._root = root
        self._repositories = repositories
        self._found = WalkResult({}, set(), set(), set())
        self._git_directories: set[str] = set()  # directories in a repository, where git's rules apply

    def run(self) -> WalkResult:
        pending = [""]
        while pending:
            pending += self._visit(pending.pop())
        return self._found

    def _visit(self, path: str) -> list[str]:
        """Note the entries of a directory, and return its subdirectories that are not ignored."""
        with self._root.readable(path) as descriptor:
            with os.scandir(descriptor) as scanned:
                listed = sorted(scanned, key=lambda entry: entry.name)
                statuses = {entry.name: entry.stat(follow_symlinks=False) for entry in listed}
            self._ask_git(path, descriptor, {*statuses})
        if path and path not in self._git_directories and ignore.is_marked_generated([*statuses]):
            self._found.ignored.add(path)
            return []
        prefix = f"{path}/" if path else ""
        accepted = {
            prefix + name: status
            for name, status in statuses.items()
            if stat.S_IFMT(status.st_mode) in _KINDS and not self._is_ignored(path, prefix + name, name, status.st_mode)
        }
        directories = [each for each, status in accepted.items() if stat.S_ISDIR(status.st_mode)]
        self._found.entries.update(
            (each, EntryStatus.of(status)) for each, status in accepted.items() if not stat.S_ISDIR(status.st_mode)
        )
        if path and not statuses:
            self._found.entries[path] = EntryStatus(stat.S_IFDIR, 0, 0, 0, 0)
        elif path and not accepted:
            self._found.fully_ignored.add(path)
        if len(self._found.entries) > limits.TREE_ENTRIES_MAX:
            raise InvalidArgument(
                f"{self._root.path!r} has more than {limits.TREE_ENTRIES_MAX} files: have git ignore what is not "
                "yours, or take a part of it"
            )
        if path in self._git_directories:
            self._git_directories.update(directories)
        return directories

    def _ask_git(self, path: str, descriptor: int, names: set[str]) -> None:
        """At the root and at each repository, add what git ignores below it. The root may lie inside a repository."""
        repository = self._repositories.get(path) if self._repositories is not None else None
        is_asked = (not path or ".git" in names) if self._repositories is None else repository is not None
        ignored = ignore.ignored_by_git(descriptor, repository) if is_asked else None
        if ignored is not None:
            prefix = f"{path}/" if path else ""
            # In a copy, git does not recognise the repositories below this one, which have rules of their own.
            below = {each for each in self._repositories or () if each != path and each.startswith(prefix)}
            self._git_directories.add(path)
            self._found.repositories.add(path)
            self._found.ignored.update(prefix + name for name in ignored if not ignore.is_within(prefix + name, below))

    def _is_ignored(self, above: str, path: str, name: str, mode: int) -> bool:
        """Return True if a path is reserved or ignored; a generated file outside of git is noted as ignored."""
        if ignore.is_reserved(name) or path in self._found.ignored:
            return True
        if above not in self._git_directories and ignore.is_generated(name, is_directory=stat.S_ISDIR(mode)):
            self._found.ignored.add(path)
            return True
        return False
