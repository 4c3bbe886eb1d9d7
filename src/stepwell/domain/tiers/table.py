"""The table of fragments: the rows, and everything that is derived from them.

    entries      the fragments of each project by id
    LRU lists    the order of use, for each tier, over all projects and in each project
    usage        entries, tokens and bytes, for each tier, of all projects and of each project
    kept         the same for the fragments with `keep`, which are in no tier's list and no tier's usage
    expiry       the fragments that expire, by time
    files        the number of rows that stand for a file, for each tier, of all projects and of each project
    by_serial    the ids of each project in order of creation, for pages

`swap` and its inverse `unswap` keep all of it up to date. No operation scans: victims come from the LRU lists, sums
from counters, pages from a sorted index. A fragment is in exactly one tier, and a project exists as long as it has
fragments. "Tier" means the list of a tier here: a fragment with `keep` has a list of its own for the place of its body.

Besides the rows, an entry holds what reading changes: recency and access counts. These are in no row and have no
revision. A durable manager writes them from time to time; `start_tracking_reads` and `drain_read_entries` tell it which
entries were read since.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, islice
from typing import Final

from sortedcontainers import SortedDict

from stepwell import limits
from stepwell.domain.tiers.equal_bodies import EqualBodies
from stepwell.domain.tiers.expiry import ExpiryOrder
from stepwell.domain.tiers.lru import LruList
from stepwell.domain.tiers.model import HOT, WARM, FragmentRow, Tier, TierBudget
from stepwell.domain.tiers.source_outline import FILE_KIND, stands_for_file
from stepwell.domain.tiers.tier_index import KEPT_TIERS, FragmentEntry, ProjectIndex, TierIndex, Usage

Key = tuple[str, str]

Demotion = tuple[FragmentRow, FragmentRow]
"""The row of a fragment before and after it moves to a lower tier."""

_NONE: Final[Mapping[int, Sequence[Demotion]]] = {}


class FragmentTable:
    """All fragments by key, each in exactly one tier.

    Owned by the `State`. Deciders call the methods that return something; only `machine` and `State` call those that
    change the table.
    """

    def __init__(self) -> None:
        self.next_serial = 1  # the smallest serial that no fragment has had
        self._count = 0
        self._tick = 0
        self._tiers = {tier: TierIndex(LruList()) for tier in Tier}
        self._kept = {tier: TierIndex(LruList()) for tier in KEPT_TIERS}
        self.expiry = ExpiryOrder()
        self._projects: SortedDict[str, ProjectIndex] = SortedDict()
        # For `unswap`, since the last `forget_undo`: the entries that left, and the projects that lost their last
        # fragment. An empty project is deleted late, because undoing needs its indexes.
        self._removed: list[FragmentEntry] = []
        self._serials: list[int] = []  # `next_serial` before each fragment that was created
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

    def serial_at(self, revision: int) -> int:
        """Return the serial of a fragment that is created at a revision: the revision itself, unless it is taken.

        Most fragments then have one number object for both, which saves memory.
        """
        return max(revision, self.next_serial)

    def find(self, project: str, fragment_id: str) -> FragmentEntry | None:
        """Return the entry of a fragment, or None."""
        found = self._projects.get(project)
        return found.entries.get(fragment_id) if found else None

    def by_id(self, project: str) -> Mapping[str, FragmentEntry]:
        """Return the entries of a project by id. The mapping follows the table as long as the project exists."""
        found = self._projects.get(project)
        return found.entries if found else {}

    def get(self, key: Key) -> FragmentRow | None:
        """Return the row with this key, or None."""
        entry = self.find(*key)
        return entry.row if entry else None

    @property
    def entries(self) -> dict[Key, FragmentEntry]:
        """All entries by key, in a new dict. It takes long if there are many; checks need it."""
        projects = self._projects.items()
        return {(name, each): entry for name, project in projects for each, entry in project.entries.items()}

    def __iter__(self) -> Iterator[FragmentEntry]:
        return chain.from_iterable(project.entries.values() for project in self._projects.values())

    def __len__(self) -> int:
        return self._count

    def swap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Replace `before` by `after`, which becomes the most recently used of its tier.

        The access count of the fragment stays, its count of accesses since the last move begins anew.
        """
        old = self._remove_from_tier(self._projects[before.project].entries[before.fragment_id]) if before else None
        if old:
            self._removed.append(old)
            self._note_body(before, after)
        if after is None:
            assert old
            self._unlist(old)
            if old.row.expires_at_ms is not None:
                self.expiry.set(old.row.key, None)
            return
        if old is None:
            self._serials.append(self.next_serial)
            self._create(after)
            return
        self._tick += 1
        entry = FragmentEntry(
            after, self._tick, after.placed_at_ms, old.last_accessed_ms, access_count=old.access_count
        )
        self._projects[after.project].entries[after.fragment_id] = entry
        self._append_to_tier(entry)
        if after.expires_at_ms is not None or old.row.expires_at_ms is not None:
            self.expiry.set(after.key, entry.expires_at_ms)

    def _create(self, row: FragmentRow) -> None:
        """Insert the row of a new fragment as the most recently used."""
        if row.keep:
            self._tick += 1
            entry = FragmentEntry(row, self._tick, row.placed_at_ms, row.created_at_ms)
            self.next_serial = row.serial + 1
            self._list(entry)
            self._append_to_tier(entry)
            self._note_body(None, row)
        else:
            self.add((row,))
        if row.expires_at_ms is not None:
            self.expiry.set(row.key, row.expires_at_ms)

    def add(self, rows: Sequence[FragmentRow], demotions: Mapping[int, Sequence[Demotion]] = _NONE) -> None:
        """Insert rows, all of one project and tier, as the most recently used there. None has `keep` or expires.

        A row of a fragment that is in this tier already replaces the row of that fragment. `demotions` belong to the
        steps of rows, by the revision of these rows, and come before the row. Replacements and demotions cannot be
        undone.
        """
        name, tier = rows[0].project, rows[0].tier
        project = self._projects.get(name) or self._add_project(name)
        used: list[FragmentEntry] = []
        names: list[str] = []  # of new fragments
        # Local names and sums: this loop is a large part of a store on the fast path.
        entries, tick, tokens, size, files = project.entries, self._tick, 0, 0, 0
        equal_bodies = project.equal_bodies
        for row in rows:
            for before, after in demotions.get(row.revision, ()) if demotions else ():
                tick += 1
                self._demote(before, after, tick)
            tick += 1
            fragment_id = row.fragment_id
            entry = entries.get(fragment_id)
            if equal_bodies is not None:
                equal_bodies.note(entry.row if entry else None, row)
            if entry is None:
                entry = entries[fragment_id] = FragmentEntry(row, tick, row.placed_at_ms, row.created_at_ms)
                names.append(fragment_id)
                self.next_serial = row.serial + 1
            else:
                old = entry.row
                self._tiers[tier].lru.unlink(entry)
                project.tiers[tier].lru.unlink(entry)
                entry.row, entry.tick, entry.touched_at_ms, entry.accesses_since_move = row, tick, row.placed_at_ms, 0
                tokens -= old.tokens
                size -= old.size
                if old.kind == FILE_KIND:
                    files -= stands_for_file(old)
            used.append(entry)
            tokens += row.tokens
            size += row.size
            if row.kind == FILE_KIND:
                files += stands_for_file(row)
        self._tick = tick
        self._count += len(names)
        project.by_serial.extend(names)
        self._tiers[tier].append(used, len(names), tokens, size, files)
        project.tiers[tier].append(used, len(names), tokens, size, files)

    def unswap(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Undo `swap(before, after)`, which must be the latest that was neither undone nor accepted yet."""
        self._note_body(after, before)
        if after:
            entry = self._remove_from_tier(self._projects[after.project].entries[after.fragment_id])
            self._tick -= 1
            if after.expires_at_ms is not None:
                self.expiry.set(after.key, None)
            if before is None:
                self._unlist(entry)
                self.next_serial = self._serials.pop()
        if before:
            entry = self._removed.pop()
            self._list(entry)
            for index in self._indexes(before):
                index.put_back(entry)
            if before.expires_at_ms is not None:
                self.expiry.set(before.key, entry.expires_at_ms)

    def restore(self, entries: Sequence[FragmentEntry], next_serial: int, tick: int) -> None:
        """Fill an empty table with the entries of an earlier one, which are in the order of their use."""
        self.next_serial, self._tick = next_serial, tick
        for entry in entries:
            row = entry.row
            project = self._projects.get(row.project) or self._add_project(row.project)
            project.entries[row.fragment_id] = entry
            self._append_to_tier(entry)
            if row.expires_at_ms is not None:
                self.expiry.set(row.key, entry.expires_at_ms)
        for project in self._projects.values():
            project.index_serials()
            self._count += len(project.entries)

    def forget_undo(self) -> None:
        """Accept all swaps: drop the entries that were removed, and the projects that are still empty.

        The links of removed entries are for undo alone, and lead from each to the next one. They are cut, because a
        chain of a hundred thousand would be freed by recursion, which is more than a stack holds.
        """
        for entry in self._removed:
            entry.cut()
        self._removed.clear()
        self._serials.clear()
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
        if row.keep:
            for index in self._indexes(row):
                index.lru.touch(entry)
        else:
            self._tiers[row.tier].lru.touch(entry)
            self._projects[row.project].tiers[row.tier].lru.touch(entry)
        if row.expires_after_ms is not None:
            self.expiry.set(row.key, entry.expires_at_ms)

    def count_reads(self, reads: Iterable[tuple[str, str, int]], now_ms: int) -> list[FragmentEntry]:
        """Count reads that were made while the fragments were hot: project, id and number of each.

        Return the entries of the fragments that are still there. One that is hot still becomes the most recently used.
        The reads of another one belong to the time before it moved: they do not count towards a promotion.
        """
        found: list[FragmentEntry] = []
        hot: list[FragmentEntry] = []
        kept: list[FragmentEntry] = []
        hot_by_project: dict[str, list[FragmentEntry]] = {}
        tick, name, entries, hot_there = self._tick, "", self.by_id(""), hot
        for project, fragment_id, count in reads:
            if project != name:
                name, entries, hot_there = project, self.by_id(project), hot_by_project.setdefault(project, [])
            entry = entries.get(fragment_id)
            if entry is None:
                continue
            found.append(entry)
            entry.access_count += count
            # A fragment whose expiry a read moves is read by request only. These reads were of what it replaced.
            if entry.row.expires_after_ms is None:
                entry.last_accessed_ms = now_ms
            if entry.row.keep:
                kept.append(entry)
            elif entry.row.tier is HOT:
                tick += 1
                entry.tick = tick
                entry.touched_at_ms = now_ms
                entry.accesses_since_move += count
                hot.append(entry)
                hot_there.append(entry)
        self._tick = tick
        self._tiers[HOT].lru.touch_all(hot)
        for name, touched in hot_by_project.items():
            if touched:
                self._projects[name].tiers[HOT].lru.touch_all(touched)
        for entry in kept:
            self._tick += 1
            entry.tick = self._tick
            entry.touched_at_ms = now_ms
            for index in self._indexes(entry.row):
                index.lru.touch(entry)
        if self._read is not None:
            self._read.update((entry.row.key, None) for entry in found)
        return found

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
        return [entry for key in keys if (entry := self.find(*key))]

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

    def kept_usage(self, projects: Collection[str] | None = None) -> dict[Tier, Usage]:
        """Return the usage of the fragments with `keep`, by the tier of their bodies, of some projects or of all."""
        if projects is None:
            return {tier: self._kept[tier].usage.copy() for tier in KEPT_TIERS}
        found = [self._projects[name] for name in projects if name in self._projects]
        return {
            tier: reduce(Usage.plus, (project.kept[tier].usage for project in found), Usage()) for tier in KEPT_TIERS
        }

    @property
    def kept_entries(self) -> int:
        """The number of fragments with `keep`, which the budget bounds."""
        return sum(index.usage.entries for index in self._kept.values())

    def files(self, tier: Tier, projects: Collection[str] | None = None) -> int:
        """Return how many rows of a tier stand for a file, of some projects or of all. `usage` counts them, too."""
        if projects is None:
            return self._tiers[tier].files
        return sum(self._projects[name].tiers[tier].files for name in projects if name in self._projects)

    def has_room(self, row: FragmentRow, before: FragmentRow | None, budget: TierBudget) -> bool:
        """Return True if a row fits into its tier in place of `before`, without a demotion of another fragment."""
        if row.keep:
            return self.kept_entries + (before is None or not before.keep) <= budget.kept_entries
        usage = self._tiers[row.tier].usage
        same = before is not None and before.tier is row.tier and not before.keep
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

    def oldest_kept(self, tier: Tier = HOT) -> Iterator[FragmentEntry]:
        """Iterate over the fragments with `keep` whose bodies are in a tier, from the least recently used on."""
        return iter(self._kept[tier].lru)

    def created_after(self, project: str, serial: int) -> Iterator[FragmentEntry]:
        """Iterate over a project's fragments in order of creation, beginning behind `serial`."""
        if found := self._projects.get(project):
            yield from map(found.entries.__getitem__, found.by_serial.after(serial))

    def projects_after(self, name: str, within: Collection[str] | None = None) -> Iterator[str]:
        """Iterate over the projects that have fragments, in order of name, beginning behind `name`."""
        if within is not None:
            return (each for each in sorted(within) if each > name and each in self._projects)
        return iter(self._projects.irange(name, inclusive=(False, True)))

    def _demote(self, before: FragmentRow, after: FragmentRow, tick: int) -> None:
        """Move a fragment to a lower tier. Its entry stays, which takes half of the time of `swap`."""
        project = self._projects[before.project]
        entry = project.entries[before.fragment_id]
        self._tiers[before.tier].demote(entry, self._tiers[after.tier])
        project.tiers[before.tier].demote(entry, project.tiers[after.tier])
        entry.row, entry.tick, entry.touched_at_ms, entry.accesses_since_move = after, tick, after.placed_at_ms, 0

    def equal_bodies(self, project: str) -> EqualBodies | None:
        """Return the index of a project's bodies as it is, or None if no store has asked for it."""
        found = self._projects.get(project)
        return found.equal_bodies if found else None

    def fill_equal_bodies(self, project: str) -> EqualBodies | None:
        """Return the index of a project's bodies, after entering some more of them; None if there is no project.

        It derives what is in the table already, so that no command sees a difference: a decider may call it.
        """
        found = self._projects.get(project)
        if found is None:
            return None
        index = found.equal_bodies = found.equal_bodies or EqualBodies()
        if not index.is_complete:
            entries = [*islice(self.created_after(project, index.filled_to), limits.EQUAL_BODIES_ROWS_PER_STEP)]
            index.fill(entry.row for entry in entries)
            index.is_complete = len(entries) < limits.EQUAL_BODIES_ROWS_PER_STEP
        return index

    def _note_body(self, before: FragmentRow | None, after: FragmentRow | None) -> None:
        """Have the index of bodies follow a change, if the project has one."""
        row = after or before
        project = self._projects.get(row.project) if row else None
        if project is not None and project.equal_bodies is not None:
            project.equal_bodies.note(before, after)

    def _indexes(self, row: FragmentRow) -> tuple[TierIndex, TierIndex]:
        """Return the two indexes in which a row is: that of all projects and that of its own."""
        project, tier = self._projects[row.project], row.tier
        return (self._kept[tier], project.kept[tier]) if row.keep else (self._tiers[tier], project.tiers[tier])

    def _append_to_tier(self, entry: FragmentEntry) -> None:
        row = entry.row
        files = int(stands_for_file(row))
        for index in self._indexes(row):
            index.append((entry,), 1, row.tokens, row.size, files)

    def _remove_from_tier(self, entry: FragmentEntry) -> FragmentEntry:
        """Remove an entry from its tier only: the row that replaces it has the same place in the order of creation."""
        for index in self._indexes(entry.row):
            index.remove(entry)
        return entry

    def _list(self, entry: FragmentEntry) -> None:
        """File an entry under its key and serial number."""
        row = entry.row
        project = self._projects.get(row.project) or self._add_project(row.project)
        self._count += row.fragment_id not in project.entries
        project.entries[row.fragment_id] = entry
        project.by_serial.add(row.serial, row.fragment_id)

    def _unlist(self, entry: FragmentEntry) -> None:
        """Undo `_list`. A project that is empty then is deleted by the next `forget_undo`."""
        row = entry.row
        project = self._projects[row.project]
        project.by_serial.remove(row.serial)
        del project.entries[row.fragment_id]
        self._count -= 1
        if not project.by_serial:
            self._emptied.add(row.project)

    def _add_project(self, name: str) -> ProjectIndex:
        project = self._projects[name] = ProjectIndex(name)
        return project
