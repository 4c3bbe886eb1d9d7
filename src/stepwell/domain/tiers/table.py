"""The table of fragments: rows, and what is derived from them (orders of use, sums, pages by creation).

Whatever is derived is kept up to date by `swap`, which takes a row for another, and by its inverse `unswap`.
Nothing in here is a scan: victims come from rings, sums from counters, pages from a sorted index.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence

from msgspec import Struct
from sortedcontainers import SortedDict

from stepwell.domain.tiers.lru import InnerLruList, LruList, LruNode
from stepwell.domain.tiers.model import HOT, WARM, FragmentRow, Tier, TierBudget
from stepwell.domain.tiers.serial_index import SerialIndex

Key = tuple[str, str]


class FragmentEntry(LruNode):
    """A row in its tier, with what reading it changes: none of this is a revision."""

    __slots__ = ("access_count", "accesses_since_move", "last_accessed_ms", "row", "tick", "touched_at_ms")

    def __init__(
        self,
        row: FragmentRow,
        tick: int,
        touched_at_ms: int,
        last_accessed_ms: int,
        *,
        access_count: int = 0,
        accesses_since_move: int = 0,
    ) -> None:
        self.row = row
        self.tick = tick  # the order of use, across rings
        self.touched_at_ms = touched_at_ms  # the later of arriving in the tier and being read there
        self.last_accessed_ms = last_accessed_ms
        self.access_count = access_count
        self.accesses_since_move = accesses_since_move


class Usage(Struct, array_like=True):
    """What a tier holds."""

    entries: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, row: FragmentRow) -> None:
        self.entries += 1
        self.tokens += row.tokens
        self.bytes += row.size

    def remove(self, row: FragmentRow) -> None:
        self.entries -= 1
        self.tokens -= row.tokens
        self.bytes -= row.size

    def plus(self, other: Usage) -> Usage:
        return Usage(self.entries + other.entries, self.tokens + other.tokens, self.bytes + other.bytes)

    def copy(self) -> Usage:
        return Usage(self.entries, self.tokens, self.bytes)


class _TierIndex:
    """One tier, of one project or of all: its order of use and its sums."""

    __slots__ = ("ring", "usage")

    def __init__(self, ring: LruList[FragmentEntry] | InnerLruList[FragmentEntry]) -> None:
        self.ring = ring
        self.usage = Usage()

    def put(self, entries: Sequence[FragmentEntry], tokens: int, size: int) -> None:
        """Take in entries that have so many tokens and bytes together."""
        usage = self.usage
        usage.entries += len(entries)
        usage.tokens += tokens
        usage.bytes += size
        self.ring.extend(entries)

    def take_out(self, entry: FragmentEntry) -> None:
        self.usage.remove(entry.row)
        self.ring.take_out(entry)

    def put_back(self, entry: FragmentEntry) -> None:
        self.usage.add(entry.row)
        self.ring.put_back(entry)


class _Project:
    __slots__ = ("by_serial", "name", "shelves")

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_serial: SerialIndex[str] = SerialIndex()  # ids: whatever replaces a row has its place
        self.shelves = {tier: _TierIndex(InnerLruList()) for tier in Tier}


class FragmentTable:
    """All fragments, by key, each in exactly one tier."""

    def __init__(self) -> None:
        self.entries: dict[Key, FragmentEntry] = {}
        self.next_serial = 1
        self._tick = 0
        self._shelves = {tier: _TierIndex(LruList()) for tier in Tier}
        self._projects: SortedDict[str, _Project] = SortedDict()
        self._removed: list[FragmentEntry] = []  # since the last `settle`, for `unswap`
        self._emptied: set[str] = set()  # projects to forget at the next `settle`, if they are still empty
        self.touched: dict[Key, None] | None = None  # what was read, where somebody writes that down

    @property
    def tick(self) -> int:
        """The latest moment of use."""
        return self._tick

    @property
    def hot_tokens(self) -> int:
        """What hot holds of its budget."""
        return self._shelves[HOT].usage.tokens

    def project_named(self, name: str) -> str | None:
        """A project's name as all of its rows have it, if it exists: one text for all of them."""
        project = self._projects.get(name)
        return project.name if project else None

    def get(self, key: Key) -> FragmentRow | None:
        entry = self.entries.get(key)
        return entry.row if entry else None

    def __len__(self) -> int:
        return len(self.entries)

    def swap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Take `before` out and put `after` in, as the most recently used of its tier."""
        old = self._take_out(self.entries[before.key]) if before else None
        if old:
            self._removed.append(old)
        if after is None:
            assert old
            self._unlist(old)
            return
        if old is None:
            self.add((after,))
            return
        self._tick += 1
        entry = FragmentEntry(
            after, self._tick, after.placed_at_ms, old.last_accessed_ms, access_count=old.access_count
        )
        self.entries[after.key] = entry
        self._put(entry)

    def add(self, rows: Sequence[FragmentRow]) -> None:
        """Put in rows that nobody was before, all of one project and tier, as the most recently used there."""
        name, tier = rows[0].project, rows[0].tier
        project = self._projects.get(name) or self._begin(name)
        added: list[FragmentEntry] = []
        serials: list[int] = []
        names: list[str] = []
        entries, tick, tokens, size = self.entries, self._tick, 0, 0
        for row in rows:
            tick += 1
            entry = entries[name, row.fragment_id] = FragmentEntry(row, tick, row.placed_at_ms, row.created_at_ms)
            added.append(entry)
            serials.append(row.serial)
            names.append(row.fragment_id)
            tokens += row.tokens
            size += row.size
        self._tick = tick
        self.next_serial = serials[-1] + 1
        project.by_serial.extend(serials, names)
        self._shelves[tier].put(added, tokens, size)
        project.shelves[tier].put(added, tokens, size)

    def unswap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Undo the latest `swap` that is not yet undone or settled."""
        if after:
            entry = self._take_out(self.entries[after.key])
            self._tick -= 1
            if before is None:
                self._unlist(entry)
                self.next_serial = after.serial
        if before:
            entry = self._removed.pop()
            self._list(entry)
            self._shelves[before.tier].put_back(entry)
            self._projects[before.project].shelves[before.tier].put_back(entry)

    def restore(self, entries: Sequence[FragmentEntry], next_serial: int, tick: int) -> None:
        """Be as a table was whose entries these are, in the order of their use."""
        self.next_serial, self._tick = next_serial, tick
        by_project: dict[str, dict[int, str]] = {}
        for entry in entries:
            row = entry.row
            self.entries[row.key] = entry
            by_project.setdefault(row.project, {})[row.serial] = row.fragment_id
        for name, by_serial in by_project.items():
            self._begin(name).by_serial = SerialIndex(by_serial)
        for entry in entries:
            self._put(entry)

    def settle(self) -> None:
        """Forget how to undo: what was swapped stays."""
        self._removed.clear()
        for name in self._emptied:
            if not self._projects[name].by_serial:
                del self._projects[name]
        self._emptied.clear()

    def touch(self, entry: FragmentEntry, now_ms: int) -> None:
        """A read: it bumps recency and count, and nothing else."""
        self._tick += 1
        entry.tick = self._tick
        entry.touched_at_ms = entry.last_accessed_ms = now_ms
        entry.access_count += 1
        entry.accesses_since_move += 1
        row = entry.row
        if self.touched is not None:
            self.touched[row.key] = None
        self._shelves[row.tier].ring.touch(entry)
        self._projects[row.project].shelves[row.tier].ring.touch(entry)

    def usage(self, tier: Tier, projects: Collection[str] | None = None) -> Usage:
        """What a tier holds, of some projects or of all."""
        if projects is None:
            return self._shelves[tier].usage.copy()
        total = Usage()
        for name in projects:
            if project := self._projects.get(name):
                total = total.plus(project.shelves[tier].usage)
        return total

    def has_room(self, row: FragmentRow, before: FragmentRow | None, budget: TierBudget) -> bool:
        """Whether a row can take its place, or that of the one before it, with nobody else moving."""
        usage = self._shelves[row.tier].usage
        same = before is not None and before.tier is row.tier
        if row.tier is HOT:
            return usage.tokens + row.tokens - (before.tokens if before and same else 0) <= budget.hot_tokens
        bound = budget.warm_entries if row.tier is WARM else budget.cold_entries
        return usage.entries + (not same) <= bound

    def oldest(self, tier: Tier, projects: Collection[str] | None = None) -> Iterator[FragmentEntry]:
        """The least recently used first, of some projects or of all."""
        if projects is None:
            return iter(self._shelves[tier].ring)
        rings = [self._projects[name].shelves[tier].ring for name in projects if name in self._projects]
        return heapq.merge(*rings, key=lambda entry: entry.tick)

    def created_after(self, project: str, serial: int) -> Iterator[FragmentEntry]:
        """A project's fragments in order of creation, beginning behind `serial`."""
        if found := self._projects.get(project):
            for fragment_id in found.by_serial.after(serial):
                yield self.entries[project, fragment_id]

    def projects_after(self, name: str, within: Collection[str] | None = None) -> Iterator[str]:
        """The projects that exist by use, in order of name, of some or of all."""
        if within is not None:
            return (each for each in sorted(within) if each > name and each in self._projects)
        return iter(self._projects.irange(name, inclusive=(False, True)))

    def _put(self, entry: FragmentEntry) -> None:
        """Into its tier, as the most recently used."""
        row = entry.row
        self._shelves[row.tier].put((entry,), row.tokens, row.size)
        self._projects[row.project].shelves[row.tier].put((entry,), row.tokens, row.size)

    def _take_out(self, entry: FragmentEntry) -> FragmentEntry:
        """Out of its tier; whoever replaces it takes its place in the listings."""
        row = entry.row
        self._shelves[row.tier].take_out(entry)
        self._projects[row.project].shelves[row.tier].take_out(entry)
        return entry

    def _list(self, entry: FragmentEntry) -> None:
        row = entry.row
        project = self._projects.get(row.project) or self._begin(row.project)
        self.entries[row.key] = entry
        project.by_serial[row.serial] = row.fragment_id

    def _begin(self, name: str) -> _Project:
        """A project exists by use."""
        project = self._projects[name] = _Project(name)
        return project

    def _unlist(self, entry: FragmentEntry) -> None:
        row = entry.row
        project = self._projects[row.project]
        del self.entries[row.key]
        del project.by_serial[row.serial]
        if not project.by_serial:
            self._emptied.add(row.project)
