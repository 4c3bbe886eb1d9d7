"""Readers of the index that have forgotten a check. The tests of the index have to tell them from the real one."""

from __future__ import annotations

from stepwell.memory.reader import index_reader
from stepwell.memory.reader.index_reader import IndexReader, Key, KnownRecord
from stepwell.protocol.fragment_index import SLOT_WORDS, STAMP, decode_record, hash_of


class WithoutSequence(IndexReader):
    """Reads whatever is there, also while a turn is being published."""

    def find(self, key: Key, until_ns: int) -> KnownRecord | None:
        assert until_ns
        index = self._index
        if index is None or not (slot := index_reader._slot_of(index, hash_of(index.key, *key))):
            return None
        record = decode_record(index_reader._record_at(index, slot))
        at = slot * SLOT_WORDS
        return KnownRecord(key, index.words, at, (index.words[at + STAMP], 0, 0), record)


class WithoutValidity(IndexReader):
    """Reads for as long as it has the index, whatever has become of the manager."""

    def find(self, key: Key, until_ns: int) -> KnownRecord | None:
        assert until_ns
        return None if self._index is None else index_reader._look_up(self._index, key)
