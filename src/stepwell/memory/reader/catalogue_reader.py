"""A project as its catalogue tells it: rows and handles at one revision, replayed from shared memory."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder

from stepwell.domain.tiers.model import FragmentRow
from stepwell.memory.reader.persistent_map import PersistentMap
from stepwell.memory.reader.row_chunks import RowChunks
from stepwell.protocol.handles import BLOCK, AnyRecord, CatalogueEnd, Gone, Handle, Moved, Put

_decoder: Decoder[list[AnyRecord]] = Decoder(list[AnyRecord])

_STALE_HANDLES_MAX: Final = 1_000

Find = Callable[[int], memoryview]
"""Gives the bytes of a segment."""


class Milestone(Struct, frozen=True):
    """Up to this end, a catalogue tells of no revision after this one."""

    end: CatalogueEnd
    revision: int


class CatalogueState(Struct, frozen=True):
    """A project's fragments at one revision, by id and in order of creation; of a difference also the removed ones."""

    reached: Milestone
    rows: PersistentMap[str, FragmentRow]
    handles: PersistentMap[bytes, Handle]
    in_order: RowChunks
    removed: frozenset[str] = frozenset()
    before: Milestone | None = None  # of the state that it was made from

    @property
    def end(self) -> CatalogueEnd:
        return self.reached.end


class _Changes:
    """What records come to."""

    def __init__(self, known: Container[bytes] = ()) -> None:
        self._known = known
        self.rows: dict[str, FragmentRow | None] = {}  # None: gone
        self.handles: dict[bytes, Handle] = {}
        self.revision = 0

    def apply(self, records: Iterable[AnyRecord], since: int = -1) -> None:
        """All of them, or those of later revisions."""
        for record in records:
            match record:
                case Put(revision=revision, row=row) if revision > since:
                    self.rows[row.fragment_id] = row
                    self.handles[row.digest] = record.handle
                case Gone(revision=revision) if revision > since:
                    self.rows[record.fragment_id] = None
                case Moved() if record.digest in self.handles or record.digest in self._known:
                    self.handles[record.digest] = record.handle
                    continue
                case _:
                    continue
            self.revision = max(self.revision, revision)


def replay(end: CatalogueEnd, find: Find, before: CatalogueState | None = None) -> CatalogueState:
    """All fragments of a project. With an earlier state of the same catalogue, only what came since is read.

    The two share what has not changed.
    """
    if before is not None and before.end == end:
        return before
    if before is None or not _precedes(before.end, end):
        start = CatalogueEnd(end.project, end.generation, end.base_revision, ())
        before = CatalogueState(Milestone(start, 0), PersistentMap({}), PersistentMap({}), RowChunks())
    changed = _Changes(before.handles)
    changed.apply(_records(end, find, before.end))
    rows, handles = before.rows.changed(changed.rows), before.handles.changed(changed.handles)
    if len(handles) > 2 * len(rows) + _STALE_HANDLES_MAX:
        handles = PersistentMap({row.digest: handles[row.digest] for row in rows.values()})
    reached = Milestone(end, max(before.reached.revision, changed.revision))
    return CatalogueState(reached, rows, handles, _in_order(before, changed.rows), before=before.reached)


def _in_order(before: CatalogueState, changed: Mapping[str, FragmentRow | None]) -> RowChunks:
    """What was deleted and made again is another, and comes last."""
    created = {fragment_id: row for fragment_id, row in changed.items() if row is not None}
    replaced: dict[int, FragmentRow | None] = {}
    for fragment_id in changed if before.rows else ():
        if (known := before.rows.get(fragment_id)) is not None:
            after = changed[fragment_id]
            is_same = after is not None and after.serial == known.serial
            replaced[known.serial] = created.pop(fragment_id) if is_same else None
    return before.in_order.changed(replaced, created.values())


def nearest(states: Iterable[CatalogueState], end: CatalogueEnd) -> CatalogueState | None:
    """The latest of some states that is not after an end: least has to be read from there on."""
    earlier = (state for state in states if _precedes(state.end, end))
    return max(earlier, key=lambda state: sum(used for _, used in state.end.segments), default=None)


def _precedes(earlier: CatalogueEnd, later: CatalogueEnd) -> bool:
    """Whether one end of a catalogue lies before another: what two threads ask for may come in any order."""
    reached = dict(later.segments)
    return earlier.generation == later.generation and all(
        used <= reached.get(number, -1) for number, used in earlier.segments
    )


def changes(end: CatalogueEnd, find: Find, since: int, before: Milestone | None = None) -> CatalogueState | None:
    """The fragments that changed after a revision, and those that went; None if the catalogue is younger.

    What lies before a milestone that is early enough is not looked through.
    """
    if since < end.base_revision:
        return None
    is_early = before is not None and before.revision <= since and _precedes(before.end, end)
    changed = _Changes()
    changed.apply(_records(end, find, before.end if before and is_early else None, since), since)
    rows = {fragment_id: row for fragment_id, row in changed.rows.items() if row is not None}
    in_order = RowChunks().changed({}, rows.values())
    removed = frozenset(changed.rows.keys() - rows.keys())
    return CatalogueState(Milestone(end, since), PersistentMap(rows), PersistentMap(changed.handles), in_order, removed)


def _records(end: CatalogueEnd, find: Find, start: CatalogueEnd | None, since: int = -1) -> Iterator[AnyRecord]:
    """The records of a catalogue between two ends, without the blocks that end before a revision."""
    done = dict(start.segments) if start is not None else {}
    for number, used in end.segments:
        at = done.get(number, 0)
        if at == used:
            continue
        with find(number) as segment:
            while at < used:
                length, revision = BLOCK.unpack_from(segment, at)
                at += BLOCK.size
                if revision > since:
                    yield from _decoder.decode(segment[at : at + length])
                at += length
