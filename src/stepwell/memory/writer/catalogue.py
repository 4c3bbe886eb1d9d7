"""Catalogues: the rows of a project as a log in shared memory, which readers replay without a request.

A catalogue is a chain of segments filled with blocks of records. Only its end moves. A view of a project is therefore
the end at one revision, and the changes between two revisions are the records between two ends.

A project gets a catalogue when a client asks for a view of it. Its rows are then listed in slices, while changes are
appended as they happen. A row that is listed after it changed says the same as the change did, so that the order
between the two does not matter. Once most records are stale, the project is listed anew into a second log beside the
first one, which serves until the new log is complete.

A catalogue can be dropped at any time, because it is built again on demand. Want of memory therefore never fails a
command: the catalogue goes instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice

from msgspec.msgpack import Encoder

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow, Tier
from stepwell.domain.tiers.table import FragmentTable
from stepwell.domain.verdict import AnyChange
from stepwell.memory.writer.arena import Arena, OutOfRoom, SystemShortage
from stepwell.memory.writer.body_store import BodyStore
from stepwell.memory.writer.segments import Segment
from stepwell.protocol.handles import BLOCK, AnyRecord, CatalogueEnd, Gone, Handle, Moved, Put

_encoder = Encoder()


class _RecordLog:
    """Blocks of records in raw segments of the arena. A block is one encoded list of records with its latest revision.

    `generation` tells apart two logs of one project. `base_revision` is the revision at which the listing was complete,
    None before that; `listed` is the serial of the last row that was listed.
    """

    def __init__(self, arena: Arena, generation: int) -> None:
        self._arena = arena
        self._segments: list[Segment] = []
        self._size = limits.CATALOGUE_SEGMENT_BYTES_MIN
        self._pending: list[AnyRecord] = []
        self.generation = generation
        self.records = 0
        self.base_revision: int | None = None
        self.listed = 0

    def add(self, records: Iterable[AnyRecord], revision: int) -> None:
        """Append records. A full block is written at once."""
        self._pending.extend(records)
        if len(self._pending) >= limits.CATALOGUE_ROWS_PER_SLICE:
            self.flush(revision)

    def flush(self, revision: int) -> None:
        """Write the pending records as one block. Raise `OutOfRoom` if there is no space.

        The first segment is small, because most projects are; each further one is twice as large, up to a bound. A
        block never spans two segments.
        """
        if not self._pending:
            return
        payload = _encoder.encode(self._pending)
        self.records += len(self._pending)
        self._pending.clear()
        length = BLOCK.size + len(payload)
        if not self._segments or self._segments[-1].size - self._segments[-1].used < length:
            self._segments.append(self._arena.add_raw_segment(max(self._size, -(-length // 4096) * 4096)))
            self._size = min(self._size * 2, limits.CATALOGUE_SEGMENT_BYTES_MAX)
        segment = self._segments[-1]
        try:
            segment.allocate(segment.used + length)
        except OSError as error:
            raise SystemShortage.of(error) from error
        segment.write(segment.used, BLOCK.pack(len(payload), revision))
        segment.write(segment.used + BLOCK.size, payload)
        segment.used += length

    def end(self, project: str) -> CatalogueEnd:
        """Return the present end of the log. The listing must be complete."""
        assert self.base_revision is not None
        segments = tuple((segment.number, segment.used) for segment in self._segments)
        return CatalogueEnd(project, self.generation, self.base_revision, segments)

    def drop(self) -> None:
        """Retire the segments."""
        for segment in self._segments:
            self._arena.drop_raw_segment(segment.number)


class _Catalogue:
    """The log of a project, and the log that will replace it while the project is listed anew.

    `asked_at_s` is the time of the last request for a view. It decides which catalogue is dropped first. `as_owner` is
    the value that all bodies of this project alone share in the index of owners.
    """

    def __init__(self, project: str, log: _RecordLog, now_s: float) -> None:
        self.as_owner = (project,)
        self.log = log
        self.successor: _RecordLog | None = None
        self.asked_at_s = now_s

    @property
    def logs(self) -> Iterable[_RecordLog]:
        """The logs that get new records."""
        return (self.log,) if self.successor is None else (self.log, self.successor)


class Catalogues:
    """The catalogues of the projects that clients have asked for.

    The state owner creates it; only the manager's thread uses it. The number of catalogues is bounded: the one that was
    asked for the longest ago goes first, and idle ones go by themselves.
    """

    def __init__(self, fragments: FragmentTable, bodies: BodyStore) -> None:
        self._fragments = fragments
        self._bodies = bodies
        self._by_project: dict[str, _Catalogue] = {}  # the one asked for the longest ago first
        self._owners: dict[bytes, tuple[str, ...]] = {}  # projects whose catalogue names a body, or once did
        self._refused: dict[str, OutOfRoom | MemoryError] = {}  # projects whose rows found no room, and why
        self._unlisted: dict[str, None] = {}  # projects of which a log is not complete
        self._generations = bodies.numbers  # like segments, generations never repeat within an epoch
        self._revision = 0
        bodies.on_move = self._on_move
        bodies.on_drop = self._on_drop

    def __len__(self) -> int:
        return len(self._by_project)

    def note(self, changes: Iterable[AnyChange], revision: int) -> None:
        """Append the changed rows to the catalogues of their projects.

        Projects without a catalogue cost one lookup. A row that was replaced or deleted again in the same transaction
        may have no body any more, and is left out.
        """
        self._revision = revision
        for change in changes:
            row = change.after or change.before
            if isinstance(row, FragmentRow) and (catalogue := self._by_project.get(row.project)):
                record = self._put(row, revision) if change.after else Gone(revision, row.fragment_id)
                if record is not None:
                    self._add(row.project, catalogue, record)

    def end(self, project: str, revision: int, now_s: float) -> CatalogueEnd | None:
        """Return the end of an existing catalogue, or None where `open` would have to list the project."""
        catalogue = self._by_project.get(project)
        if catalogue is None or catalogue.log.base_revision is None:
            return None
        catalogue.asked_at_s = now_s
        try:
            catalogue.log.flush(revision)
        except OutOfRoom:
            self._drop(project)
            return None
        return catalogue.log.end(project)

    def open(self, project: str, revision: int, now_s: float) -> CatalogueEnd | None:
        """Return the end of a project's catalogue, or None while the project is being listed by `work`.

        Raise `OutOfRoom` if the catalogue has no space. An empty project needs no catalogue.
        """
        self._revision = revision
        if refused := self._refused.pop(project, None):
            raise SystemShortage.of(refused) if isinstance(refused, MemoryError) else type(refused)(str(refused))
        catalogue = self._by_project.pop(project, None)
        if catalogue is None:
            if not self._entries(project):
                return CatalogueEnd(project, 0, revision, ())
            while len(self._by_project) >= limits.CATALOGUES_MAX:
                self.drop_oldest(0)
            catalogue = _Catalogue(project, _RecordLog(self._bodies.arena, next(self._generations)), now_s)
            self._unlisted[project] = None
        self._by_project[project] = catalogue
        catalogue.asked_at_s = now_s
        if catalogue.log.base_revision is None:
            return None
        try:
            catalogue.log.flush(revision)
        except OutOfRoom:
            self._drop(project)
            raise
        return catalogue.log.end(project)

    def work(self) -> bool:
        """List one slice of a project that needs it. Return True if there may be more.

        A complete successor replaces its log at once; views of the old log stay readable in the segments that clients
        have mapped. If there is no space, the catalogue is dropped and the reason is kept for the next `open`.
        """
        for project in self._unlisted:
            catalogue = self._by_project[project]
            log = catalogue.successor or catalogue.log
            try:
                is_complete = self._list(project, log)
            except (OutOfRoom, MemoryError) as error:
                self._drop(project)
                if len(self._refused) < limits.CATALOGUES_MAX:
                    self._refused[project] = error
                return True
            if is_complete:
                del self._unlisted[project]
                if log is catalogue.successor:
                    catalogue.log.drop()
                    catalogue.log, catalogue.successor = log, None
            return True
        return False

    def drop_oldest(self, idle_s: float = limits.CATALOGUE_DROP_SECONDS) -> bool:
        """Drop the catalogue that was asked for the longest ago. Return True if one was dropped.

        A catalogue that was asked for within `idle_s` stays. A dropped one is built again on demand, so that a
        catalogue in frequent use stays.
        """
        for project, catalogue in self._by_project.items():
            if time.monotonic() - catalogue.asked_at_s < idle_s:
                return False
            self._drop(project)
            return True
        return False

    def housekeep(self, now_s: float) -> None:
        """Drop the catalogues that no client has asked for in a long time.

        Start to list those anew that are mostly stale.
        """
        for project, catalogue in [*self._by_project.items()]:
            if now_s - catalogue.asked_at_s > limits.CATALOGUE_IDLE_SECONDS:
                self._drop(project)
            elif catalogue.successor is None and self._is_mostly_stale(project, catalogue.log):
                catalogue.successor = _RecordLog(self._bodies.arena, next(self._generations))
                self._unlisted[project] = None

    def _is_mostly_stale(self, project: str, log: _RecordLog) -> bool:
        """Return True if a log has more than twice as many records as its project has rows."""
        return log.records > 2 * self._entries(project) + limits.CATALOGUE_RECORDS_MIN

    def _entries(self, project: str) -> int:
        """Return the number of a project's rows."""
        return sum(self._fragments.usage(tier, (project,)).entries for tier in Tier)

    def _list(self, project: str, log: _RecordLog) -> bool:
        """List one slice of rows. Return True if the listing is complete."""
        entries = islice(self._fragments.created_after(project, log.listed), limits.CATALOGUE_ROWS_PER_SLICE)
        rows = [entry.row for entry in entries]
        if rows:
            log.listed = rows[-1].serial
            for row in rows:
                self._add_owner(row)
            handles, revision = self._bodies.handles, self._revision  # each row in the table has a body
            log.add([Put(revision, row, handles[row.digest]) for row in rows], revision)
        if len(rows) == limits.CATALOGUE_ROWS_PER_SLICE:
            return False
        log.flush(self._revision)
        log.base_revision = self._revision
        return True

    def _put(self, row: FragmentRow, revision: int) -> Put | None:
        """Return the record of a row, or None if its body is gone again."""
        handle = self._bodies.find(row.digest)
        if handle is None:  # replaced or deleted again in the same transaction
            return None
        self._add_owner(row)
        return Put(revision, row, handle)

    def _add_owner(self, row: FragmentRow) -> None:
        """Remember that the catalogue of a row's project names its body."""
        alone = self._by_project[row.project].as_owner
        owners = self._owners.setdefault(row.digest, alone)
        if owners is not alone and row.project not in owners:
            self._owners[row.digest] = (*owners, row.project)

    def _on_drop(self, digest: bytes) -> None:
        """Forget which projects refer to a body that was freed."""
        self._owners.pop(digest, None)

    def _on_move(self, digest: bytes, handle: Handle) -> None:
        """Append the new handle of a body to the catalogues that refer to it.

        Without it readers would hold a handle into a retired segment, and would have to ask the manager for the new
        place.
        """
        for project in self._owners.get(digest, ()):
            if catalogue := self._by_project.get(project):
                self._add(project, catalogue, Moved(digest, handle))

    def _add(self, project: str, catalogue: _Catalogue, record: AnyRecord) -> None:
        """Append a record to all logs of a project. For want of space the catalogue is dropped."""
        try:
            for log in catalogue.logs:
                log.add((record,), self._revision)
        except (OutOfRoom, MemoryError):  # it is built again on demand
            self._drop(project)

    def _drop(self, project: str) -> None:
        self._unlisted.pop(project, None)
        for log in self._by_project.pop(project).logs:
            log.drop()
