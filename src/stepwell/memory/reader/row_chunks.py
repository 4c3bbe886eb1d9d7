"""Row chunks: a project's rows in order of creation, changed by making another sequence that shares unchanged chunks.

A change copies the chunks that it touches, 256 rows each, and no others. New rows have the highest serials and are
appended, so that the chunks stay sorted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Final

from stepwell.domain.tiers.model import FragmentRow

_CHUNK_ROWS: Final = 256  # rows that are copied when one of them changes

_serial = attrgetter("serial")
_Chunk = tuple[FragmentRow, ...]


class RowChunks:
    """An immutable sequence of rows in chunks, none of which is empty. Any thread may read it."""

    __slots__ = ("_chunks", "_rows")

    def __init__(self, chunks: tuple[_Chunk, ...] = ()) -> None:
        self._chunks = chunks
        self._rows: _Chunk | None = None

    def __iter__(self) -> Iterator[FragmentRow]:
        return chain.from_iterable(self._chunks)

    @property
    def rows(self) -> _Chunk:
        """All rows as one tuple, made when it is first asked for."""
        if self._rows is None:
            self._rows = tuple(self)
        return self._rows

    def changed(self, replaced: Mapping[int, FragmentRow | None], created: Iterable[FragmentRow]) -> RowChunks:
        """Return a sequence with some rows replaced, by serial, or removed (None), and the created ones appended.

        Created rows fill up the last chunk first, so that many small changes do not leave many small chunks.
        """
        chunks = [*self._chunks]
        for at in {bisect_right(chunks, serial, key=_first_serial) - 1 for serial in replaced}:
            after = (replaced.get(row.serial, row) for row in chunks[at])
            chunks[at] = tuple(row for row in after if row is not None)
        last = [*(chunks.pop() if chunks else ()), *sorted(created, key=_serial)]
        chunks += (tuple(last[at : at + _CHUNK_ROWS]) for at in range(0, len(last), _CHUNK_ROWS))
        return RowChunks(tuple(filter(None, chunks)))


def _first_serial(chunk: _Chunk) -> int:
    return chunk[0].serial
