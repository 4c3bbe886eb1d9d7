"""A project's rows in order of creation. It is changed by making another one, which shares what has not changed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter
from typing import Final

from stepwell.domain.tiers.model import FragmentRow

_CHUNK_ROWS: Final = 256  # that are copied where one of them changes

_serial = attrgetter("serial")
_Chunk = tuple[FragmentRow, ...]


class RowChunks:
    """Rows in chunks, none of them empty."""

    __slots__ = ("_chunks", "_rows")

    def __init__(self, chunks: tuple[_Chunk, ...] = ()) -> None:
        self._chunks = chunks
        self._rows: _Chunk | None = None

    def __iter__(self) -> Iterator[FragmentRow]:
        return chain.from_iterable(self._chunks)

    @property
    def rows(self) -> _Chunk:
        """All of them, made when they are first asked for."""
        if self._rows is None:
            self._rows = tuple(self)
        return self._rows

    def changed(self, replaced: Mapping[int, FragmentRow | None], created: Iterable[FragmentRow]) -> RowChunks:
        """With other rows in the place of some, by their serials, or none; what was created since comes last."""
        chunks = [*self._chunks]
        for at in {bisect_right(chunks, serial, key=_first_serial) - 1 for serial in replaced}:
            after = (replaced.get(row.serial, row) for row in chunks[at])
            chunks[at] = tuple(row for row in after if row is not None)
        last = [*(chunks.pop() if chunks else ()), *sorted(created, key=_serial)]
        chunks += (tuple(last[at : at + _CHUNK_ROWS]) for at in range(0, len(last), _CHUNK_ROWS))
        return RowChunks(tuple(filter(None, chunks)))


def _first_serial(chunk: _Chunk) -> int:
    return chunk[0].serial
