"""What changes in a tree while somebody works in it: found by content, not by what anybody says they did.

What was there before has to be known when it is gone, so that all of it is put by at the beginning, in one file without
a name. It is not hashed: that is done at the end, for what has changed, and what has not is known by its status alone.
A file that is so young that a change might not show in its times is compared byte by byte.

What is ignored is judged as it was at the beginning, too: a file is no creation because somebody stopped ignoring it,
and no deletion because somebody began to.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from msgspec import Struct

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import EscapesRoot, NotFound, TreeFailed
from stepwell.trees.entry import DIRECTORY, EMPTY, TreeEntry
from stepwell.trees.ignore import is_within
from stepwell.trees.root import Root
from stepwell.trees.spool import Spool, SpoolRef
from stepwell.trees.staging import failures
from stepwell.trees.walk import EntryStatus, Walked, walk


class TreeDifference(Struct, frozen=True):
    """One path that changed. A move has what was at `source_path`, which is not there any more, at `path`."""

    path: str
    before: TreeEntry | None
    after: TreeEntry | None
    source_path: str | None = None


class Held(Struct, frozen=True):
    """A leaf, and its content: in the spool, or here if it is a link's."""

    status: EntryStatus
    content: SpoolRef | bytes | None  # None: too large, not to be read, or never at rest
    is_settled: bool = True

    def is_same(self, status: EntryStatus) -> bool:
        return self.is_settled and self.status == status


class TreeCapture:
    """From entering on, changes below a root are noticed; `differences` says which, as often as it is asked."""

    def __init__(self, root: str | os.PathLike[str], *, bytes_max: int = limits.TREE_SPOOL_BYTES_MAX) -> None:
        self._path = root
        self._bytes_max = bytes_max
        self._stack = ExitStack()
        self._bodies: dict[bytes, SpoolRef | bytes] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack, failures(f"{os.fspath(self._path)!r} cannot be recorded"):
            self._root = stack.enter_context(Root(self._path))
            self._spool = stack.enter_context(Spool(self._bytes_max))
            self._walked = walk(self._root)
            self._before = {path: self._hold(path, status) for path, status in self._walked.leaves.items()}
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def differences(self) -> tuple[TreeDifference, ...]:
        """What is not as it was, in order of path, with moves found. `body` has every content of them afterwards."""
        with failures(f"{self._root.path!r} cannot be recorded"):
            now = walk(self._root, also=self._before)
            changed: list[TreeDifference] = []
            unknown: list[str] = []
            for path in sorted(self._before.keys() | now.leaves.keys()):
                try:
                    difference = self._difference(path, now)
                except _Unknown:
                    unknown.append(path)
                else:
                    changed += [difference] if difference else []
        if unknown:
            shown = ", ".join(map(repr, unknown[: limits.TREE_NAMED_MAX]))
            raise TreeFailed(
                f"{len(unknown)} files changed, and cannot be recorded, because they cannot be read, have more than "
                f"{limits.BODY_BYTES_MAX:,} bytes, or change all the time: {shown}. Have git ignore them, or move them",
                paths=unknown,
            )
        return tuple(with_moves(changed))

    def body(self, digest: bytes) -> bytes:
        """The content of one side of a difference."""
        if digest == EMPTY:
            return b""
        try:
            content = self._bodies[digest]
        except KeyError:
            raise NotFound("no difference that was found has a content with that digest") from None
        return content if isinstance(content, bytes) else self._spool.body(content)

    def _difference(self, path: str, now: Walked) -> TreeDifference | None:
        held, status = self._before.get(path), now.leaves.get(path)
        if held and status and held.is_same(status):
            return None
        if held is None and (is_within(path, self._walked.ignored) or path in self._walked.veiled):
            return None  # it may have been there, and nobody looked
        if status is None and path in now.veiled:
            return None  # still a directory, and what is in it now is ignored
        before = self._leaf(held)
        after = self._leaf(self._hold(path, status)) if status else None
        return None if before == after else TreeDifference(path, before, after)

    def _leaf(self, held: Held | None) -> TreeEntry | None:
        """A leaf with its digest, by which its content is found from now on."""
        if held is None:
            return None
        if stat.S_ISDIR(held.status.mode):
            return DIRECTORY
        if held.content is None:
            raise _Unknown
        digest = digest_of(held.content) if isinstance(held.content, bytes) else self._spool.digest(held.content)
        self._bodies.setdefault(digest, held.content)
        return TreeEntry(held.status.mode, digest)

    def _hold(self, path: str, status: EntryStatus) -> Held:
        """A leaf with its content. What goes while it is looked at was hardly there."""
        if stat.S_ISDIR(status.mode):
            return Held(status, b"")
        try:
            with self._root.place(path) as place:
                if stat.S_ISLNK(status.mode):
                    return Held(status, os.readlink(os.fsencode(place.name), dir_fd=place.directory))
                taken = self._spool.take(place)
        except (FileNotFoundError, NotADirectoryError, PermissionError, EscapesRoot):
            return Held(status, None)
        if taken is None:
            return Held(status, None)
        slip, seen = taken
        return Held(seen, slip, is_settled=seen.ctime_ns < time.time_ns() - limits.INGEST_SETTLED_NS)


class _Unknown(Exception):
    """A content that nobody has."""


def with_moves(differences: Iterable[TreeDifference]) -> list[TreeDifference]:
    """Where something went and the very same came elsewhere, that is one move.

    Same content, which is not empty, and same mode. Of several that are alike, those that keep their name belong
    together, then the first in order of path: the same every time.
    """
    listed = sorted(differences, key=lambda each: each.path)
    gone = [each for each in listed if each.before and not each.after and each.before.digest != EMPTY]
    come = [each for each in listed if each.after and not each.before]
    sources = _paired(gone, come, lambda each: each.path.rpartition("/")[2])
    taken = {*sources.values()}
    sources |= _paired(
        [each for each in gone if each.path not in taken],
        [each for each in come if each.path not in sources],
        lambda _: "",
    )
    moved = [
        TreeDifference(each.path, each.after, each.after, sources[each.path]) for each in come if each.path in sources
    ]
    left_out = {*sources, *sources.values()}
    return sorted([*moved, *(each for each in listed if each.path not in left_out)], key=lambda each: each.path)


def _paired(
    gone: list[TreeDifference], come: list[TreeDifference], name: Callable[[TreeDifference], str]
) -> dict[str, str]:
    """For each target that has one its source: the same leaf, and the same by `name`."""
    waiting: dict[tuple[TreeEntry | None, str], deque[str]] = defaultdict(deque)
    for each in gone:
        waiting[each.before, name(each)].append(each.path)
    return {each.path: candidates.popleft() for each in come if (candidates := waiting.get((each.after, name(each))))}
