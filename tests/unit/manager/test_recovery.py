"""From what was kept to what can be served: time goes on, and bytes are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.domain import invariants
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import GetFragment
from stepwell.domain.tiers.model import Tier
from stepwell.errors import StoreDamaged
from stepwell.memory.reader.mappings import content
from stepwell.protocol.handles import IN_STORE
from tests.support.memory.bodies import compressible, noise
from tests.support.storage.state import NOON_MS, DurableState, durable_state, fill, kept, tamper


def shared(made: DurableState, body: bytes) -> bytes | None:
    """A body as it is in shared memory; None if it is not there."""
    handle = made.owner.bodies.find(digest_of(body))
    assert handle is not None
    if handle.segment == IN_STORE:
        return None
    stored = made.owner.bodies.segment(handle.segment).read(handle.offset, handle.stored)
    return bytes(content(memoryview(stored), handle))


def test_clock_is_not_behind_what_was_read(tmp_path: Path) -> None:
    """Reading gives out a moment too: the next manager's clock begins there, whatever the machine's clock says."""
    with durable_state(tmp_path) as made:
        made.store_one("a", b"body")
        made.commit()
        made.do(GetFragment("p", "a"), NOON_MS + 1_000)
        made.journal.write_uses()
        made.commit()
    assert kept(tmp_path).clock_ms == NOON_MS + 1_000


def test_use_at_the_clock_of_the_next_manager_keeps_the_order(tmp_path: Path) -> None:
    """The machine's clock was put back meanwhile: what is used then is not used before what was used earlier."""
    with durable_state(tmp_path) as made:
        made.store_one("a", b"body of a")
        made.store_one("b", b"body of b")
        made.do(GetFragment("p", "a"), NOON_MS + 1_000)
        made.commit()
        made.journal.write_uses()
        made.commit()
    with durable_state(tmp_path) as made:
        made.do(GetFragment("p", "b"), kept(tmp_path).clock_ms)
        made.journal.write_uses()
        made.commit()
    with durable_state(tmp_path) as made:
        assert invariants.check(made.owner._state) == []


@pytest.mark.parametrize("tier", [Tier.HOT, Tier.WARM])
@pytest.mark.parametrize("body", [compressible(5_000), noise(5_000)], ids=["compressible", "noise"])
def test_body_comes_back_into_shared_memory(tmp_path: Path, tier: Tier, body: bytes) -> None:
    """By itself, in the form of its tier."""
    with durable_state(tmp_path) as made:
        made.store_one("a", body, tier)
        made.commit()
        made.work()
    with durable_state(tmp_path) as made:
        assert shared(made, body) is None
        made.work()
        assert shared(made, body) == body


@pytest.mark.parametrize("tier", [Tier.HOT, Tier.WARM])
@pytest.mark.parametrize("body", [compressible(5_000), noise(5_000)], ids=["compressible", "noise"])
def test_rotten_body_does_not_come_into_shared_memory(tmp_path: Path, tier: Tier, body: bytes) -> None:
    """There nobody compares it with its digest any more: it stays in the store, where whoever reads it does."""
    with durable_state(tmp_path) as made:
        made.store_one("a", body, tier)
        made.commit()
    tamper(tmp_path, "UPDATE bodies SET data = zeroblob(length(data))")
    with durable_state(tmp_path) as made:
        made.work()
        assert shared(made, body) is None


def test_what_does_not_hold_together_is_said(tmp_path: Path) -> None:
    """The first few of what is wrong, and how many more."""
    with durable_state(tmp_path) as made:
        fill(made)
    tamper(tmp_path, "DELETE FROM bodies")
    with (
        pytest.raises(StoreDamaged, match=r"(body [0-9a-f]{64} .*is not there; ){4}.*and \d+ more"),
        durable_state(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    "statement, problem",
    [
        ("DELETE FROM leases", "processing_means_leased: plan is execute/processing, lease None"),
        ("UPDATE plans SET version = 0", "plans_are_where_plans_can_be: plan has impossible counters"),
        (
            "UPDATE changesets SET entry_count = entry_count + 1",
            "entries_are_numbered_without_gaps: changeset has 1 of 2",
        ),
    ],
)
def test_invariant_that_does_not_hold_is_said(tmp_path: Path, statement: str, problem: str) -> None:
    """Each row is readable, and has its checksum: only the invariants of the state tell. No manager serves it."""
    with durable_state(tmp_path) as made:
        fill(made)
    tamper(tmp_path, statement)
    with pytest.raises(StoreDamaged, match=problem), durable_state(tmp_path):
        pass
