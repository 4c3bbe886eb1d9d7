"""A directory is opened again, with another budget or another encoding than before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from stepwell import limits
from stepwell.domain import invariants
from stepwell.domain.state import State
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.errors import StartFailed, TierFull
from stepwell.manager.recovery import recover
from tests.support.manager.peers import ORIGIN
from tests.support.memory.bodies import noise
from tests.support.storage.state import durable_state, files, kept, open_store, staged_on

FRAGMENTS = 60
EACH = 1_000
WIDE = TierBudget(hot_tokens=FRAGMENTS, arena_bytes=1 << 20)
NARROW = TierBudget(hot_tokens=7, warm_entries=9, cold_entries=FRAGMENTS, arena_bytes=1 << 20)
SMALL = TierBudget(hot_tokens=FRAGMENTS, arena_bytes=20 * EACH)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Everything in it is hot."""
    with durable_state(tmp_path, WIDE) as made:
        for number in range(FRAGMENTS):
            made.store_one(f"f{number}", noise(EACH, number), now_ms=ORIGIN.now_ms)
        made.commit()
    return tmp_path


def placed(state: State) -> dict[Tier, int]:
    return {tier: state.fragments.usage(tier).entries for tier in Tier}


@pytest.mark.parametrize("budget", [NARROW, SMALL], ids=["entries", "bytes"])
@pytest.mark.parametrize("step", [limits.MOVES_PER_STEP_MAX, 20, 5], ids=["at once", "in parts", "in small parts"])
def test_smaller_budget_is_kept_before_anything_is_served(
    directory: Path, monkeypatch: pytest.MonkeyPatch, budget: TierBudget, step: int
) -> None:
    """The least recently used go down, in as many steps as it takes; that is committed when the first may ask."""
    monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", step)
    with staged_on(directory, budget=budget) as stage:
        state = stage.owner._state
        assert state.budget == budget
        assert invariants.check(state) == []
        assert len(state.fragments) == FRAGMENTS
        assert placed(recover(kept(directory))) == placed(state)
        hottest = [*state.fragments.oldest(Tier.HOT)][-1] if placed(state)[Tier.HOT] else None
        assert hottest is None or hottest.row.fragment_id == f"f{FRAGMENTS - 1}"
        moves = Counter(event.revision for event in stage.store.events_after(FRAGMENTS, 10_000))
        assert max(moves.values()) <= step + 1


def test_budget_that_is_not_given_is_as_it_was(directory: Path) -> None:
    """It is written down, also when it was changed on the way; and opening moves nothing."""
    with staged_on(directory, budget=NARROW) as stage:
        before = placed(stage.owner._state)
    with staged_on(directory) as stage:
        revision = stage.owner.revision
        assert stage.owner._state.budget == NARROW
        assert placed(stage.owner._state) == before
    assert kept(directory).revision == revision


def test_larger_budget_moves_nothing(directory: Path) -> None:
    wider = msgspec.structs.replace(WIDE, hot_tokens=10_000)
    with staged_on(directory, budget=wider) as stage:
        assert stage.owner._state.budget == wider
        assert placed(stage.owner._state) == {Tier.HOT: FRAGMENTS, Tier.WARM: 0, Tier.COLD: 0}


def test_budget_that_cannot_be_kept_is_refused(directory: Path) -> None:
    """Nothing would be thrown away for it: it says so, and all is as it was."""
    impossible = msgspec.structs.replace(NARROW, cold_entries=3)
    before = kept(directory)
    with durable_state(directory) as made, pytest.raises(TierFull):
        made.owner.enforce_budget(impossible, ORIGIN)
    after = kept(directory)
    assert (after.revision, after.rows) == (before.revision, before.rows)
    assert placed(recover(after)) == placed(recover(before))


def test_other_encoding_is_refused(directory: Path) -> None:
    """The tokens are counted already; and nothing is changed by asking."""
    before = files(directory)
    with pytest.raises(StartFailed, match=r"counts tokens in 'estimate', not in 'cl100k_base'"):
        open_store(directory, "cl100k_base")
    assert files(directory) == before


@pytest.mark.parametrize("encoding", ["estimate", None])
def test_encoding_is_as_it_was(directory: Path, encoding: str | None) -> None:
    """Given again, or not given at all."""
    store = open_store(directory, encoding)
    try:
        assert store.encoding == "estimate"
    finally:
        store.close()


def test_encoding_of_the_first_manager_is_kept(tmp_path: Path) -> None:
    """Where nobody gives one, it is the default; afterwards it is not the default that counts."""
    store = open_store(tmp_path, None)
    first = store.encoding
    store.load()
    store.start_writing()
    store.close()
    assert first != "estimate"
    with pytest.raises(StartFailed, match="counts tokens"):
        open_store(tmp_path, "estimate")
