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
from typing import Final

from stepwell import limits
from stepwell.errors import BodyGone, RuntimeFault
from stepwell.memory.reader.index_reader import IndexReader, Key, KnownRecord
from stepwell.memory.reader.mappings import Mappings
from stepwell.protocol.messages import IndexOpened, ReadsReported

_REPORT_NS: Final = limits.INDEX_REPORT_MS * 1_000_000


class IndexedReads:
    """The index of fragments as one session uses it. The channel owns it, and any number of threads may use it.

    `reads` has the keys that were read and not reported yet. It is a deque without a lock: one call adds to it or takes
    from it. `misses` counts the reads that became requests; threads may lose some of these counts.
    """

    def __init__(self, mappings: Mappings, projects: tuple[str, ...] | None) -> None:
        self._projects = None if projects is None else frozenset(projects)
        self._mappings = mappings
        self.index = IndexReader(mappings)
        self.reads: deque[Key] = deque()
        self.misses = 0
        self._report_at_ns = 0

    def in_forked_child(self) -> None:
        """Begin without an index, and without the reads of the parent."""
        self.close()
        self.reads = deque()
        self.misses = 0

    def open(self, opened: IndexOpened, descriptors: Iterable[int]) -> None:
        """Use the index that the manager has opened. A process that may not map so much memory reads without it."""
        segments = (opened.slots, opened.cells)
        for segment, descriptor in zip(segments, descriptors, strict=True):
            with suppress(RuntimeFault):
                self._mappings.map_segment(segment.number, segment.size, descriptor)
        self.index.open(opened.slots.number, opened.cells.number, opened.key)

    def close(self) -> None:
        """Use no index any more. Reads that are not reported yet stay."""
        self.index.close()

    def find(self, project: str, fragment_id: str) -> KnownRecord | None:
        """Return the record of a fragment, or None if the manager has to be asked. It is no access: see `count`.

        A project outside of the session's scope is never looked up, because the manager refuses and logs it.
        """
        if self._projects is not None and project not in self._projects:
            return None
        found = self.index.find((project, fragment_id), self._report_at_ns)
        if found is None:
            self.misses += 1
            self._report_at_ns = (
                time.clock_gettime_ns(time.CLOCK_BOOTTIME) + _REPORT_NS
            )  # with the request that follows
        return found

    def body_of(self, found: KnownRecord) -> memoryview | None:
        """Return the bytes of a fragment's body, or None if its segment is not mapped: an answer brings it along."""
        try:
            return self._mappings.find(found.handle)
        except BodyGone:
            return None

    def count(self, found: KnownRecord) -> None:
        """Count an access to a fragment that was found. The manager is told later."""
        self.reads.append(found.key)
        if len(self.reads) >= limits.INDEX_READS_MAX:
            self._report_at_ns = 0
        self.index.count(found)

    def pop_report(self) -> ReadsReported | None:
        """Return the next report and forget its reads, or None if there is nothing to report."""
        counts: Counter[Key] = Counter()
        with suppress(IndexError):
            for _ in range(limits.INDEX_READS_PER_REPORT_MAX):
                counts[self.reads.popleft()] += 1
        if not counts:
            return None
        misses, self.misses = self.misses, 0
        reads = tuple((project, fragment_id, count) for (project, fragment_id), count in counts.items())
        return ReadsReported(reads, misses)
