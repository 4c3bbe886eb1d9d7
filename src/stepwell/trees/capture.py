"""Capture the changes in a tree while other programs work in it: by content, not by what the programs report.

`TreeCapture` copies all contents to a spool file when it is entered, because an old content cannot be read any more
after a change. It does not hash them. At the end it compares every file's status with the saved one; only files whose
status differs are read and hashed. A file that was modified so shortly before saving that another change might fall
into the same clock tick is always compared by content.

The ignore rules are those from the beginning, too: a file does not count as created because git stopped ignoring it,
nor as deleted because git began to ignore it.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import EscapesRoot, NotFound, TreeFailed
from stepwell.text import plural
from stepwell.trees.entry import DIRECTORY, EMPTY, TreeEntry
from stepwell.trees.ignore import Repository, is_within
from stepwell.trees.root import Root
from stepwell.trees.spool import Spool, SpoolRef
from stepwell.trees.syscalls import wrap_os_errors
from stepwell.trees.walk import EntryStatus, WalkResult, walk


class TreeDifference(Struct, frozen=True):
    """One path that changed. In a move, `before` is what was at `source_path`, which does not exist any more."""

    path: str
    before: TreeEntry | None
    after: TreeEntry | None
    source_path: str | None = None


class SavedEntry(Struct, frozen=True):
    """An entry with its saved content: a place in the spool, or the bytes themselves for a link or a directory.

    `content` is None if the file is too large, cannot be read, or changed during every attempt to read it. `is_stable`
    is False if the file is so young that a later change might leave its times as they are.
    """

    status: EntryStatus
    content: SpoolRef | bytes | None
    is_stable: bool = True

    def is_same(self, status: EntryStatus) -> bool:
        """Return True if a file with this status certainly has the saved content."""
        return self.is_stable and self.status == status


class TreeCapture:
    """A context manager that saves a tree when it is entered; `differences` returns what changed since.

    It owns the open root and the spool, and belongs to one thread. It takes no lock: other programs are meant to work
    in the tree meanwhile. `repositories` are those of the tree of which this one is a copy, as in `walk`. Entering
    raises `InvalidArgument` if the tree is too large, before any work is done in it, and `TreeFailed` if the file
    system refuses.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        bytes_max: int = limits.TREE_SPOOL_BYTES_MAX,
        repositories: Mapping[str, Repository] | None = None,
    ) -> None:
        self._path = root
        self._repositories = repositories
        self._bytes_max = bytes_max
        self._stack = ExitStack()
        self._bodies: dict[bytes, SpoolRef | bytes] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack, wrap_os_errors(f"{os.fspath(self._path)!r} cannot be recorded"):
            self._root = stack.enter_context(Root(self._path))
            self._spool = stack.enter_context(Spool(self._bytes_max))
            self._walked = walk(self._root, repositories=self._repositories)
            self._before = {path: self._save(path, status) for path, status in self._walked.entries.items()}
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def differences(self) -> tuple[TreeDifference, ...]:
        """Return what changed since entering, in order of path, with moves detected; may be called repeatedly.

        Afterwards `body` returns every content of the differences. Raises `TreeFailed` naming every changed file whose
        content cannot be had.
        """
        with wrap_os_errors(f"{self._root.path!r} cannot be recorded"):
            now = walk(self._root, also=self._before, repositories=self._repositories)
            changed: list[TreeDifference] = []
            unknown: list[str] = []
            for path in sorted(self._before.keys() | now.entries.keys()):
                try:
                    difference = self._difference(path, now)
                except _ContentUnavailable:
                    unknown.append(path)
                else:
                    changed += [difference] if difference else []
        if unknown:
            shown = ", ".join(map(repr, unknown[: limits.TREE_NAMED_MAX]))
            raise TreeFailed(
                f"{plural(len(unknown), 'file')} changed, and nothing was recorded, because a file cannot be read, "
                f"has more than {limits.BODY_BYTES_MAX:,} bytes, or changes all the time: have git ignore, or move, "
                f"{shown}",
                paths=unknown,
            )
        return tuple(pair_moves(changed))

    def body(self, digest: bytes) -> bytes:
        """Return the content of one side of a difference; `NotFound` for any other digest."""
        if digest == EMPTY:
            return b""
        try:
            content = self._bodies[digest]
        except KeyError:
            raise NotFound("no difference that was found has a content with that digest") from None
        return content if isinstance(content, bytes) else self._spool.body(content)

    def _difference(self, path: str, now: WalkResult) -> TreeDifference | None:
        """Compare one path, cheaply by status where that is enough."""
        saved, status = self._before.get(path), now.entries.get(path)
        if saved and status and saved.is_same(status):
            return None
        if saved is None and (is_within(path, self._walked.ignored) or path in self._walked.fully_ignored):
            return None  # it was ignored at the beginning, so it may have existed without being saved
        if status is None and path in now.fully_ignored:
            return None  # still a directory, and everything in it is ignored now
        before = self._entry(saved)
        after = self._entry(self._save(path, status)) if status else None
        return None if before == after else TreeDifference(path, before, after)

    def _entry(self, saved: SavedEntry | None) -> TreeEntry | None:
        """Return a saved entry with its digest, and note the digest so that `body` finds the content."""
        if saved is None:
            return None
        if stat.S_ISDIR(saved.status.mode):
            return DIRECTORY
        if saved.content is None:
            raise _ContentUnavailable
        digest = digest_of(saved.content) if isinstance(saved.content, bytes) else self._spool.digest(saved.content)
        self._bodies.setdefault(digest, saved.content)
        return TreeEntry(saved.status.mode, digest)

    def _save(self, path: str, status: EntryStatus) -> SavedEntry:
        """Save an entry's content; a file that vanishes or cannot be read meanwhile is saved without content."""
        if stat.S_ISDIR(status.mode):
            return SavedEntry(status, b"")
        try:
            with self._root.place(path) as place:
                if stat.S_ISLNK(status.mode):
                    return SavedEntry(status, os.readlink(os.fsencode(place.name), dir_fd=place.directory))
                added = self._spool.add(place)
        except (FileNotFoundError, NotADirectoryError, PermissionError, EscapesRoot):
            return SavedEntry(status, None)
        if added is None:
            return SavedEntry(status, None)
        ref, seen = added
        return SavedEntry(seen, ref, is_stable=seen.ctime_ns < time.time_ns() - limits.INGEST_SETTLED_NS)


