"""What the checks of a reader of the index are for: without one of them it reads what never was, or is no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepwell.domain.tiers.commands import StoreFragment
from stepwell.memory.reader.index_reader import IndexReader
from stepwell.memory.writer.index_slots import IndexSlots
from tests.doubles.unsynchronised.index_reader import WithoutSequence, WithoutValidity
from tests.support.memory.fragment_index import FOR_EVER_NS, IndexHarness, index_harness

PAIR = ("a", "b")


@pytest.fixture
def harness() -> Iterator[IndexHarness]:
    with index_harness() as made:
        yield made


def begin(harness: IndexHarness, kind: type[IndexReader]) -> None:
    harness.reader = kind(harness.mappings)
    for name in PAIR:
        harness.store(name, b"old")
    harness.open(*PAIR)


def torn_reads(harness: IndexHarness, monkeypatch: pytest.MonkeyPatch) -> int:
    """Replace two fragments in one transaction, and read both after each record that is written; count torn pairs."""
    write, torn = IndexSlots.write, 0

    def watched(self: IndexSlots, slot: int, record: bytes) -> bool:
        nonlocal torn
        written = write(self, slot, record)
        found = [harness.reader.find(("p", name), FOR_EVER_NS) for name in PAIR]
        torn += len({each.row.revision for each in found if each is not None}) == 2
        return written

    monkeypatch.setattr(IndexSlots, "write", watched)
    begin_revision = harness.row("a").revision
    harness.do_together(*(StoreFragment("p", name, b"new", 1) for name in PAIR))
    assert harness.row("a").revision == harness.row("b").revision > begin_revision
    harness.publish()
    return torn


@pytest.mark.parametrize("kind, is_torn", [(IndexReader, False), (WithoutSequence, True)])
def test_sequence(
    harness: IndexHarness,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[IndexReader],
    is_torn: bool,  # noqa: FBT001
) -> None:
    """Without it, a reader sees one fragment of a transaction before the other."""
    begin(harness, kind)
    harness.do_together(*(StoreFragment("p", name, b"both", 1) for name in PAIR))
    harness.publish()
    assert (torn_reads(harness, monkeypatch) > 0) is is_torn


@pytest.mark.parametrize("kind, is_old", [(IndexReader, False), (WithoutValidity, True)])
def test_validity(harness: IndexHarness, kind: type[IndexReader], is_old: bool) -> None:  # noqa: FBT001
    """Without it, a reader returns what a manager that is gone has published, while the next one serves another."""
    begin(harness, kind)
    harness.clock.now_ns = harness.valid_until_ns
    assert (harness.reader.find(("p", "a"), FOR_EVER_NS) is not None) is is_old


@pytest.mark.parametrize("is_early", [False, True])
def test_publication_before_commit(harness: IndexHarness, is_early: bool) -> None:  # noqa: FBT001
    """If the manager dies between the two, a reader has seen what never was."""
    begin(harness, IndexReader)
    committed = harness.row("a").revision
    harness.store("a", b"new")
    if is_early:
        harness.publish()
    found = harness.reader.find(("p", "a"), FOR_EVER_NS)
    assert found is not None
    assert (found.row.revision > committed) is is_early
