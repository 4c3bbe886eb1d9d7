"""Receipts and their bytes: they take no room that fragments have, nobody waits for them, and what goes is gone."""

from collections.abc import Iterator, Sequence

import pytest

from stepwell import limits
from stepwell.domain.receipts.commands import GetReceipt, StoreReceipt
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import DeleteFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.errors import Busy, TierFull
from stepwell.limits import KIB, MIB
from stepwell.memory.reader.mappings import content
from stepwell.protocol.messages import OfferUpload, UploadGranted
from tests.support.domain.world import image
from tests.support.manager.peers import ORIGIN, answered, ask, connection_of, joined, noise, pins, pour, refusals
from tests.support.managers import Stage, staged
from tests.support.peers import store

SIZE = 60 * KIB
FRAGMENTS = 47
"""So many fill what fragments may have of the arena below."""


@pytest.fixture
def full() -> Iterator[Stage]:
    """A manager whose arena has no room left, unless fragments go down."""
    with staged(budget=TierBudget(arena_bytes=4 * MIB)) as stage:
        for number in range(FRAGMENTS):
            stage.owner.execute(store(str(number), noise(SIZE, number)), ORIGIN)
        assert hot(stage) == FRAGMENTS
        stage.owner.bodies.arena.limit = stage.owner.bodies.arena.bytes
        yield stage


def hot(stage: Stage) -> int:
    return stage.owner._state.fragments.usage(Tier.HOT).entries


def tiers(stage: Stage) -> Sequence[object]:
    whole = image(stage.owner._state)
    return [whole[part] for part in ("fragments", "orders", "usage")]


def receipt(number: int, size: int = SIZE) -> StoreReceipt:
    return StoreReceipt(f"receipt-{number}", ("p",), "a title", noise(size, 10_000 + number))


def store_until_refused(stage: Stage) -> int:
    """How many receipts found room."""
    for number in range(limits.RECEIPTS_MAX):
        try:
            stage.owner.execute(receipt(number), ORIGIN)
        except (TierFull, Busy):
            return number
    raise AssertionError("none was refused")


def read(stage: Stage, receipt_id: str) -> bytes:
    """A receipt's body, wherever it is."""
    (handle,) = stage.owner.execute(GetReceipt(receipt_id), ORIGIN).handles.values()
    stored = stage.owner.bodies.segment(handle.segment).read(handle.offset, handle.stored)
    return bytes(content(memoryview(stored), handle))


def test_no_fragment_goes_down_for_a_receipt(full: Stage) -> None:
    """What would make fragments go down for one of them makes none go down for a receipt: that is refused."""
    before = tiers(full)
    stored = store_until_refused(full)
    assert tiers(full) == before
    assert len(full.owner._state.receipts) == stored
    with pytest.raises((TierFull, Busy)):
        full.owner.execute_all([receipt(stored), receipt(stored + 1)], ORIGIN)
    assert tiers(full) == before
    with pytest.raises((TierFull, Busy)):
        full.owner.execute(store("one more", noise(SIZE, 99)), ORIGIN)
    assert hot(full) < FRAGMENTS


def test_transaction_with_a_fragment_makes_room_for_it(full: Stage) -> None:
    """Whatever else is in it."""
    stored = store_until_refused(full)
    with pytest.raises((TierFull, Busy)):
        full.owner.execute_all([receipt(stored), store("one more", noise(SIZE, 99))], ORIGIN)
    assert hot(full) < FRAGMENTS


def test_room_that_comes_back_is_taken(full: Stage) -> None:
    """A refusal is for the moment."""
    stored = store_until_refused(full)
    for number in range(10):
        full.owner.execute(DeleteFragment("p", str(number)), ORIGIN)
    while full.owner.work():
        full.owner.bodies.close_retired()
    full.owner.execute(receipt(stored), ORIGIN)
    assert read(full, f"receipt-{stored}") == receipt(stored).body


def test_modest_offer_is_answered_at_once(full: Stage) -> None:
    """Nobody goes down for it and nobody waits: who offers one is refused now, with the command that refers to it."""
    store_until_refused(full)
    before = tiers(full)
    with joined(full, "a") as peer:
        peer.send(OfferUpload(0, MIB, no_eviction=True))
        assert answered(full, peer) == UploadGranted(0, accepted=False)
        assert connection_of(full, "a").deferred is None
        assert refusals(ask(full, peer, StoreReceipt("large", ("p",), "", 0))) == ["TierFull"]
        assert tiers(full) == before
        peer.send(OfferUpload(0, MIB))
        full.turn_until(lambda: hot(full) < FRAGMENTS)


def test_uploaded_receipt(stage: Stage) -> None:
    """One that is too large for a frame; one that is too large for a receipt leaves nothing behind."""
    body = noise(3 * MIB)
    with joined(stage, "a") as peer:
        for number, size in ((0, len(body)), (1, limits.RECEIPT_BYTES_MAX + 1)):
            peer.send(OfferUpload(number, size, no_eviction=True))
            assert answered(stage, peer) == UploadGranted(number, accepted=True)
            pour(stage, peer, body if number == 0 else bytes(size))
            kinds = refusals(ask(stage, peer, StoreReceipt(f"receipt-{number}", ("p",), "", number)))
            assert kinds == (["InvalidArgument"] if number else [""])
        assert read(stage, "receipt-0") == body
        stage.turn()
        assert (len(stage.owner.bodies), pins(stage)) == (1, 0)


def test_bytes_end_on_disk_and_go_with_their_receipt(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave shared memory by themselves, and the disk when newer receipts take their place."""
    monkeypatch.setattr(limits, "RECEIPTS_MAX", 3)
    for number in range(5):
        stage.owner.execute(receipt(number), ORIGIN)
        while stage.owner.work():
            pass
    assert stage.owner.bodies.arena.live == 0
    assert [read(stage, f"receipt-{number}") for number in (2, 3, 4)] == [receipt(number).body for number in (2, 3, 4)]
    assert len(stage.owner.bodies) == 3
    assert stage.owner.bodies.find(digest_of(noise(SIZE, 10_000))) is None
