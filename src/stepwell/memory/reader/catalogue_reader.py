"""The catalogue reader: a project's rows and handles at one revision, replayed from shared memory.

`writer.catalogue` describes the log. A reader decodes the records between two ends, the latest record of a fragment or
a body wins, and the result is an immutable `CatalogueState`. With an earlier state of the same log only the records
behind it are decoded, and the two states share what has not changed.

The handle of a body that no row refers to any more is kept until there are many of them, because removing each at once
would need a count of references.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder

from stepwell.domain.tiers.model import FragmentRow
from stepwell.memory.reader.persistent_map import PersistentMap
from stepwell.memory.reader.row_chunks import RowChunks
from stepwell.protocol.handles import BLOCK, AnyRecord, CatalogueEnd, Handle, Moved, Put

_decoder: Decoder[list[AnyRecord]] = Decoder(list[AnyRecord])

_STALE_HANDLES_MAX: Final = 1_000

Find = Callable[[int], memoryview]
"""Returns the bytes of a segment. The caller releases them."""


class Milestone(Struct, frozen=True):
    """An end of a catalogue, and the latest revision that records before it belong to."""

    end: CatalogueEnd
    revision: int


class CatalogueState(Struct, frozen=True):
    """A project's fragments at one revision, by id and in order of creation.

    `before` is the milestone of the state that this one was made from. In a difference between two revisions, `rows`
    has the changed fragments only, and `removed` the ids of the deleted ones.
    """

    reached: Milestone
    rows: PersistentMap[str, FragmentRow]
    handles: PersistentMap[bytes, Handle]
    in_order: RowChunks
    removed: frozenset[str] = frozenset()
    before: Milestone | None = None  # of the state that it was made from

    @property
    def end(self) -> CatalogueEnd:
        """The end of the catalogue that this state was replayed to."""
        return self.reached.end


class _Changes:
    """The net effect of a series of records: rows by id, ids of deleted fragments, and handles by digest."""

    def __init__(self, known: Container[bytes] = ()) -> None:
        self._known = known
        self.rows: dict[str, FragmentRow] = {}
        self.gone: set[str] = set()
        self.handles: dict[bytes, Handle] = {}
        self.revision = 0

    def apply(self, records: Iterable[AnyRecord], since: int = -1) -> None:
        """Apply the records of revisions after `since`, or all of them.

        A move of a body that no row refers to is ignored.
        """
        # Local names, because this loop is most of the time that a first view of many fragments takes.
        rows, gone, handles, latest = self.rows, self.gone, self.handles, self.revision
        for record in records:
            if isinstance(record, Put):
                if record.revision > since:
                    row = record.row
                    rows[row.fragment_id] = row
                    handles[row.digest] = record.handle
                    if gone:
                        gone.discard(row.fragment_id)
                    latest = max(latest, record.revision)
            elif isinstance(record, Moved):
                if record.digest in handles or record.digest in self._known:
                    handles[record.digest] = record.handle
            elif record.revision > since:
                rows.pop(record.fragment_id, None)
                gone.add(record.fragment_id)
                latest = max(latest, record.revision)
        self.revision = latest


def replay(end: CatalogueEnd, find: Find, before: CatalogueState | None = None) -> CatalogueState:
    """Return all fragments of a project. With an earlier state of the same log, only newer records are read."""
    if before is not None and before.end == end:
        return before
    if before is None or not _precedes(before.end, end):
        start = CatalogueEnd(end.project, end.generation, end.base_revision, ())
        before = CatalogueState(Milestone(start, 0), PersistentMap({}), PersistentMap({}), RowChunks())
    changed = _Changes(before.handles)
    for records in _blocks(end, find, before.end):
        changed.apply(records)
    in_order = _in_order(before, changed)
    rows, handles = before.rows.changed(changed.rows, changed.gone), before.handles.changed(changed.handles)
    if len(handles) > 2 * len(rows) + _STALE_HANDLES_MAX:
        handles = PersistentMap({row.digest: handles[row.digest] for row in rows.values()})
    reached = Milestone(end, max(before.reached.revision, changed.revision))
    return CatalogueState(reached, rows, handles, in_order, before=before.reached)


def _in_order(before: CatalogueState, changed: _Changes) -> RowChunks:
    """Return the rows in order of creation. A fragment that was deleted and created again comes last."""
    if not before.rows:
        return before.in_order.changed({}, changed.rows.values())
    created: list[FragmentRow] = []
    replaced: dict[int, FragmentRow | None] = {}
    for fragment_id, row in changed.rows.items():
        known = before.rows.get(fragment_id)
        if known is not None and known.serial == row.serial:
            replaced[known.serial] = row
            continue
        created.append(row)
        if known is not None:
            replaced[known.serial] = None
    for fragment_id in changed.gone:
        if (known := before.rows.get(fragment_id)) is not None:
            replaced[known.serial] = None
    return before.in_order.changed(replaced, created)


def nearest(states: Iterable[CatalogueState], end: CatalogueEnd) -> CatalogueState | None:
    """Return the latest of some states that is not after an end, from which the least has to be read.

    None if there is none.
    """
    earlier = (state for state in states if _precedes(state.end, end))
    return max(earlier, key=lambda state: sum(used for _, used in state.end.segments), default=None)


def _precedes(earlier: CatalogueEnd, later: CatalogueEnd) -> bool:
    """Return True if one end of a log lies at or before another.

    Ends that two threads ask for may come in any order.
    """
    reached = dict(later.segments)
    return earlier.generation == later.generation and all(
        used <= reached.get(number, -1) for number, used in earlier.segments
    )


def changes(end: CatalogueEnd, find: Find, since: int, before: Milestone | None = None) -> CatalogueState | None:
    """Return the fragments that changed or went after a revision, or None if the log does not reach back that far.

    Records before a milestone that is early enough are skipped.
    """
    if since < end.base_revision:
        return None
    is_early = before is not None and before.revision <= since and _precedes(before.end, end)
    changed = _Changes()
    for records in _blocks(end, find, before.end if before and is_early else None, since):
        changed.apply(records, since)
    rows, handles = PersistentMap(changed.rows), PersistentMap(changed.handles)
    in_order = RowChunks().changed({}, changed.rows.values())
    return CatalogueState(Milestone(end, since), rows, handles, in_order, frozenset(changed.gone))


def _blocks(end: CatalogueEnd, find: Find, start: CatalogueEnd | None, since: int = -1) -> Iterator[list[AnyRecord]]:
    """Yield the records between two ends block by block, without the blocks that end at or before a revision."""
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
                    yield _decoder.decode(segment[at : at + length])
                at += length
