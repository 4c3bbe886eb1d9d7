"""Plan a change: compare the tree with what the change expects, and list everything that must be done.

The plan is made completely before anything is written. Its result is an `UndoLog`, which the forward pass executes and
which undoing reads; or a `TreeConflict` that names every path at which the tree is not as expected.

Directories follow from entries. A directory is created where an entry needs it, and removed when the last thing in it
goes, unless it is to be there itself. Files that no changeset has recorded, such as files that git ignores, keep their
directory; an entry that needs the place of such a directory is a conflict.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from msgspec import Struct

from stepwell import limits
from stepwell.errors import EscapesRoot, InvalidArgument, TreeConflict
from stepwell.text import plural
from stepwell.trees.conflict_diff import ReadBody, short_diff
from stepwell.trees.entry import DEFAULT_MODE, Delta, TreeEntry, ancestors_of, depth_of, parent_of
from stepwell.trees.root import FoundEntry, Root
from stepwell.trees.undo_log import VERSION, UndoItem, UndoLog


class Mismatch(Struct, frozen=True):
    """A path at which the tree is not as expected, with both sides as text for a message."""

    path: str
    expected: str
    found: str


class ChangePlan(Struct, frozen=True):
    """The outcome of planning: the log of what is to be done, and the tree as it was found and as it shall be.

    `found` and `wanted` have every path of the deltas. If `is_already_applied`, every path is already as it shall be,
    and the log is empty.
    """

    log: UndoLog
    found: Mapping[str, FoundEntry]
    wanted: Mapping[str, TreeEntry | None]
    is_already_applied: bool


def conflict(mismatches: Iterable[Mismatch], what: str, diff: str = "") -> TreeConflict:
    """Return the error that lists every mismatch: all in its details, the first ones in its message."""
    listed = sorted(mismatches, key=lambda each: each.path)
    shown = [f"{each.path!r} has {each.found} instead of {each.expected}" for each in listed[: limits.TREE_NAMED_MAX]]
    more = len(listed) - len(shown)
    return TreeConflict(
        f"{what}: " + "; ".join(shown) + (f"; and {more} more" if more else ""),
        paths=[each.path for each in listed],
        expected=[each.expected for each in listed],
        found=[each.found for each in listed],
        **({"diff": diff} if diff else {}),
    )


def check_deltas(deltas: Iterable[Delta]) -> dict[str, Delta]:
    """Return the deltas by path.

    Raises `InvalidArgument` if a path occurs twice, if one lies below a path that is to be a file, or if there are too
    many.
    """
    by_path: dict[str, Delta] = {}
    for delta in deltas:
        if delta.path in by_path:
            shown = delta.path[: limits.PATH_CHARS_SHOWN]
            raise InvalidArgument(f"path {shown!r} is changed twice: give the first before and last after")
        by_path[delta.path] = delta
    if len(by_path) > limits.TREE_DELTAS_MAX:
        raise InvalidArgument(f"{plural(len(by_path), 'path')} at once, at most {limits.TREE_DELTAS_MAX} are allowed")
    for path, delta in by_path.items():
        for above in ancestors_of(path) if delta.after else ():
            entry = by_path[above].after if above in by_path else None
            if entry is not None and not entry.is_directory:
                shown, blocked = path[: limits.PATH_CHARS_SHOWN], above[: limits.PATH_CHARS_SHOWN]
                raise InvalidArgument(f"path {shown!r} cannot exist: {blocked!r} will not be a directory")
    return by_path


def plan(root: Root, deltas: Iterable[Delta], read_body: ReadBody) -> ChangePlan:
    """Return what must be done to apply the deltas; nothing is written.

    Raises `TreeConflict` naming every path that is not as expected, `EscapesRoot` if a link is on the way to one, and
    `InvalidArgument` for deltas that contradict each other. `read_body` is for the diff of a conflict.
    """
    by_path = check_deltas(deltas)
    _refuse_links(root, by_path)
    found = {path: inspect_within(root, path) for path in by_path}
    wanted = {path: _wanted(delta, found[path]) for path, delta in by_path.items()}
    is_already_applied = all(is_matched(entry, found[path]) for path, entry in wanted.items())
    if is_already_applied:
        return ChangePlan(UndoLog(VERSION, (), (), (), ()), found, wanted, is_already_applied=True)
    differing = {
        path: delta.before
        for path, delta in by_path.items()
        if not (is_matched(delta.before, found[path]) or _is_directory_already_made(delta.after, found[path]))
    }
    if differing:
        mismatches = [Mismatch(path, str(entry or "nothing"), str(found[path])) for path, entry in differing.items()]
        edited = {path: entry.digest for path, entry in differing.items() if entry and _is_edited(entry, found[path])}
        what = "the tree is not what the change expects, and was left as it is"
        raise conflict(mismatches, what, short_diff(root, edited, read_body))
    return ChangePlan(_Planner(root, found, wanted).log(), found, wanted, is_already_applied=False)


def _refuse_links(root: Root, by_path: Mapping[str, Delta]) -> None:
    """Raise `EscapesRoot` if a path leads through a symbolic link, unless the change itself replaces that link.

    For a path with an entry to come, the link must go or become a directory; for other paths it may become anything.
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
                continue  # a link above this one is replaced by the change, and was accepted before
            if is_link and not is_own:
                shown, link = path[: limits.PATH_CHARS_SHOWN], above[: limits.PATH_CHARS_SHOWN]
                raise EscapesRoot(f"path {shown!r} leads through the symbolic link {link!r}")


