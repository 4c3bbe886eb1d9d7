"""The parts of the table of fragments: an entry, the sums and the order of use of one tier, and one project.

`table.FragmentTable` has one `TierIndex` for each tier over all projects, and a `ProjectIndex` for each project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.equal_bodies import EqualBodies
from stepwell.domain.tiers.lru import InnerLruList, LruList, LruNode
from stepwell.domain.tiers.model import COLD, HOT, FragmentRow, Tier
from stepwell.domain.tiers.serial_index import SerialIndex
from stepwell.domain.tiers.source_outline import stands_for_file

KEPT_TIERS: Final = (HOT, COLD)
"""The tiers in which the body of a fragment with `keep` can be. Warm is none of them: reads would not bring it back."""


class FragmentEntry(LruNode):
    """A fragment in its tier: its row, its places in two LRU lists, and the counters that reading changes.

    `access_count` counts all reads of the fragment, `accesses_since_move` those in its present tier, which promote it.
    """

    row: FragmentRow
    tick: int  # the order of use over all lists: the larger, the later
    touched_at_ms: int  # the later of arriving in the tier and being read there
    last_accessed_ms: int
    access_count: int = 0
    accesses_since_move: int = 0

    @property
    def expires_at_ms(self) -> int | None:
        """The time at which the fragment expires, as reads have moved it; None for never."""
        row = self.row
        if row.expires_at_ms is None or row.expires_after_ms is None:
            return row.expires_at_ms
        return max(row.expires_at_ms, self.last_accessed_ms + row.expires_after_ms)

    def is_expired(self, now_ms: int) -> bool:
        """Return True if the fragment has expired: then it is absent, even while it is in the table."""
        return (at_ms := self.expires_at_ms) is not None and at_ms <= now_ms


class Usage(Struct, array_like=True):
    """The sums of a tier: rows, their tokens, and the bytes of their bodies. Equal bodies count each time."""

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


class TierIndex:
    """One tier, of one project or of all: its order of use, its usage, and how many of its rows stand for a file."""

    __slots__ = ("files", "lru", "usage")

    def __init__(self, lru: LruList[FragmentEntry] | InnerLruList[FragmentEntry]) -> None:
        self.lru = lru
        self.usage = Usage()
        self.files = 0

    def append(self, entries: Sequence[FragmentEntry], added: int, tokens: int, size: int, files: int) -> None:
        """Append entries, which are in no list, as the most recently used.

        With them the tier has `added` more entries, and more tokens, bytes and rows that stand for a file.
        """
        usage = self.usage
        usage.entries += added
        usage.tokens += tokens
        usage.bytes += size
        self.files += files
        self.lru.extend(entries)

    def remove(self, entry: FragmentEntry) -> None:
        """Remove an entry, in a way that `put_back` can undo."""
        self.usage.remove(entry.row)
        self.files -= stands_for_file(entry.row)
        self.lru.unlink(entry)

    def demote(self, entry: FragmentEntry, below: TierIndex) -> None:
        """Move an entry to the index of the tier below, as the most recently used there. It cannot be undone."""
        row, files = entry.row, stands_for_file(entry.row)
        self.usage.remove(row)
        below.usage.add(row)
        self.files -= files
        below.files += files
        self.lru.unlink(entry)
        below.lru.extend((entry,))

    def put_back(self, entry: FragmentEntry) -> None:
        """Undo `remove`: the entry has the place in the order of use that it had."""
        self.usage.add(entry.row)
        self.files += stands_for_file(entry.row)
        self.lru.relink(entry)


class ProjectIndex:
    """The fragments of one project: by id, in their order of creation, and an index for each tier.

    A dict for each project, and not one for all of them, saves a tuple of project and id for each fragment.
    """

    __slots__ = ("by_serial", "entries", "equal_bodies", "kept", "name", "tiers")

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: dict[str, FragmentEntry] = {}
        # An index of ids and not of rows, so that replacing a row changes nothing.
        self.by_serial = SerialIndex(_serial_in(self.entries))
        self.tiers = {tier: TierIndex(InnerLruList()) for tier in Tier}
        self.equal_bodies: EqualBodies | None = None  # until a store asks for it
        self.kept = {tier: TierIndex(InnerLruList()) for tier in KEPT_TIERS}

    def index_serials(self) -> None:
        """Make the index of serials anew, for entries that were restored."""
        self.by_serial = SerialIndex(_serial_in(self.entries), self.entries)


def _serial_in(entries: Mapping[str, FragmentEntry]) -> Callable[[str], int]:
    """Return a function from the id of a fragment to its serial. It refers to no project, so that it is in no cycle."""
    return lambda fragment_id: entries[fragment_id].row.serial
