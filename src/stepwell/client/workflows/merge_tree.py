"""What several children made of one tree, made one, path by path and in declared order. Nothing is sent or written.

`ours` is what the parent has recorded, and what is joined so far; `base` what a child found at a path, and `theirs`
what it left. Besides the rules of `MergeStrategy` and `trees.merging`:

- A child's removals come before what it puts there, and its paths in order; so the outcome depends on what children
  recorded, and on nothing else.
- A move is the end of one path and the beginning of another. If somebody else changed what was moved away, that is a
  conflict at the old path, and the new one is there besides: nothing of either is lost.
- A file that needs the place of a directory which others have put something in, and the other way round, is a conflict
  at the later path. With `last_wins` what is in the way goes.
- An empty directory gives way to whatever is put into it, and is no leaf as long as something is in it.
- Once a path is in conflict, whoever changes it later is in conflict too: their choice comes after the first one.
- A content of which only the digest is known can be taken, and not merged.
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
from stepwell.trees.merge3 import Version, merge

ReadBody = Callable[[bytes], bytes]
"""The bytes of a digest that is held."""


class MergedTree(Struct, frozen=True):
    """A change that the parent records. `tool` is a child's, if what it left was taken as it is."""

    path: str
    before: Content | None
    after: Content | None
    tool: str


class _Disputed(Exception):
    """Somebody has to choose."""


class TreeMerge:
    """The tree as far as it is joined."""

    def __init__(self, strategy: MergeStrategy, ours: Mapping[str, NetChange], read: ReadBody) -> None:
        self._strategy = strategy
        self._read = read
        self._made: dict[bytes, bytes] = {EMPTY_DIGEST: b""}  # bodies that came of merging
        self._tools: dict[str, str] = {}
        self._disputed: set[str] = set()
        self._below: Counter[str] = Counter()  # leaves in each directory, at any depth
        self._steps: dict[str, list[Content | None]] = {}  # of each path: what was found, and after each child
        self.conflicts: list[tuple[str, str]] = []
        """Paths, each with the id of a child, in declared order."""
        for change in ours.values():
            self._begin(change.path, change.after)

    @property
    def _wins(self) -> bool:
        return self._strategy is MergeStrategy.LAST_WINS

    def take(self, child_id: str, changes: Mapping[str, NetChange], tools: Mapping[str, str]) -> None:
        """Add what the next child did. `tools` has, for each path, who changed it last."""
        wanted = [change for change in changes.values() if not change.is_nothing]
        for change in sorted(wanted, key=lambda each: (each.after is not None, each.path)):
            try:
                self._join(change, tools[change.path])
            except _Disputed:
                self._disputed.add(change.path)
                self.conflicts.append((change.path, child_id))

    def changes(self) -> Iterator[MergedTree]:
        """What the parent has to record, in order of path."""
        for path, steps in sorted(self._steps.items()):
            tool = self._tools.get(path, MERGE_TOOL)
            if not is_same(steps[0], steps[-1]):
                yield MergedTree(path, steps[0], steps[-1], tool)
            elif path in self._disputed:  # back where it was, which is not what the child in conflict has found
                changed = [pair for pair in pairwise(steps) if not is_same(*pair)]
                yield from (MergedTree(path, before, after, tool) for before, after in changed)

    def body(self, content: Content) -> bytes | None:
        """The bytes of a content, if anybody has them."""
        if content.digest in self._made:
            return self._made[content.digest]
        return self._read(content.digest) if content.held else None

    def _join(self, change: NetChange, tool: str) -> None:
        path = change.path
        if path not in self._steps:
            self._begin(path, change.before)
        if path in self._disputed:
            raise _Disputed
        ours = self._steps[path][-1]
        merged = self._with_room(path, self._merged(ours, change))
        self._put(path, merged, tool if merged == change.after else MERGE_TOOL)

    def _merged(self, ours: Content | None, change: NetChange) -> Content | None:
        base, theirs = change.before, change.after
        if is_same(ours, base):
            return theirs
        if is_same(ours, theirs):
            return ours if ours is None or ours.mode is not None else theirs
        if self._strategy is MergeStrategy.SEQUENTIAL_APPLY:
            raise _Disputed
        if not all(self._is_known(side) for side in (ours, base, theirs)):
            if self._wins:
                return theirs
            raise _Disputed
        merged = merge(self._version(ours), self._version(base), self._version(theirs), theirs_wins=self._wins)
        if not merged.is_clean:
            raise _Disputed
        return self._content(merged.version, (ours, base, theirs))

    def _is_known(self, side: Content | None) -> bool:
        return side is None or side.held or side.digest in self._made

    def _version(self, side: Content | None) -> Version | None:
        return None if side is None else Version(self.body(side) or b"", side.mode)

    def _content(self, version: Version | None, sides: tuple[Content | None, ...]) -> Content | None:
        if version is None:
            return None
        digest = digest_of(version.body)
        for side in sides:
            if side is not None and side.digest == digest:
                return replace(side, mode=version.mode)
        self._made[digest] = version.body
        return Content(digest, len(version.body), held=True, mode=version.mode)

    def _with_room(self, path: str, leaf: Content | None) -> Content | None:
        """The leaf, if there is room for it; and room, where an empty directory is all that is in its way."""
        if leaf is None:
            return None
        if self._below[path] and leaf.mode == DIRECTORY:
            return None  # it is there, by what is in it
        above = [each for each in ancestors_of(path) if self._steps.get(each, [None])[-1] is not None]
        blocking = [each for each in above if not _is_directory(self._steps[each][-1])]
        if self._below[path]:
            blocking += [each for each, steps in self._steps.items() if each.startswith(f"{path}/") and steps[-1]]
        if blocking and not self._wins:
            raise _Disputed
        for each in {*above, *blocking}:
            self._put(each, None, MERGE_TOOL)
        return leaf

    def _begin(self, path: str, found: Content | None) -> None:
        self._steps[path] = [found]
        self._count(path, found, 1)

    def _put(self, path: str, leaf: Content | None, tool: str) -> None:
        steps = self._steps[path]
        self._count(path, steps[-1], -1)
        self._count(path, leaf, 1)
        steps.append(leaf)
        self._tools[path] = tool

    def _count(self, path: str, leaf: Content | None, number: int) -> None:
        if leaf is not None:
            for above in ancestors_of(path):
                self._below[above] += number


def in_the_way(path: str, net: Mapping[str, NetChange]) -> str | None:
    """A path that there is, by these changes, and that cannot be beside a file at `path`."""
    above = {*ancestors_of(path)}
    for each in net.values():
        is_above = each.path in above and not _is_directory(each.after)
        if each.after is not None and (is_above or each.path.startswith(f"{path}/")):
            return each.path
    return None


def _is_directory(leaf: Content | None) -> bool:
    return leaf is not None and leaf.mode == DIRECTORY