def inspect_within(root: Root, path: str) -> FoundEntry:
    """Return what is at a path. Behind a link, which the change itself creates or removes, there is nothing."""
    try:
        return root.inspect(path)
    except EscapesRoot:
        return FoundEntry()


def is_matched(expected: TreeEntry | None, found: FoundEntry) -> bool:
    """Return True if the path has the expected entry. Expecting None also allows a directory with something in it."""
    if expected is None:
        return not found.is_other and (found.entry is None or (found.is_directory and not found.is_empty_directory))
    return expected.is_matched_by(found.entry)


def _is_edited(expected: TreeEntry, found: FoundEntry) -> bool:
    """Return True if both are files, with different contents."""
    entry = found.entry
    return entry is not None and expected.kind == entry.kind == stat.S_IFREG and expected.digest != entry.digest


def _is_directory_already_made(after: TreeEntry | None, found: FoundEntry) -> bool:
    """Return True if a directory that is to be created exists already: two plans that create it do not conflict."""
    return after is not None and after.is_directory and found.is_directory


def _wanted(delta: Delta, found: FoundEntry) -> TreeEntry | None:
    """Return the entry that shall be there, with a mode: if none was recorded, that of the replaced file."""
    after = delta.after
    if after is None or after.mode is not None:
        return after
    is_file = found.entry is not None and found.entry.kind == stat.S_IFREG
    return TreeEntry(found.entry.mode if is_file and found.entry else DEFAULT_MODE, after.digest)


class _Planner:
    """Derives from found and wanted entries which files and directories are created and removed.

    Used once, by `plan`. It caches file types by path, because many paths share their directories.
    """

    def __init__(self, root: Root, found: Mapping[str, FoundEntry], wanted: Mapping[str, TreeEntry | None]) -> None:
        self._root = root
        self._found = found
        self._wanted = wanted
        self._kinds: dict[str, int] = {}
        entries = {path: entry for path, entry in wanted.items() if entry}
        # Directories that must exist afterwards: those above an entry, and empty directories that are entries.
        self._needed = {above for path in entries for above in ancestors_of(path)}
        self._needed |= {path for path, entry in entries.items() if entry.is_directory}
        self._removed: dict[str, int] = {}

    def log(self) -> UndoLog:
        """Return the complete log; `TreeConflict` if a directory or a file is in the way of a wanted entry."""
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
        """Yield an item for each path whose file or link differs, in order of path; directories are handled apart."""
        for path in sorted(self._wanted):
            before, after = _as_file(self._found[path].entry), _as_file(self._wanted[path])
            if before != after:
                yield UndoItem(os.fsencode(path), before, after)

    def _find_removed(self) -> None:
        """Find the directories that become empty: the lowest first, because a parent depends on its subdirectories."""
        candidates = {above for path in self._gone for above in ancestors_of(path)}
        candidates |= {path for path, found in self._found.items() if found.is_directory}
        candidates |= {above for path in candidates for above in ancestors_of(path)}
        for path in sorted(candidates - self._needed, key=depth_of, reverse=True):
            if self._is_directory(path) and self._is_emptied(path):
                self._removed[path] = self._permissions(path)

    def _is_emptied(self, path: str) -> bool:
        """Return True if the change removes everything in a directory, or the directory is itself one of its paths."""
        inside = [f"{path}/{name}" for name in self._root.names(path)]
        is_touched = path in self._found or any(each in self._gone or each in self._removed for each in inside)
        return is_touched and all(each in self._gone or each in self._removed for each in inside)

    def _refuse_occupied(self, items: Iterable[UndoItem]) -> None:
        """Raise `TreeConflict` if a file must replace a directory that stays, or a directory a file that stays."""
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
        """Yield the touched directories in which the owner may not write now, with their permissions."""
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
        """Return the file type at a path now; below anything that is not a directory there is nothing (0)."""
        if path not in self._kinds:
            above = parent_of(path)
            is_reachable = not above or self._kind(above) == stat.S_IFDIR
            self._kinds[path] = self._root.kind(path) if is_reachable else 0
        return self._kinds[path]


def _as_file(entry: TreeEntry | None) -> TreeEntry | None:
    """Return an entry that is a file or a link; None for a directory."""
    return None if entry is None or entry.is_directory else entry
