"""`IndexedReads`: the reads of a session that need no request, and the reports of them to the manager.

A read is an access: it makes a fragment more recently used. So the session reports its reads to the manager, ahead of
its next request. A session that only reads sends a request now and then all the same, because `find` then returns None:
after a number of reads, and after a time. The answer to this request also tells the session which segments of shared
memory are retired, so that it keeps none of them.

A report is sent at most once. If the connection breaks, its accesses are lost, and nothing else is.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import repeat
from typing import Final

from stepwell import limits
from stepwell.boot import clock_namespace
from stepwell.errors import RuntimeFault
from stepwell.memory.reader.index_reader import IndexReader, KnownRecord
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import IndexOpened, ReadsReported

_READS_MASK: Final = limits.INDEX_READS_MAX - 1
_REPORT_NS: Final = limits.INDEX_REPORT_MS * 1_000_000


class IndexedReads:
    """The index of fragments as one session uses it. The channel owns it, and any number of threads may use it.

    `reads` has the records that were read and not reported yet, in order. It is a deque without a lock: one call adds
    to it or takes from it. `misses` counts the reads that became requests; threads may lose some of these counts.
    """

    def __init__(self, mappings: Mappings, projects: tuple[str, ...] | None) -> None:
        self._mappings = mappings
        self.index = IndexReader(mappings, None if projects is None else frozenset(projects))
        self.reads: deque[KnownRecord] = deque()
        self.misses = 0
        self.report_at_ns = 0
        self._is_closed = False

    def in_forked_child(self) -> None:
        """Begin without an index, and without the reads of the parent."""
        self.index.close()
        self.reads = deque()
        self.misses = 0

    def open(self, opened: IndexOpened, descriptors: Iterable[int]) -> None:
        """Use the index that the manager has opened. A process that may not map so much memory reads without it.

        So does one whose clock differs from the manager's.
        """
        segments = (opened.slots, opened.cells)
        for segment, descriptor in zip(segments, descriptors, strict=True):
            with suppress(RuntimeFault):
                self._mappings.map_segment(segment.number, segment.size, descriptor)
        if opened.clock != clock_namespace():  # then a dead manager's index would be valid too long, or never
            return
        self.index.open(opened.slots.number, opened.cells.number, opened.key)
        if self._is_closed:  # by another thread, before the message came
            self.index.close()

    def close(self) -> None:
        """Use no index any more. Reads that are not reported yet stay."""
        self._is_closed = True
        self.index.close()

    def find(self, project: str, fragment_id: str) -> KnownRecord | None:
        """Return the record of a fragment, or None if the manager has to be asked. It is no access: see `count`."""
        found = self.index.find((project, fragment_id), self.report_at_ns)
        if found is None:
            self.note_miss()
        return found

    def note_miss(self) -> None:
        """Note that a read becomes a request, which brings the reads before it along."""
        self.misses += 1
        self.report_at_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + _REPORT_NS

    def count(self, found: KnownRecord) -> None:
        """Count an access to a fragment that was found. The manager is told later."""
        reads = self.reads
        reads.append(found)
        if not len(reads) & _READS_MASK:  # again, if no report was possible or threads read meanwhile
            self.report_at_ns = 0
        found.count()

    def pop_reports(self) -> list[ReadsReported]:
        """Return reports of all reads up to now, and forget these reads.

        What other threads read meanwhile is for their own requests, so that no thread reports for ever.
        """
        popleft, drained = self.reads.popleft, list[KnownRecord]()
        with suppress(IndexError):  # another thread reports, too
            drained.extend(popleft() for _ in repeat(None, len(self.reads)))
        counts = Counter(drained)
        # In the order of the latest read of each, because that decides about recency.
        found = [(*record.key, counts[record]) for record in dict.fromkeys(reversed(drained))][::-1]
        reports: list[ReadsReported] = []
        for start in range(0, len(found), limits.INDEX_READS_PER_REPORT_MAX):
            misses, self.misses = min(self.misses, limits.INDEX_COUNT_PER_REPORT_MAX), 0
            reports.append(ReadsReported(tuple(found[start : start + limits.INDEX_READS_PER_REPORT_MAX]), misses))
        return reports
