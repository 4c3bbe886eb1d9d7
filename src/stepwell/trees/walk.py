"""A walk through a tree: every leaf, by what the kernel knows of it, without reading one.

Each repository below the root, the root's own or one inside it, says what it ignores; where there is none, names do. A
directory in which everything is ignored is no leaf, though something is in it: it is *veiled*. What can be no part of a
tree, as pipes and sockets, is passed over.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.errors import EscapesRoot, InvalidArgument
from stepwell.trees import ignore
from stepwell.trees.entry import normal_mode
from stepwell.trees.root import Root

_KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR})


class EntryStatus(Struct, frozen=True, gc=False):
    """A leaf as the kernel knows it. Who changes a file changes this, unless it happens within one tick of a clock."""

    mode: int
    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> EntryStatus:
        mode = normal_mode(status.st_mode)
        return cls(mode, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


class Walked(Struct, frozen=True):
    """What there is below a root."""

    leaves: dict[str, EntryStatus]
    ignored: set[str]  # whole directories by their own name
    veiled: set[str]


def walk(root: Root, also: Iterable[str] = ()) -> Walked:
    """Every leaf; also those that are named, though they may be ignored by now."""
    found = _Walk(root).run()
    for path in also:
        if path not in found.leaves and (status := _status(root, path)):
            found.leaves[path] = status
    return found


def _status(root: Root, path: str) -> EntryStatus | None:
    """Of a leaf that the walk did not come to; a directory would be there, or be none any more."""
    try:
        with root.place(path) as place:
            status = os.lstat(place.name, dir_fd=place.directory)
    except (FileNotFoundError, NotADirectoryError, EscapesRoot):
        return None
    return EntryStatus.of(status) if stat.S_IFMT(status.st_mode) in _KINDS - {stat.S_IFDIR} else None


class _Walk:
    def __init__(self, root: Root) -> None:
        self._root = root
        self._found = Walked({}, set(), set())
        self._governed: set[str] = set()  # directories, of which git says what it ignores in them

    def run(self) -> Walked:
        waiting = [""]
        while waiting:
            waiting += self._enter(waiting.pop())
        return self._found

    def _enter(self, path: str) -> list[str]:
        """Note what is in a directory; those in it that are to be entered."""
        with self._root.readable(path) as descriptor:
            with os.scandir(descriptor) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
                statuses = {entry.name: entry.stat(follow_symlinks=False) for entry in listed}
            self._ask_git(path, descriptor, {*statuses})
        if path and path not in self._governed and ignore.is_marked([*statuses]):
            self._found.ignored.add(path)
            return []
        prefix = f"{path}/" if path else ""
        taken = {
            prefix + name: status
            for name, status in statuses.items()
            if stat.S_IFMT(status.st_mode) in _KINDS and not self._is_ignored(path, prefix + name, name, status.st_mode)
        }
        directories = [each for each, status in taken.items() if stat.S_ISDIR(status.st_mode)]
        self._found.leaves.update(
            (each, EntryStatus.of(status)) for each, status in taken.items() if not stat.S_ISDIR(status.st_mode)
        )
        if path and not statuses:
            self._found.leaves[path] = EntryStatus(stat.S_IFDIR, 0, 0, 0, 0)
        elif path and not taken:
            self._found.veiled.add(path)
        if len(self._found.leaves) > limits.TREE_LEAVES_MAX:
            raise InvalidArgument(
                f"{self._root.path!r} has more than {limits.TREE_LEAVES_MAX} files: have git ignore what is not yours, "
                "or take a part of it"
            )
        if path in self._governed:
            self._governed.update(directories)
        return directories

    def _ask_git(self, path: str, descriptor: int, names: set[str]) -> None:
        if path and ".git" not in names:
            return
        ignored = ignore.ignored_by_git(descriptor)
        if ignored is not None:
            self._governed.add(path)
            self._found.ignored.update(f"{path}/{name}" if path else name for name in ignored)

    def _is_ignored(self, above: str, path: str, name: str, mode: int) -> bool:
        if ignore.is_reserved(name) or path in self._found.ignored:
            return True
        if above not in self._governed and ignore.is_made(name, is_directory=stat.S_ISDIR(mode)):
            self._found.ignored.add(path)
            return True
        return False