class _ContentUnavailable(Exception):
    """Raised for a changed file whose content could not be saved; `differences` collects the paths."""


def pair_moves(differences: Iterable[TreeDifference]) -> list[TreeDifference]:
    """Return the differences with each deletion and matching creation joined into one move, in order of path.

    They match if content and mode are the same and the content is not empty. Of several candidates, paths with the same
    file name are paired first, then the first in order of path; so the result does not depend on the given order.
    """
    listed = sorted(differences, key=lambda each: each.path)
    deleted = [each for each in listed if each.before and not each.after and each.before.digest != EMPTY]
    created = [each for each in listed if each.after and not each.before]
    sources = _paired(deleted, created, lambda each: each.path.rpartition("/")[2])
    taken = {*sources.values()}
    sources |= _paired(
        [each for each in deleted if each.path not in taken],
        [each for each in created if each.path not in sources],
        lambda _: "",
    )
    moved = [
        TreeDifference(each.path, each.after, each.after, sources[each.path])
        for each in created
        if each.path in sources
    ]
    left_out = {*sources, *sources.values()}
    return sorted([*moved, *(each for each in listed if each.path not in left_out)], key=lambda each: each.path)


def _paired(
    deleted: list[TreeDifference], created: list[TreeDifference], name: Callable[[TreeDifference], str]
) -> dict[str, str]:
    """Return the source path for each created path that has one: an equal entry that is also equal by `name`."""
    waiting: dict[tuple[TreeEntry | None, str], deque[str]] = defaultdict(deque)
    for each in deleted:
        waiting[each.before, name(each)].append(each.path)
    return {
        each.path: candidates.popleft() for each in created if (candidates := waiting.get((each.after, name(each))))
    }
