"""Merge the net changes of several children into one tree, path by path and in declared order.

Nothing is sent or written here; bodies are read through a function that the caller gives.

`ours` is what the parent has recorded and what is merged so far; `base` is what a child found at a path, and `theirs`
what it left. Besides the rules of `MergeStrategy` and `trees.merge`:

- A child's removals come before its other changes, each in order of path. So the outcome depends only on what the
  children recorded, not on when.
- A move is the end of one path and the beginning of another. If another child changed the moved file, that is a
  conflict at the old path, and the new path exists besides: no work is lost.
- A file that needs the place of a directory in which others have put something is a conflict at the later path, and
  vice versa. With `last_wins` the earlier one is removed.
- An empty directory gives way to anything that is put into it, and is no entry of its own as long as something is in
  it.
- Once a path is in conflict, every later child that changes it waits: it is merged with the resolution.
- A content of which only the digest is known can be taken over, but not merged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.changesets.model import Content, is_same
from stepwell.domain.changesets.net_changes import NetChange
from stepwell.domain.changesets.paths import DIRECTORY, EMPTY_DIGEST
from stepwell.domain.plans.merge import MERGE_TOOL
from stepwell.domain.plans.model import MergeStrategy
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees.entry import ancestors_of
from stepwell.trees.merge.file_merge import Version, merge

ReadBody = Callable[[bytes], bytes]
"""A function that returns the bytes of a digest that the manager holds."""


class MergedChange(Struct, frozen=True):
    """A change that the parent records. `tool` is the child's tool if the child's version was taken over unchanged."""

    path: str
    before: Content | None
    after: Content | None
    tool: str


class _Conflicting(Exception):
    """Raised inside `TreeMerge` for a path that cannot be merged without a decision; it becomes a conflict."""


class TreeMerge:
    """The tree as far as it is merged: add the children in declared order, then read `changes` and `conflicts`.

    Belongs to one thread. It keeps all contents as digests; bytes are read only to merge, and kept only if a merge made
    them.
    """

    def __init__(self, strategy: MergeStrategy, ours: Mapping[str, NetChange], read: ReadBody) -> None:
        self._strategy = strategy
        self._read = read
        self._merged_bodies: dict[bytes, bytes] = {EMPTY_DIGEST: b""}  # bodies that a merge made, by digest
        self._tools: dict[str, str] = {}
        self._conflicting: set[str] = set()
        self._below: Counter[str] = Counter()  # entries below each directory, at any depth
        self._steps: dict[str, list[Content | None]] = {}  # by path: as found, then after each child
        self.conflicts: list[tuple[str, str]] = []
        """Conflicting paths, each with the id of the child, in declared order."""
        for change in ours.values():
            self._start_path(change.path, change.after)

    @property
    def _last_wins(self) -> bool:
        return self._strategy is MergeStrategy.LAST_WINS

    def add_child(self, child_id: str, changes: Mapping[str, NetChange], tools: Mapping[str, str]) -> None:
        """Merge the net changes of the next child. `tools` has the tool that changed each path last."""
        wanted = [change for change in changes.values() if not change.is_nothing]
        for change in sorted(wanted, key=lambda each: (each.after is not None, each.path)):
            try:
                self._merge_path(change, tools[change.path])
            except _Conflicting:
                self._conflicting.add(change.path)
                self.conflicts.append((change.path, child_id))

    def changes(self) -> Iterator[MergedChange]:
        """Yield the changes that the parent has to record, in order of path."""
        for path, steps in sorted(self._steps.items()):
            tool = self._tools.get(path, MERGE_TOOL)
            if not is_same(steps[0], steps[-1]):
                yield MergedChange(path, steps[0], steps[-1], tool)
            elif path in self._conflicting:
                # The path ends as it began. Without an entry, the manager would take the content that the child in
                # conflict found as ours; so the steps are recorded, though they cancel each other.
                changed = [pair for pair in pairwise(steps) if not is_same(*pair)]
                yield from (MergedChange(path, before, after, tool) for before, after in changed)

    def body(self, content: Content) -> bytes | None:
        """Return the bytes of a content; None if only its digest was ever recorded."""
        if content.digest in self._merged_bodies:
            return self._merged_bodies[content.digest]
        return self._read(content.digest) if content.held else None

    def _merge_path(self, change: NetChange, tool: str) -> None:
        """Merge one change of a child; raise `_Conflicting` if it needs a decision."""
        path = change.path
        if path not in self._steps:
            self._start_path(path, change.before)
        if path in self._conflicting:
            raise _Conflicting
        ours = self._steps[path][-1]
        merged = self._make_room(path, self._merge_contents(ours, change))
        self._put(path, merged, tool if merged == change.after else MERGE_TOOL)

    def _merge_contents(self, ours: Content | None, change: NetChange) -> Content | None:
        """Return the merged content of a path by the plan's strategy, without regard to other paths."""
        base, theirs = change.before, change.after
        if is_same(ours, base):
            return theirs
        if is_same(ours, theirs):
            return ours if ours is None or ours.mode is not None else theirs
        if self._strategy is MergeStrategy.SEQUENTIAL_APPLY:
            raise _Conflicting
        if not all(self._is_known(side) for side in (ours, base, theirs)):
            if self._last_wins:
                return theirs
            raise _Conflicting
        merged = merge(self._version(ours), self._version(base), self._version(theirs))
        if not merged.is_clean and not self._last_wins:
            raise _Conflicting
        return self._content(merged.accepted("theirs"), (ours, base, theirs))

    def _is_known(self, side: Content | None) -> bool:
        """Return True if the bytes of a side can be had: then it can be merged, not only taken over."""
        return side is None or side.held or side.digest in self._merged_bodies

    def _version(self, side: Content | None) -> Version | None:
        return None if side is None else Version(self.body(side) or b"", side.mode)

    def _content(self, version: Version | None, sides: tuple[Content | None, ...]) -> Content | None:
        """Return a merged version as a content: a known one where the bytes are equal, or else a new body."""
        if version is None:
            return None
        digest = digest_of(version.body)
        for side in sides:
            if side is not None and side.digest == digest:
                return replace(side, mode=version.mode)
        self._merged_bodies[digest] = version.body
        return Content(digest, len(version.body), held=True, mode=version.mode)

    def _make_room(self, path: str, content: Content | None) -> Content | None:
        """Return the content if it can exist at a path, removing empty directories that are in its way.

        Returns None for an empty directory that is not empty any more. Raises `_Conflicting` if other files are in the
        way; with `last_wins` they are removed.
        """
        if content is None:
            return None
        if self._below[path] and content.mode == DIRECTORY:
            return None
        above = [each for each in ancestors_of(path) if self._steps.get(each, [None])[-1] is not None]
        blocking = [each for each in above if not _is_directory(self._steps[each][-1])]
        if self._below[path]:
            blocking += [each for each, steps in self._steps.items() if each.startswith(f"{path}/") and steps[-1]]
        if blocking and not self._last_wins:
            raise _Conflicting
        for each in {*above, *blocking}:
            self._put(each, None, MERGE_TOOL)
        return content

    def _start_path(self, path: str, found: Content | None) -> None:
        """Begin the history of a path with what the first child, or the parent, found there."""
        self._steps[path] = [found]
        self._count(path, found, 1)

    def _put(self, path: str, content: Content | None, tool: str) -> None:
        """Append a content to the history of a path, and keep the counts of the directories above it."""
        steps = self._steps[path]
        self._count(path, steps[-1], -1)
        self._count(path, content, 1)
        steps.append(content)
        self._tools[path] = tool

    def _count(self, path: str, content: Content | None, number: int) -> None:
        if content is not None:
            for above in ancestors_of(path):
                self._below[above] += number


def blocking_path(path: str, net: Mapping[str, NetChange]) -> str | None:
    """Return a path that exists by these changes and excludes a file at `path`: one above or below it; or None."""
    above = {*ancestors_of(path)}
    for each in net.values():
        is_above = each.path in above and not _is_directory(each.after)
        if each.after is not None and (is_above or each.path.startswith(f"{path}/")):
            return each.path
    return None


def _is_directory(content: Content | None) -> bool:
    return content is not None and content.mode == DIRECTORY
