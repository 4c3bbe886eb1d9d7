"""The table of fragments: rows, and what is derived from them (orders of use, sums, pages by creation).

Whatever is derived is kept up to date by `swap`, which takes a row for another, and by its inverse `unswap`.
Nothing in here is a scan: victims come from rings, sums from counters, pages from a sorted index.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from msgspec import Struct
from sortedcontainers import SortedDict

from stepwell.domain.fragment import FragmentRow, Tier
from stepwell.domain.ring import Link, Ring

Key = tuple[str, str]


class Entry:
    """A row in its tier, with what reading it changes: none of this is a revision."""

    __slots__ = (
        "access_count",
        "accesses_since_move",
        "in_project",
        "in_tier",
        "last_accessed_ms",
        "row",
        "tick",
        "touched_at_ms",
    )

    def __init__(self, row: FragmentRow, tick: int) -> None:
        self.row = row
        self.tick = tick  # the order of use, across rings
        self.touched_at_ms = row.placed_at_ms  # the later of arriving in the tier and being read there
        self.last_accessed_ms = row.created_at_ms
        self.access_count = 0
        self.accesses_since_move = 0
        self.in_tier: Link[Entry] = Link(self)
        self.in_project: Link[Entry] = Link(self)

    def release(self) -> None:
        """Break the cycle with the links, so that no garbage collector is needed to free what was removed."""
        self.in_tier.value = self.in_project.value = None


class Usage(Struct, array_like=True):
    """What a tier holds."""

    entries: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, row: FragmentRow, sign: int = 1) -> None:
        self.entries += sign
        self.tokens += sign * row.tokens
        self.bytes += sign * row.size

    def plus(self, other: Usage) -> Usage:
        return Usage(self.entries + other.entries, self.tokens + other.tokens, self.bytes + other.bytes)

    def copy(self) -> Usage:
        return Usage(self.entries, self.tokens, self.bytes)


class _Shelf:
    """One tier, of one project or of all: its order of use and its sums."""

    __slots__ = ("ring", "usage")

    def __init__(self) -> None:
        self.ring: Ring[Entry] = Ring()
        self.usage = Usage()


class _Project:
    __slots__ = ("by_serial", "shelves")

    def __init__(self) -> None:
        self.by_serial: SortedDict[int, Entry] = SortedDict()
        self.shelves = {tier: _Shelf() for tier in Tier}


class FragmentTable:
    """All fragments, by key, each in exactly one tier."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.next_serial = 1
        self._tick = 0
        self._shelves = {tier: _Shelf() for tier in Tier}
        self._projects: SortedDict[str, _Project] = SortedDict()
        self._removed: list[Entry] = []  # since the last `settle`, for `unswap`
        self._emptied: set[str] = set()  # projects to forget at the next `settle`, if they are still empty

    def get(self, key: Key) -> FragmentRow | None:
        entry = self.entries.get(key)
        return entry.row if entry else None

    def __len__(self) -> int:
        return len(self.entries)

    def swap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Take `before` out and put `after` in, as the most recently used of its tier."""
        old = self._remove(before) if before else None
        if after is None:
            return
        self._tick += 1
        entry = Entry(after, self._tick)
        if old:
            entry.access_count = old.access_count
            entry.last_accessed_ms = old.last_accessed_ms
        else:
            self.next_serial = after.serial + 1
        self._index(entry)
        self._shelves[after.tier].ring.append(entry.in_tier)
        self._projects[after.project].shelves[after.tier].ring.append(entry.in_project)

    def unswap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Undo the latest `swap` that is not yet undone or settled."""
        if after:
            entry = self.entries[after.key]
            self._unlink(entry)
            self._unindex(entry)
            self._tick -= 1
            if before is None:
                self.next_serial = after.serial
        if before:
            entry = self._removed.pop()
            self._index(entry)
            entry.in_tier.put_back()
            entry.in_project.put_back()

    def settle(self) -> None:
        """Forget how to undo: what was swapped stays."""
        for entry in self._removed:
            entry.release()
        self._removed.clear()
        for name in self._emptied:
            if not self._projects[name].by_serial:
                del self._projects[name]
        self._emptied.clear()

    def touch(self, key: Key, now_ms: int) -> None:
        """A read: it bumps recency and count, and nothing else."""
        entry = self.entries[key]
        self._tick += 1
        entry.tick = self._tick
        entry.touched_at_ms = entry.last_accessed_ms = now_ms
        entry.access_count += 1
        entry.accesses_since_move += 1
        row = entry.row
        self._shelves[row.tier].ring.touch(entry.in_tier)
        self._projects[row.project].shelves[row.tier].ring.touch(entry.in_project)

    def usage(self, tier: Tier, projects: Collection[str] | None = None) -> Usage:
        """What a tier holds, of some projects or of all."""
        if projects is None:
            return self._shelves[tier].usage.copy()
        total = Usage()
        for name in projects:
            if project := self._projects.get(name):
                total = total.plus(project.shelves[tier].usage)
        return total

    def oldest(self, tier: Tier, projects: Collection[str] | None = None) -> Iterator[Entry]:
        """The least recently used first, of some projects or of all."""
        if projects is None:
            return iter(self._shelves[tier].ring)
        rings = [self._projects[name].shelves[tier].ring for name in projects if name in self._projects]
        return heapq.merge(*rings, key=lambda entry: entry.tick)

    def created_after(self, project: str, serial: int) -> Iterator[Entry]:
        """A project's fragments in order of creation, beginning behind `serial`."""
        if found := self._projects.get(project):
            for at in found.by_serial.irange(serial, inclusive=(False, True)):
                yield found.by_serial[at]

    def projects_after(self, name: str) -> Iterator[str]:
        """The projects that exist by use, in order of name."""
        return iter(self._projects.irange(name, inclusive=(False, True)))

    def _remove(self, row: FragmentRow) -> Entry:
        entry = self.entries[row.key]
        self._unlink(entry)
        self._unindex(entry)
        self._removed.append(entry)
        return entry

    @staticmethod
    def _unlink(entry: Entry) -> None:
        entry.in_tier.take_out()
        entry.in_project.take_out()

    def _index(self, entry: Entry) -> None:
        row = entry.row
        project = self._projects.get(row.project)
        if project is None:
            project = self._projects[row.project] = _Project()
        self.entries[row.key] = entry
        project.by_serial[row.serial] = entry
        project.shelves[row.tier].usage.add(row)
        self._shelves[row.tier].usage.add(row)

    def _unindex(self, entry: Entry) -> None:
        row = entry.row
        project = self._projects[row.project]
        del self.entries[row.key]
        del project.by_serial[row.serial]
        if not project.by_serial:
            self._emptied.add(row.project)
        project.shelves[row.tier].usage.add(row, -1)
        self._shelves[row.tier].usage.add(row, -1)
