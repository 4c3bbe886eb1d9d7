"""Net changes: combine many recorded changes into one change for each path.

The net change of a path has the content before its first entry and the content after its last one. The entries of a
path form a chain: each one finds the content that the one before it left. If an entry finds another content, a program
changed the path without recording it, or two recorded changes exclude each other. The result would be a guess then, so
`BrokenChain` is raised. A move is one link in two chains: it ends the chain of its source and extends that of its
target.

Contents are compared as far as they are known. A later entry can add a mode, or the fact that the bytes are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.changesets.model import Content, EntryRow, is_same
from stepwell.domain.changesets.paths import DIRECTORY, EMPTY_DIGEST
from stepwell.errors import BrokenChain
from stepwell.text import brief_repr, plural


class NetChange(Struct, frozen=True, array_like=True, gc=False):
    """The combined effect of all changes of one path. None stands for "no file"."""

    path: str
    before: Content | None
    after: Content | None

    __repr__ = brief_repr

    @property
    def is_nothing(self) -> bool:
        """True if the path is as it was, for instance after it was created and deleted again."""
        return is_same(self.before, self.after)

    @property
    def reverse(self) -> NetChange:
        """The change that undoes this one."""
        return NetChange(self.path, self.after, self.before)


def in_recording_order(changesets: Sequence[Sequence[EntryRow]]) -> list[EntryRow]:
    """Return the entries of all changesets in the order of recording.

    Entries of changesets that were open at the same time are interleaved. The entries of one changeset are in order
    already, so the common case needs no sort.
    """
    entries = list(chain.from_iterable(changesets))
    if len(changesets) > 1:
        entries.sort(key=attrgetter("ordinal"))
    return entries


def net_changes(entries: Iterable[EntryRow], *, only: str | None = None) -> dict[str, NetChange]:
    """Return the net change of each path, in the order in which the paths first occur.

    Raise `BrokenChain`, with the broken paths, if changes do not follow from each other. With `only` the result has at
    most that path, and other broken chains do not matter.
    """
    chains = _Chains()
    first, last = chains.first, chains.last
    for entry in entries:
        path = entry.path
        if path in first or entry.source_path is not None:
            chains.add(entry)
        else:  # fast path: most paths are changed once, and a plan may have very many
            first[path] = before = entry.before
            after = entry.after
            last[path] = after if before is None or before.mode is None else with_found_mode(before, after)
    broken = [path for path in chains.broken if only in {None, path}]
    if broken:
        paths = sorted(broken)
        raise BrokenChain(
            f"the changes of {plural(len(paths), 'path')} do not follow from each other, the first is "
            f"{paths[0][: limits.PATH_CHARS_SHOWN]!r}: what one left there is not what the next one found; "
            "revert the plan, and record what is there",
            paths=paths[: limits.PATHS_LISTED_MAX],
        )
    return {path: NetChange(path, before, last[path]) for path, before in first.items() if only is None or path == only}


class _Chains:
    """The first and the last content of each path while its entries are added, and the paths whose chain is broken."""

    __slots__ = ("broken", "first", "last")

    def __init__(self) -> None:
        self.first: dict[str, Content | None] = {}
        self.last: dict[str, Content | None] = {}
        self.broken: set[str] = set()

    def add(self, entry: EntryRow) -> None:
        """Add an entry to the chain of its path, and a move also to the chain of its source."""
        if entry.source_path is None:
            found = self._content_at(entry.path, entry.before)
        else:
            found = self._content_at(entry.source_path, entry.before)
            self.last[entry.source_path] = None
            self._content_at(entry.path, None)
        self.last[entry.path] = with_found_mode(found, entry.after)

    def _content_at(self, path: str, before: Content | None) -> Content | None:
        """Return the content at a path before an entry, with everything that is known of it; note a broken chain."""
        if path not in self.first:
            self.first[path] = before
            return before
        left = self.last[path]
        if not is_same(left, before):
            self.broken.add(path)
        return _combined(left, before)


def _combined(left: Content | None, found: Content | None) -> Content | None:
    """Return one content with the facts that are known from the earlier entry (`left`) and from the later one
    (`found`).
    """
    if left is None or found is None or ((left.held or not found.held) and left.mode is not None):
        return left
    held = left if left.held else found
    return replace(held, mode=found.mode if left.mode is None else left.mode)


def with_found_mode(found: Content | None, after: Content | None) -> Content | None:
    """Return the content after a change. If its mode is not known, it keeps the mode that the change found.

    A directory that becomes a file is the exception: a file cannot have a directory's mode.
    """
    if found is None or after is None or after.mode is not None or found.mode is None:
        return after
    if found.mode == DIRECTORY and after.digest != EMPTY_DIGEST:
        return after
    return replace(after, mode=found.mode)
