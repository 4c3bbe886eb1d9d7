"""Bodies that come back from the vault, and go while they do: what is missing then is no damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import DeleteFragment, PromoteFragment
from stepwell.domain.tiers.model import Tier
from stepwell.protocol.handles import IN_STORE
from tests.support.memory.bodies import noise
from tests.support.storage.state import DurableState, durable_state, mixed

PART = 50_000
PARTS = 6
BODIES = {"raw": noise(PARTS * PART), "packed": mixed(2 * PARTS * PART)}  # zstd gives out 128 KiB and more at a time


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DurableState]:
    """Bodies have small parts, which are read one at a time."""
    monkeypatch.setattr(limits, "BODY_PART_BYTES", PART)
    monkeypatch.setattr(limits, "WORK_BYTES_PER_SLICE", PART)
    with durable_state(tmp_path) as found:
        found.commit()
        yield found


def shelve(made: DurableState, body: bytes) -> None:
    """Store a body that is in the vault alone."""
    made.upload("a", body, Tier.COLD)
    made.commit()
    made.work()
    assert made.owner.bodies.handles[digest_of(body)].segment == IN_STORE


def promote(made: DurableState, steps: int) -> bool:
    """Have it come back, so far; whether it is not there yet."""
    made.do(PromoteFragment("p", "a"))
    made.commit()
    return all(made.owner.bodies.background.work(0) for _ in range(steps))


def delete(made: DurableState) -> None:
    """And with it all that there was of it."""
    made.do(DeleteFragment("p", "a"))
    made.commit()
    while made.store.has_garbage:
        made.journal.tidy({}, 0.0)
        made.commit()


@pytest.mark.parametrize("then", ["it stays gone", "it is stored again at once"])
@pytest.mark.parametrize("name", BODIES)
def test_body_that_is_deleted_while_it_comes_back(made: DurableState, name: str, then: str) -> None:
    """At whichever step: nothing failed, and the same content is as good as any when it is stored again."""
    body, failures = BODIES[name], list[Exception]()
    made.owner.bodies.background.on_failure = failures.append
    steps, is_coming = 0, True
    while is_coming:
        shelve(made, body)
        steps += 1
        is_coming = promote(made, steps)
        delete(made)
        if then == "it is stored again at once":
            made.upload("a", body)
            made.commit()
        made.work()
        assert failures == []
        made.upload("a", body)
        made.commit()
        made.work()
        handle = made.owner.bodies.handles[digest_of(body)]
        assert made.owner.bodies.segment(handle.segment).read(handle.offset, handle.stored) == body
        assert made.owner.bodies.background.waiting == 0
        delete(made)
    assert steps > PARTS / 2
