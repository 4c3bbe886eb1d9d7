"""Reports of reads that needed no request: accesses like others, and neither a write nor an event."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.domain.tiers.commands import DeleteFragment, DemoteFragment, EvictLru, PeekFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.manager import process
from stepwell.protocol.messages import CommandResult, ReadsReported
from stepwell.storage.null_store import NullStore
from tests.support.domain.world import image
from tests.support.manager.peers import ORIGIN, ask, joined
from tests.support.managers import Stage, staged
from tests.support.peers import RawPeer, store
from tests.support.storage.state import durable_state


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged(budget=TierBudget(promotion_threshold=3)) as made:
        yield made


@pytest.fixture
def peer(stage: Stage) -> Iterator[RawPeer]:
    with joined(stage, "alice", ("p",)) as made:
        yield made


def report(stage: Stage, peer: RawPeer, *reads: tuple[str, str, int], misses: int = 0) -> None:
    """Report, and let the manager answer a request behind it."""
    peer.send(ReadsReported(reads, misses))
    ask(stage, peer, PeekFragment("p", "none"))


def accesses(stage: Stage, name: str, project: str = "p") -> int:
    entry = stage.owner._state.fragments.find(project, name)
    assert entry is not None
    return entry.access_count


def test_reads_count(stage: Stage, peer: RawPeer) -> None:
    """A fragment that is hot becomes the most recently used one, with all its accesses."""
    ask(stage, peer, *(store(name) for name in "abc"))
    report(stage, peer, ("p", "a", 5), ("p", "b", 1), misses=2)
    assert [accesses(stage, name) for name in "abc"] == [5, 1, 0]
    assert (stage.requests.index_hits, stage.requests.index_misses) == (6, 2)
    (moved,) = ask(stage, peer, EvictLru(Tier.HOT, 1))
    assert isinstance(moved, CommandResult)
    tiers = {entry.row.fragment_id: entry.row.tier for entry in stage.owner._state.fragments.created_after("p", 0)}
    assert tiers == {"a": Tier.HOT, "b": Tier.HOT, "c": Tier.WARM}


def test_no_write_and_no_event(stage: Stage, peer: RawPeer) -> None:
    """The revision stays, no row changes, and an empty report changes nothing at all."""
    ask(stage, peer, store("a"))
    revision, rows = stage.requests.revision, dict(image(stage.owner._state))
    report(stage, peer)
    assert dict(image(stage.owner._state)) == rows
    report(stage, peer, ("p", "a", 7))
    assert stage.requests.revision == revision
    entry = stage.owner._state.fragments.find("p", "a")
    assert entry is not None
    assert entry.row.revision == revision


def test_demoted_meanwhile(stage: Stage, peer: RawPeer) -> None:
    """The accesses count, but do not lift it: it was hot when it was read."""
    ask(stage, peer, store("a"), DemoteFragment("p", "a"))
    report(stage, peer, ("p", "a", 100))
    entry = stage.owner._state.fragments.find("p", "a")
    assert entry is not None
    assert (entry.row.tier, entry.access_count, entry.accesses_since_move) == (Tier.WARM, 100, 0)


def test_gone_or_not_allowed(stage: Stage, peer: RawPeer) -> None:
    """What was deleted, was never there or is outside of the scope is passed over; the rest counts."""
    stage.owner.execute(store("a", project="q"), ORIGIN)
    ask(stage, peer, store("a"), store("b"), DeleteFragment("p", "b"))
    report(stage, peer, ("p", "b", 1), ("p", "none", 1), ("q", "a", 5), ("p", "a", 2))
    assert (accesses(stage, "a"), accesses(stage, "a", "q")) == (2, 0)


def test_times_are_durable(tmp_path: Path) -> None:
    """They are written when the manager writes those of requests, also of a fragment that is hot no more."""
    with durable_state(tmp_path) as made:
        made.owner.execute_all([store("a"), store("b")], ORIGIN)
        made.owner.execute(DemoteFragment("p", "b"), ORIGIN)
        made.owner.journal.commit()
        before = made.owner._state.fragments.has_read_entries
        made.owner.count_reads([("p", "a", 2), ("p", "b", 3)], ORIGIN)
        assert (before, made.owner._state.fragments.has_read_entries) == (False, True)
        while made.owner.journal.write_uses():
            made.owner.journal.commit()
        made.owner.journal.commit()
        expected = {
            name: (entry.access_count, entry.last_accessed_ms)
            for name in "ab"
            if (entry := made.owner._state.fragments.find("p", name))
        }
    with durable_state(tmp_path) as made:
        found = {
            name: (entry.access_count, entry.last_accessed_ms)
            for name in "ab"
            if (entry := made.owner._state.fragments.find("p", name))
        }
    assert found == expected
    assert {name: count for name, (count, _) in found.items()} == {"a": 2, "b": 3}


class Predecessor(NullStore):
    """A store whose last manager has let clients read up to a time."""

    def __init__(self, until_ns: int) -> None:
        super().__init__("estimate")
        self._until_ns = until_ns

    @property
    def predecessor_valid_until_ns(self) -> int:
        return self._until_ns


class TestWaiting:
    @pytest.fixture
    def slept_s(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        found: list[float] = []
        monkeypatch.setattr(time, "sleep", found.append)
        monkeypatch.setattr(time, "clock_gettime_ns", lambda _clock: 1_000_000_000)
        return found

    @pytest.mark.parametrize(
        "left_ms, expected_s",
        [(-1_000, []), (0, []), (1, [0.001]), (300, [0.3]), (10**9, [limits.INDEX_VALID_MS / 1_000])],
    )
    def test_next_manager(self, slept_s: list[float], left_ms: int, expected_s: list[float]) -> None:
        """It waits for what is left of its predecessor's validity, at most a period, or not at all."""
        process._wait_for_readers(Predecessor(1_000_000_000 + left_ms * 1_000_000))
        assert slept_s == expected_s

    def test_no_predecessor(self, slept_s: list[float]) -> None:
        """Without a data directory there is nothing to wait for."""
        process._wait_for_readers(NullStore("estimate"))
        assert slept_s == []
