"""A project as its catalogue tells it: rows and handles at one revision, replayed from shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder

from stepwell.domain.fragment import FragmentRow
from stepwell.protocol.handles import BLOCK, AnyRecord, CatalogueEnd, Gone, Handle, Moved, Put

_decoder: Decoder[list[AnyRecord]] = Decoder(list[AnyRecord])

_STALE_HANDLES_MAX: Final = 1_000

Find = Callable[[int], memoryview]
"""Gives the bytes of a segment."""


class Replayed(Struct, frozen=True, weakref=True):
    """A project's fragments at one revision, by id; the removed ones, if it is a difference."""

    end: CatalogueEnd
    rows: dict[str, FragmentRow]
    handles: dict[bytes, Handle]
    removed: frozenset[str] = frozenset()


def replay(end: CatalogueEnd, find: Find, before: Replayed | None = None) -> Replayed:
    """All fragments of a project. With an earlier state of the same catalogue, only what came since is read."""
    if before is not None and before.end == end:
        return before
    if before is not None and not _precedes(before.end, end):
        before = None
    rows = dict(before.rows) if before else {}
    handles = dict(before.handles) if before else {}
    for record in _records(end, find, before.end if before else None):
        match record:
            case Put(row=row):
                rows[row.fragment_id] = row
                handles[row.digest] = record.handle
            case Gone():
                rows.pop(record.fragment_id, None)
            case Moved() if record.digest in handles:
                handles[record.digest] = record.handle
            case _:
                pass
    if len(handles) > 2 * len(rows) + _STALE_HANDLES_MAX:
        handles = {row.digest: handles[row.digest] for row in rows.values()}
    return Replayed(end, rows, handles)


def _precedes(earlier: CatalogueEnd, later: CatalogueEnd) -> bool:
    """Whether one end of a catalogue lies before another: what two threads ask for may come in any order."""
    reached = dict(later.segments)
    return earlier.generation == later.generation and all(
        used <= reached.get(number, -1) for number, used in earlier.segments
    )


def changes(end: CatalogueEnd, find: Find, since: int) -> Replayed | None:
    """The fragments that changed after a revision, and those that went; None if the catalogue is younger."""
    if since < end.base_revision:
        return None
    rows: dict[str, FragmentRow] = {}
    handles: dict[bytes, Handle] = {}
    removed: set[str] = set()
    for record in _records(end, find, None, since):
        match record:
            case Put(row=row) if record.revision > since:
                rows[row.fragment_id] = row
                handles[row.digest] = record.handle
                removed.discard(row.fragment_id)
            case Gone() if record.revision > since:
                rows.pop(record.fragment_id, None)
                removed.add(record.fragment_id)
            case Moved() if record.digest in handles:
                handles[record.digest] = record.handle
            case _:
                pass
    return Replayed(end, rows, handles, frozenset(removed))


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
