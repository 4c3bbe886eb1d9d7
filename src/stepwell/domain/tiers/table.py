"""The table of fragments: the rows, and everything that is derived from them.

    entries      every fragment by (project, id)
    LRU lists    the order of use, for each tier, over all projects and in each project
    usage        entries, tokens and bytes, for each tier, of all projects and of each project
    by_serial    the ids of each project in order of creation, for pages

`swap` and its inverse `unswap` keep all of it up to date. No operation scans: victims come from the LRU lists, sums
from counters, pages from a sorted index. A fragment is in exactly one tier, and a project exists as long as it has
fragments.

Besides the rows, an entry holds what reading changes: recency and access counts. These are in no row and have no
revision. A durable manager writes them from time to time; `start_tracking_reads` and `drain_read_entries` tell it which
entries were read since.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from msgspec import Struct
from sortedcontainers import SortedDict

from stepwell.domain.tiers.lru import InnerLruList, LruList, LruNode
from stepwell.domain.tiers.model import HOT, WARM, FragmentRow, Tier, TierBudget
from stepwell.domain.tiers.serial_index import SerialIndex

Key = tuple[str, str]


class FragmentEntry(LruNode):
    """A fragment in its tier: its row, its places in two LRU lists, and the counters that reading changes.

    `access_count` counts all reads of the fragment, `accesses_since_move` those in its present tier, which promote it.
    """

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
        self.tick = tick  # the order of use over all lists: the larger, the later
        self.touched_at_ms = touched_at_ms  # the later of arriving in the tier and being read there
        self.last_accessed_ms = last_accessed_ms
        self.access_count = access_count
        self.accesses_since_move = accesses_since_move


class Usage(Struct, array_like=True):
    """The sums of a tier: fragments, their tokens, and the bytes of their bodies. Equal bodies count each time."""

    entries: int = 0
    tokens: int = 0
    bytes: int = 0

    def add(self, row: FragmentRow) -> None:
        """Count a row that enters the tier."""
        self.entries += 1
        self.tokens += row.tokens
        self.bytes += row.size

    def remove(self, row: FragmentRow) -> None:
        """Count a row that leaves the tier."""
        self.entries -= 1
        self.tokens -= row.tokens
        self.bytes -= row.size

    def plus(self, other: Usage) -> Usage:
        """Return the sum of two usages."""
        return Usage(self.entries + other.entries, self.tokens + other.tokens, self.bytes + other.bytes)

    def copy(self) -> Usage:
        """Return a usage that the caller may change."""
        return Usage(self.entries, self.tokens, self.bytes)


class _TierIndex:
    """One tier, of one project or of all: its order of use and its usage."""

    __slots__ = ("lru", "usage")

    def __init__(self, lru: LruList[FragmentEntry] | InnerLruList[FragmentEntry]) -> None:
        self.lru = lru
        self.usage = Usage()

    def append(self, entries: Sequence[FragmentEntry], tokens: int, size: int) -> None:
        """Add entries as the most recently used. They have `tokens` and `size` bytes together."""
        usage = self.usage
        usage.entries += len(entries)
        usage.tokens += tokens
        usage.bytes += size
        self.lru.extend(entries)

    def remove(self, entry: FragmentEntry) -> None:
        """Remove an entry, in a way that `put_back` can undo."""
        self.usage.remove(entry.row)
        self.lru.unlink(entry)

    def put_back(self, entry: FragmentEntry) -> None:
        """Undo `remove`: the entry has the place in the order of use that it had."""
        self.usage.add(entry.row)
        self.lru.relink(entry)


class _Project:
    """The fragments of one project: their order of creation, and an index for each tier."""

    __slots__ = ("by_serial", "name", "tiers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_serial: SerialIndex[str] = SerialIndex()  # ids and not rows, so that replacing a row changes nothing
        self.tiers = {tier: _TierIndex(InnerLruList()) for tier in Tier}


class FragmentTable:
    """All fragments by key, each in exactly one tier.

    Owned by the `State`. Deciders read `entries`, `next_serial` and the methods that return something; only `machine`
    and `State` call the methods that change the table.
    """

    def __init__(self) -> None:
        self.entries: dict[Key, FragmentEntry] = {}
        self.next_serial = 1
        self._tick = 0
        self._tiers = {tier: _TierIndex(LruList()) for tier in Tier}
        self._projects: SortedDict[str, _Project] = SortedDict()
        # For `unswap`: the entries that left since the last `forget_undo`, and the projects that lost their last
        # fragment. An empty project is deleted late, because undoing needs its indexes.
        self._removed: list[FragmentEntry] = []
        self._emptied: set[str] = set()
        self._read: dict[Key, None] | None = None  # keys that were read, in order; None: reads are not tracked

    @property
    def tick(self) -> int:
        """The number of the latest use. It grows with each read, insertion and replacement."""
        return self._tick

    @property
    def hot_tokens(self) -> int:
        """The tokens in hot, which the budget bounds."""
        return self._tiers[HOT].usage.tokens

    def interned_project(self, name: str) -> str | None:
        """Return the string object that all rows of a project share as its name, or None if it has no fragments.

        A new row that uses it costs no memory for its project's name.
        """
        project = self._projects.get(name)
        return project.name if project else None

    def get(self, key: Key) -> FragmentRow | None:
        """Return the row with this key, or None."""
        entry = self.entries.get(key)
        return entry.row if entry else None

    def __len__(self) -> int:
        return len(self.entries)

    def swap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Replace `before` by `after`, which becomes the most recently used of its tier.

        The access count of the fragment stays, its count of accesses since the last move begins anew.
        """
        old = self._remove_from_tier(self.entries[before.key]) if before else None
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
        self._append_to_tier(entry)

    def add(self, rows: Sequence[FragmentRow]) -> None:
        """Insert new rows, all of one project and tier, as the most recently used there."""
        name, tier = rows[0].project, rows[0].tier
        project = self._projects.get(name) or self._add_project(name)
        added: list[FragmentEntry] = []
        serials: list[int] = []
        names: list[str] = []
        # Local names and sums: this loop is a large part of a store on the fast path.
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
        self._tiers[tier].append(added, tokens, size)
        project.tiers[tier].append(added, tokens, size)

    def unswap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Undo `swap(before, after)`, which must be the latest that was neither undone nor accepted yet."""
        if after:
            entry = self._remove_from_tier(self.entries[after.key])
            self._tick -= 1
            if before is None:
                self._unlist(entry)
                self.next_serial = after.serial
        if before:
            entry = self._removed.pop()
            self._list(entry)
            self._tiers[before.tier].put_back(entry)
            self._projects[before.project].tiers[before.tier].put_back(entry)

    def restore(self, entries: Sequence[FragmentEntry], next_serial: int, tick: int) -> None:
        """Fill an empty table with the entries of an earlier one, which are in the order of their use."""
        self.next_serial, self._tick = next_serial, tick
        by_project: dict[str, dict[int, str]] = {}
        for entry in entries:
            row = entry.row
            self.entries[row.key] = entry
            by_project.setdefault(row.project, {})[row.serial] = row.fragment_id
        for name, by_serial in by_project.items():
            self._add_project(name).by_serial = SerialIndex(by_serial)
        for entry in entries:
            self._append_to_tier(entry)

    def forget_undo(self) -> None:
        """Accept all swaps: drop the entries that were removed, and the projects that are still empty."""
        self._removed.clear()
        for name in self._emptied:
            if not self._projects[name].by_serial:
                del self._projects[name]
        self._emptied.clear()

    def touch(self, entry: FragmentEntry, now_ms: int) -> None:
        """Count a read of an entry and make it the most recently used. Its row stays."""
        self._tick += 1
        entry.tick = self._tick
        entry.touched_at_ms = entry.last_accessed_ms = now_ms
        entry.access_count += 1
        entry.accesses_since_move += 1
        row = entry.row
        if self._read is not None:
            self._read[row.key] = None
        self._tiers[row.tier].lru.touch(entry)
        self._projects[row.project].tiers[row.tier].lru.touch(entry)

    def start_tracking_reads(self) -> None:
        """Remember from now on which entries are read, for `drain_read_entries`."""
        self._read = {}

    def drain_read_entries(self, limit: int) -> list[FragmentEntry]:
        """Return up to `limit` entries that were read since they were last returned, the longest ago first.

        An entry that has been deleted meanwhile is left out, though it counts. An empty list need not mean that no
        reads are left: `has_read_entries` says that.
        """
        if not self._read:
            return []
        keys = list(islice(self._read, limit))
        for key in keys:
            del self._read[key]
        return [self.entries[key] for key in keys if key in self.entries]

    @property
    def has_read_entries(self) -> bool:
        """True if `drain_read_entries` would find more."""
        return bool(self._read)

    def usage(self, tier: Tier, projects: Collection[str] | None = None) -> Usage:
        """Return the usage of a tier, of some projects or of all. The caller may change the value."""
        if projects is None:
            return self._tiers[tier].usage.copy()
        total = Usage()
        for name in projects:
            if project := self._projects.get(name):
                total = total.plus(project.tiers[tier].usage)
        return total

    def has_room(self, row: FragmentRow, before: FragmentRow | None, budget: TierBudget) -> bool:
        """Return True if a row fits into its tier in place of `before`, without a demotion of another fragment."""
        usage = self._tiers[row.tier].usage
        same = before is not None and before.tier is row.tier
        if row.tier is HOT:
            return usage.tokens + row.tokens - (before.tokens if before and same else 0) <= budget.hot_tokens
        bound = budget.warm_entries if row.tier is WARM else budget.cold_entries
        return usage.entries + (not same) <= bound

    def oldest(self, tier: Tier, projects: Collection[str] | None = None) -> Iterator[FragmentEntry]:
        """Iterate over a tier from the least recently used entry on, of some projects or of all."""
        if projects is None:
            return iter(self._tiers[tier].lru)
        # Ticks are unique over all lists, so that merging by them gives the order of use over the projects.
        lists = [self._projects[name].tiers[tier].lru for name in projects if name in self._projects]
        return heapq.merge(*lists, key=lambda entry: entry.tick)

    def created_after(self, project: str, serial: int) -> Iterator[FragmentEntry]:
        """Iterate over a project's fragments in order of creation, beginning behind `serial`."""
        if found := self._projects.get(project):
            for fragment_id in found.by_serial.after(serial):
                yield self.entries[project, fragment_id]

    def projects_after(self, name: str, within: Collection[str] | None = None) -> Iterator[str]:
        """Iterate over the projects that have fragments, in order of name, beginning behind `name`."""
        if within is not None:
            return (each for each in sorted(within) if each > name and each in self._projects)
        return iter(self._projects.irange(name, inclusive=(False, True)))

    def _append_to_tier(self, entry: FragmentEntry) -> None:
        row = entry.row
        self._tiers[row.tier].append((entry,), row.tokens, row.size)
        self._projects[row.project].tiers[row.tier].append((entry,), row.tokens, row.size)

    def _remove_from_tier(self, entry: FragmentEntry) -> FragmentEntry:
        """Remove an entry from its tier only: the row that replaces it has the same place in the order of creation."""
        row = entry.row
        self._tiers[row.tier].remove(entry)
        self._projects[row.project].tiers[row.tier].remove(entry)
        return entry

    def _list(self, entry: FragmentEntry) -> None:
        """File an entry under its key and serial number."""
        row = entry.row
        project = self._projects.get(row.project) or self._add_project(row.project)
        self.entries[row.key] = entry
        project.by_serial[row.serial] = row.fragment_id

    def _unlist(self, entry: FragmentEntry) -> None:
        """Undo `_list`. A project that is empty then is deleted by the next `forget_undo`."""
        row = entry.row
        project = self._projects[row.project]
        del self.entries[row.key]
        del project.by_serial[row.serial]
        if not project.by_serial:
            self._emptied.add(row.project)

    def _add_project(self, name: str) -> _Project:
        project = self._projects[name] = _Project(name)
        return project
