"""What many changes come to: for each path what was there before the first of them and what is there after the last.

The changes of one path are a chain: each finds what the one before it left. Where one finds something else, somebody
changed the path in between without recording it, or two recorded changes that exclude each other; what the chain would
come to is then anybody's guess, and nothing is made of it. A move is two links: its source ends, its target begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from stepwell.domain.changesets.model import Content, EntryRow, is_same
from stepwell.domain.changesets.paths import DIRECTORY, EMPTY_DIGEST
from stepwell.errors import BrokenChain


class NetChange(Struct, frozen=True, array_like=True, gc=False):
    """What changes do to a path, all of them together. None for "no file"."""

    path: str
    before: Content | None
    after: Content | None

    @property
    def is_nothing(self) -> bool:
        """Whether it is as it was: created and deleted again, say."""
        return is_same(self.before, self.after)

    @property
    def reverse(self) -> NetChange:
        """What undoes it."""
        return NetChange(self.path, self.after, self.before)


def in_recording_order(changesets: Sequence[Sequence[EntryRow]]) -> list[EntryRow]:
    """The entries of changesets in the order of recording: those of two that were open together are interleaved."""
    entries = list(chain.from_iterable(changesets))
    if len(changesets) > 1:
        entries.sort(key=attrgetter("ordinal"))
    return entries


def net_changes(entries: Iterable[EntryRow], *, only: str | None = None) -> dict[str, NetChange]:
    """What the entries, in order, come to, by path in the order of their first; or `BrokenChain`, with every path.

    With `only` it is that path's net change, if it has one; whether others follow does not matter then.
    """
    chains = _Chains()
    first, last = chains.first, chains.last
    for entry in entries:
        path = entry.path
        if path in first or entry.source_path is not None:
            chains.add(entry)
        else:  # most paths are changed once, and a plan may have very many
            first[path] = before = entry.before
            after = entry.after
            last[path] = after if before is None or before.mode is None else _with_found_mode(before, after)
    broken = [path for path in chains.broken if only in {None, path}]
    if broken:
        paths = sorted(broken)
        raise BrokenChain(
            f"the changes of {len(paths)} paths do not follow from each other, the first is {paths[0][:200]!r}: "
            "what one left there is not what the next one found; revert the plan, and record what is there",
            paths=paths[:100],
        )
    return {path: NetChange(path, before, last[path]) for path, before in first.items() if only is None or path == only}


class _Chains:
    """What was found at each path at first, and left there at last."""

    __slots__ = ("broken", "first", "last")

    def __init__(self) -> None:
        self.first: dict[str, Content | None] = {}
        self.last: dict[str, Content | None] = {}
        self.broken: set[str] = set()

    def add(self, entry: EntryRow) -> None:
        """Add a link to the chain of its path, and of the path that it moves from."""
        if entry.source_path is None:
            found = self._content_at(entry.path, entry.before)
        else:
            found = self._content_at(entry.source_path, entry.before)
            self.last[entry.source_path] = None
            self._content_at(entry.path, None)
        self.last[entry.path] = _with_found_mode(found, entry.after)

    def _content_at(self, path: str, before: Content | None) -> Content | None:
        """What is at a path, from whoever left it and whoever found it."""
        if path not in self.first:
            self.first[path] = before
            return before
        left = self.last[path]
        if not is_same(left, before):
            self.broken.add(path)
        return _combined(left, before)


def _combined(left: Content | None, found: Content | None) -> Content | None:
    """The same content, with whatever is known of it from either side."""
    if left is None or found is None or ((left.held or not found.held) and left.mode is not None):
        return left
    held = left if left.held else found
    return replace(held, mode=found.mode if left.mode is None else left.mode)


def _with_found_mode(found: Content | None, after: Content | None) -> Content | None:
    """What is there after a change. Whoever does not know the mode keeps the one that was found, if it can have it."""
    if found is None or after is None or after.mode is not None or found.mode is None:
        return after
    if found.mode == DIRECTORY and after.digest != EMPTY_DIGEST:
        return after
    return replace(after, mode=found.mode)
