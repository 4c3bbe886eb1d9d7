"""From what a change expects and what is there to what has to be done: decided whole, before anything is touched.

Directories follow from leaves. One is made where a leaf needs it, and removed when the last thing in it goes, unless
it is itself to be there. What nobody recorded, as files that git ignores, keeps its directory where it is; a leaf that
needs such a directory's place is a conflict.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from msgspec import Struct

from stepwell import limits
from stepwell.errors import EscapesRoot, InvalidArgument, TreeConflict
from stepwell.trees.entry import DEFAULT_MODE, Delta, TreeEntry, ancestors_of, depth_of, parent_of
from stepwell.trees.root import FoundEntry, Root
from stepwell.trees.undo_log import VERSION, UndoItem, UndoLog


class Mismatch(Struct, frozen=True):
    """A path that is not what a change expects."""

    path: str
    expected: str
    found: str


class ChangePlan(Struct, frozen=True):
    """What is to be done, and what was found. `is_there`: nothing, because every path is already what it shall be."""

    log: UndoLog
    found: Mapping[str, FoundEntry]
    wanted: Mapping[str, TreeEntry | None]
    is_there: bool


def conflict(mismatches: Iterable[Mismatch], what: str) -> TreeConflict:
    """The error that lists every path."""
    listed = sorted(mismatches, key=lambda each: each.path)
    shown = [f"{each.path!r} has {each.found} instead of {each.expected}" for each in listed[: limits.TREE_NAMED_MAX]]
    more = len(listed) - len(shown)
    return TreeConflict(
        f"{what}: " + "; ".join(shown) + (f"; and {more} more" if more else ""),
        paths=[each.path for each in listed],
        expected=[each.expected for each in listed],
        found=[each.found for each in listed],
    )


def check_deltas(deltas: Iterable[Delta]) -> dict[str, Delta]:
    """The deltas by path: one for each, and none below what is to be a file."""
    by_path: dict[str, Delta] = {}
    for delta in deltas:
        if delta.path in by_path:
            raise InvalidArgument(f"path {delta.path[:200]!r} is changed twice: give the first before and last after")
        by_path[delta.path] = delta
    if len(by_path) > limits.TREE_DELTAS_MAX:
        raise InvalidArgument(f"{len(by_path)} paths at once, at most {limits.TREE_DELTAS_MAX} are allowed")
    for path, delta in by_path.items():
        for above in ancestors_of(path) if delta.after else ():
            leaf = by_path[above].after if above in by_path else None
            if leaf is not None and not leaf.is_directory:
                raise InvalidArgument(f"path {path[:200]!r} cannot be: {above[:200]!r} is to be no directory")
    return by_path


def plan(root: Root, deltas: Iterable[Delta]) -> ChangePlan:
    """What has to be done, or every path at which it cannot be. Nothing is written."""
    by_path = check_deltas(deltas)
    _refuse_links(root, by_path)
    found = {path: look_within(root, path) for path in by_path}
    wanted = {path: _wanted(delta, found[path]) for path, delta in by_path.items()}
    is_there = all(is_met(leaf, found[path]) for path, leaf in wanted.items())
    if is_there:
        return ChangePlan(UndoLog(VERSION, (), (), (), ()), found, wanted, is_there=True)
    mismatches = [
        Mismatch(path, str(delta.before) if delta.before else "nothing", str(found[path]))
        for path, delta in by_path.items()
        if not (is_met(delta.before, found[path]) or _is_met_early(delta.after, found[path]))
    ]
    if mismatches:
        raise conflict(mismatches, "the tree is not what the change expects, and was left as it is")
    return ChangePlan(_Planner(root, found, wanted).log(), found, wanted, is_there=False)


def _refuse_links(root: Root, by_path: Mapping[str, Delta]) -> None:
    """A link on the way is an escape, unless the change itself puts something else in its place.

    Where nothing is to be behind it, that may be anything.
    """
    seen: set[tuple[str, bool]] = set()
    for path, delta in by_path.items():
        is_to_be = delta.after is not None
        for above in reversed(ancestors_of(path)):
            if (above, is_to_be) in seen:
                continue
            seen.add((above, is_to_be))
            own = by_path.get(above)
            is_own = own is not None and (own.after is None or own.after.is_directory or not is_to_be)
            try:
                is_link = root.kind(above) == stat.S_IFLNK
            except EscapesRoot:
                continue  # above it is one that was let through
            if is_link and not is_own:
                raise EscapesRoot(f"path {path[:200]!r} leads through the symbolic link {above[:200]!r}")


def look_within(root: Root, path: str) -> FoundEntry:
    """What is at a path; behind a link, which a change puts there or takes away, there is nothing."""
    try:
        return root.look(path)
    except EscapesRoot:
        return FoundEntry()


def is_met(expected: TreeEntry | None, found: FoundEntry) -> bool:
    """Where no leaf is expected there may be a directory with something in it: that is none."""
    if expected is None:
        return not found.is_other and (found.leaf is None or (found.is_directory and not found.is_bare))
    return expected.is_met_by(found.leaf)


def _is_met_early(after: TreeEntry | None, found: FoundEntry) -> bool:
    """A directory that was to be made, and is there: of two that make it neither is disturbed."""
    return after is not None and after.is_directory and found.is_directory


def _wanted(delta: Delta, found: FoundEntry) -> TreeEntry | None:
    """What shall be there, with a mode: where nobody said which, that of what is replaced."""
    after = delta.after
    if after is None or after.mode is not None:
        return after
    is_file = found.leaf is not None and found.leaf.kind == stat.S_IFREG
    return TreeEntry(found.leaf.mode if is_file and found.leaf else DEFAULT_MODE, after.digest)


class _Planner:
    """Which names come and go, from the leaves that do."""

    def __init__(self, root: Root, found: Mapping[str, FoundEntry], wanted: Mapping[str, TreeEntry | None]) -> None:
        self._root = root
        self._found = found
        self._wanted = wanted
        self._kinds: dict[str, int] = {}
        leaves = {path: leaf for path, leaf in wanted.items() if leaf}
        self._needed = {above for path in leaves for above in ancestors_of(path)}
        self._needed |= {path for path, leaf in leaves.items() if leaf.is_directory}
        self._removed: dict[str, int] = {}

    def log(self) -> UndoLog:
        items = tuple(self._items())
        self._gone = {item.path for item in items if item.before and not item.after}
        self._find_removed()
        self._refuse_occupied(items)
        made = sorted((path for path in self._needed if not self._is_directory(path)), key=lambda p: (depth_of(p), p))
        removed = sorted(self._removed.items(), key=lambda each: (-depth_of(each[0]), each[0]))
        log = UndoLog(
            VERSION,
            items,
            tuple(map(os.fsencode, made)),
            tuple((os.fsencode(path), mode) for path, mode in removed),
            (),
        )
        return UndoLog(log.version, log.items, log.made, log.removed, tuple(self._read_only(log)))

    def _items(self) -> Iterable[UndoItem]:
        for path in sorted(self._wanted):
            before, after = _as_file(self._found[path].leaf), _as_file(self._wanted[path])
            if before != after:
                yield UndoItem(os.fsencode(path), before, after)

    def _find_removed(self) -> None:
        """Directories that are left with nothing in them, the lowest first, so that each finds those in it decided."""
        candidates = {above for path in self._gone for above in ancestors_of(path)}
        candidates |= {path for path, found in self._found.items() if found.is_directory}
        candidates |= {above for path in candidates for above in ancestors_of(path)}
        for path in sorted(candidates - self._needed, key=depth_of, reverse=True):
            if self._is_directory(path) and self._is_emptied(path):
                self._removed[path] = self._permissions(path)

    def _is_emptied(self, path: str) -> bool:
        inside = [f"{path}/{name}" for name in self._root.names(path)]
        is_touched = path in self._found or any(each in self._gone or each in self._removed for each in inside)
        return is_touched and all(each in self._gone or each in self._removed for each in inside)

    def _refuse_occupied(self, items: Iterable[UndoItem]) -> None:
        mismatches = [
            Mismatch(item.path, "nothing", "a directory with other things in it")
            for item in items
            if item.after and self._found[item.path].is_directory and item.path not in self._removed
        ]
        for path in sorted(self._needed):
            kind = self._kind(path)
            if kind not in {0, stat.S_IFDIR} and path not in self._gone:
                mismatches.append(Mismatch(path, "a directory", "something else"))
        if mismatches:
            raise conflict(mismatches, "something is in the way, and the tree was left as it is")

    def _read_only(self, log: UndoLog) -> Iterable[tuple[bytes, int]]:
        for path in log.touched:
            if path == "" or self._is_directory(path):
                mode = self._permissions(path)
                if mode & stat.S_IRWXU != stat.S_IRWXU:
                    yield os.fsencode(path), mode

    def _permissions(self, path: str) -> int:
        with self._root.directory(path) as descriptor:
            return stat.S_IMODE(os.fstat(descriptor).st_mode)

    def _is_directory(self, path: str) -> bool:
        return self._kind(path) == stat.S_IFDIR

    def _kind(self, path: str) -> int:
        """What is at a path now; behind a link that goes there is nothing."""
        if path not in self._kinds:
            above = parent_of(path)
            is_reachable = not above or self._kind(above) == stat.S_IFDIR
            self._kinds[path] = self._root.kind(path) if is_reachable else 0
        return self._kinds[path]


def _as_file(leaf: TreeEntry | None) -> TreeEntry | None:
    return None if leaf is None or leaf.is_directory else leaf
