"""The layout of the index of reads: words that do not overlap, and a hash that no choice of names defeats."""

import platform
import random

import pytest

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow, Tier
from stepwell.protocol import fragment_index as layout
from stepwell.protocol.fragment_index import IndexRecord, decode_record, encode_record, hash_of, place_of
from stepwell.protocol.handles import Handle

KEY = bytes(range(layout.KEY_BYTES))


class TestLayout:
    def test_words_are_apart(self) -> None:
        """Each word of the header and of a slot is one of its own, and the payload begins behind them."""
        header = [layout.SEQUENCE, layout.VALID_UNTIL, layout.CELLS, layout.NOW_MS]
        slot = [layout.STAMP, layout.LENGTH, layout.NEXT, layout.ACCESS_COUNT, layout.ACCESSED_MS]
        assert len({*header}) == len(header)
        assert max(header) < layout.SLOT_WORDS
        assert sorted(slot) == [*range(layout.PAYLOAD // layout.WORD_BYTES)]
        assert layout.PAYLOAD + layout.PAYLOAD_BYTES == layout.SLOT_BYTES

    def test_everything_is_aligned(self) -> None:
        """A word is written in one step only at a multiple of its size; a cell lies in one page."""
        assert layout.SLOT_BYTES % layout.WORD_BYTES == 0
        assert {layout.HASH, layout.SLOT} == {*range(layout.CELL_WORDS)}
        assert 4_096 % layout.SLOT_BYTES == 4_096 % layout.CELL_BYTES == 0

    def test_tables_have_sizes_that_the_masks_need(self) -> None:
        """The number of cells is a power of two, also after each growth, as far as it goes."""
        cells = limits.INDEX_CELLS_MIN
        while cells <= limits.INDEX_CELLS_MAX:
            assert cells & (cells - 1) == 0
            cells *= limits.INDEX_GROWTH
        assert cells > limits.INDEX_SLOTS_MAX

    def test_record_survives_the_bytes(self) -> None:
        """What is decoded is what was encoded."""
        row = FragmentRow("p", "ä", "ä.py", "text", 1, 2, 4, b"d" * 32, Tier.HOT, 10, 9, 7, 3, {"k": "v"})
        record = IndexRecord(row, Handle(2**40, 8, 4))
        assert decode_record(encode_record(record)) == record

    @pytest.mark.parametrize("machine, expected", [("x86_64", True), ("AMD64", True), ("aarch64", False), ("", False)])
    def test_machines(self, monkeypatch: pytest.MonkeyPatch, machine: str, expected: bool) -> None:  # noqa: FBT001
        """Only where loads and stores keep their order."""
        monkeypatch.setattr(platform, "machine", lambda: machine)
        assert layout.is_supported() is expected


class TestHash:
    def test_hash_is_that_of_the_name(self) -> None:
        """The same in every process: manager and client compute it each for itself."""
        assert hash_of(KEY, "p", "a") == hash_of(bytes(KEY), "p", "a") == 10064877423017907019
        assert 0 <= hash_of(KEY, "p", "a") < 2**64

    def test_project_and_id_do_not_run_together(self) -> None:
        """Names that are one text together have different hashes; so have keys."""
        names = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("é", "\N{GRINNING FACE}")]
        found = {hash_of(key, *name) for name in names for key in (KEY, bytes(layout.KEY_BYTES))}
        assert len(found) == 2 * len(names)

    def test_place_is_a_cell_of_the_table(self) -> None:
        """Hashes are spread over all cells, and a place is the first word of one."""
        generator, cells = random.Random(1), 64
        mask = (cells - 1) * layout.CELL_WORDS
        places = {place_of(generator.getrandbits(64), mask) for _ in range(2_000)}
        assert places == {*range(0, cells * layout.CELL_WORDS, layout.CELL_WORDS)}
        assert place_of(2**64 - 1, mask) == mask
