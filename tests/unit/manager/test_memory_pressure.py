"""Room in shared memory: made where it can be, refused where it cannot, and nothing that was stored is lost for it."""

import errno
import os
from collections.abc import Iterator

import pytest

from stepwell.domain.replies import FragmentPlaced
from stepwell.domain.tiers.commands import DeleteFragment, SetBudget, StoreFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.errors import Busy, ResourceExhausted, StepwellError, TierFull, TransactionAborted
from stepwell.limits import KIB, MIB
from stepwell.manager.state_owner import StateOwner
from stepwell.memory.writer.compaction import BackgroundWork
from tests.support.domain.world import image
from tests.support.manager.peers import ORIGIN, noise, pins, read
from tests.support.managers import Stage, staged
from tests.support.measurement import untraced
from tests.support.peers import store

SIZE = 60 * KIB


@pytest.fixture
def small() -> Iterator[Stage]:
    """A manager whose arena is soon full."""
    with staged(budget=TierBudget(arena_bytes=4 * MIB)) as made:
        yield made


def fill(stage: Stage, *, at_most: int = 1_000) -> dict[str, bytes]:
    """Store until the first refusal, or so many; what was stored."""
    stored: dict[str, bytes] = {}
    for number in range(at_most):
        body = noise(SIZE, number)
        try:
            stage.owner.execute(store(str(number), body), ORIGIN)
        except (TierFull, Busy):
            break
        stored[str(number)] = body
    return stored


def everything(stage: Stage, stored: dict[str, bytes]) -> dict[str, bytes]:
    """What is there of all that was stored."""
    return {name: read(stage, name) for name in stored}


class Shortage:
    """Makes the kernel have no memory left, from now on or after some more calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
        self._allocate = os.posix_fallocate
        self._left = after
        self.refused = 0
        monkeypatch.setattr(os, "posix_fallocate", self)

    def __call__(self, descriptor: int, offset: int, length: int) -> None:
        if self._left <= 0:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= 1
        self._allocate(descriptor, offset, length)

    def end(self) -> None:
        self._left = 1_000_000


def test_full_arena_lets_the_least_recently_used_go_down(small: Stage) -> None:
    """Many times the arena's size is stored, no store is refused for good, and every body is still there."""
    stored: dict[str, bytes] = {}
    for number in range(300):
        body = noise(SIZE, number)
        for _ in range(10_000):
            try:
                small.owner.execute(store(str(number), body), ORIGIN)
                break
            except Busy:  # room is being made
                small.owner.work()
        stored[str(number)] = body
        assert small.owner.bodies.arena.bytes <= 4 * MIB
    assert len(stored) * SIZE > 4 * small.owner.bodies.arena.limit
    assert everything(small, stored) == stored


def test_no_room_in_cold_either_is_tier_full() -> None:
    """Nothing can go down: the store is refused, nothing changes, and everything that was stored is readable."""
    with staged(budget=TierBudget(arena_bytes=4 * MIB, cold_entries=1)) as stage:
        stored = fill(stage)
        assert 10 < len(stored) < 1_000
        before, bodies = image(stage.owner._state), len(stage.owner.bodies)
        with pytest.raises(TierFull):
            stage.owner.execute(store("more", noise(SIZE, 9_999)), ORIGIN)
        assert image(stage.owner._state) == before
        assert (len(stage.owner.bodies), pins(stage)) == (bodies, 0)
        assert everything(stage, stored) == stored
        stage.owner.execute(DeleteFragment("p", "1"), ORIGIN)
        stage.owner.execute(DeleteFragment("p", "2"), ORIGIN)
        stage.owner.execute(store("more", noise(SIZE, 9_999)), ORIGIN)
        assert read(stage, "more") == noise(SIZE, 9_999)


def test_system_without_memory_refuses_the_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC where memory is asked for: a refusal that says so, the state as it was, all of it readable. Then again."""
    stored = fill(stage, at_most=20)
    before, bodies = image(stage.owner._state), len(stage.owner.bodies)
    shortage = Shortage(monkeypatch)
    with pytest.raises(ResourceExhausted, match="No space left on device"):
        stage.owner.execute(store("large", noise(2 * MIB)), ORIGIN)
    assert shortage.refused
    assert image(stage.owner._state) == before
    assert (len(stage.owner.bodies), pins(stage)) == (bodies, 0)
    assert everything(stage, stored) == stored
    shortage.end()
    stage.owner.execute(store("large", noise(2 * MIB)), ORIGIN)
    assert read(stage, "large") == noise(2 * MIB)


def test_system_without_memory_refuses_the_transaction(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for all of its bodies is had before any of it is decided: none of it happens."""
    stored = fill(stage, at_most=5)
    before = image(stage.owner._state)
    Shortage(monkeypatch)
    writes = [store(f"new {number}", noise(SIZE, 100 + number)) for number in range(30)]
    with pytest.raises(ResourceExhausted, match="No space left on device"):
        stage.owner.execute_all(writes, ORIGIN)
    assert image(stage.owner._state) == before
    assert everything(stage, stored) == stored


def test_system_without_any_segment_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor for a segment is the same to a caller as no memory for it."""

    def none_left(_number: int, _size: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with staged() as stage:
        monkeypatch.setattr(stage.owner.bodies.arena, "_make", none_left)
        before = image(stage.owner._state)
        with pytest.raises(ResourceExhausted, match="RLIMIT_NOFILE"):
            stage.owner.execute(store("a"), ORIGIN)
        with pytest.raises(ResourceExhausted, match="RLIMIT_NOFILE"):
            stage.owner.reserve(MIB, 0, ORIGIN)
        assert image(stage.owner._state) == before
        assert stage.owner.bodies.arena.bytes == 0


@pytest.mark.parametrize("after", range(8))
def test_shortage_at_any_moment_loses_nothing(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Wherever memory runs out, what was answered as stored is there, and what was refused is not."""
    with staged(budget=TierBudget(arena_bytes=4 * MIB)) as stage:
        shortage = Shortage(monkeypatch, after)
        stored: dict[str, bytes] = {}
        refused = 0
        for number in range(100):
            body = noise(SIZE, number)
            try:
                stage.owner.execute(store(str(number), body), ORIGIN)
                stored[str(number)] = body
            except (ResourceExhausted, Busy):
                refused += 1
            stage.owner.work()
        assert min(refused, shortage.refused) > 0
        assert everything(stage, stored) == stored
        assert len(stage.owner._state.fragments.entries) == len(stored)


def test_room_that_is_being_made_is_busy(small: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the bytes still have to follow, trying again helps, and the refusal says so."""
    stored = fill(small, at_most=40)
    assert len(stored) == 40
    full = small.owner.bodies.arena.limit
    monkeypatch.setattr(small.owner.bodies.arena, "limit", small.owner.bodies.arena.bytes)
    monkeypatch.setattr(BackgroundWork, "work", lambda *_: True)
    with pytest.raises(Busy, match="try again in a moment"):
        small.owner.execute(store("large", noise(MIB)), ORIGIN)
    monkeypatch.undo()
    small.owner.bodies.arena.limit = full
    assert everything(small, stored) == stored


def test_hopeless_upload_moves_nobody(small: Stage) -> None:
    """Larger than the whole arena: refused before anything goes down for it."""
    fill(small, at_most=20)
    before = image(small.owner._state)
    with pytest.raises(TierFull):
        small.owner.reserve(4 * MIB, 0, ORIGIN)
    assert image(small.owner._state) == before


def test_smaller_arena_is_a_matter_of_the_budget(stage: Stage) -> None:
    """`set_budget` moves the bound; what no longer fits goes down at once, its bytes in time, all of it readable."""
    stored = fill(stage, at_most=60)
    stage.owner.execute(SetBudget(TierBudget(arena_bytes=2 * MIB)), ORIGIN)
    assert stage.owner.bodies.arena.limit == 2 * MIB
    assert everything(stage, stored) == stored
    for _ in range(10_000):
        if not stage.owner.work():
            break
    assert stage.owner.bodies.files.bytes > 0
    assert everything(stage, stored) == stored


def test_store_into_cold_ends_on_disk(stage: Stage) -> None:
    """It comes through the arena, which is where bytes arrive, and does not stay there."""
    answer = stage.owner.execute(StoreFragment("p", "a", noise(SIZE), 1, Tier.COLD), ORIGIN)
    assert isinstance(answer.reply, FragmentPlaced)
    while stage.owner.work():
        pass
    assert read(stage, "a") == noise(SIZE)
    assert stage.owner.bodies.arena.live == 0


def test_refused_command_gives_its_room_back(stage: Stage) -> None:
    """Room was had for a body that nothing refers to in the end: the next one takes it."""
    for _ in range(200):
        with pytest.raises(StepwellError):
            stage.owner.execute(StoreFragment("p", "a", noise(SIZE), 1, expected_revision=7), ORIGIN)
        with pytest.raises(TransactionAborted):
            stage.owner.execute_all([store("b", noise(SIZE)), DeleteFragment("p", "absent")], ORIGIN)
    assert (stage.owner.bodies.arena.live, len(stage.owner.bodies.arena.segments)) == (0, 1)


def test_work_of_a_closed_owner_is_none() -> None:
    """Closing lets go of memory and files, whatever was still to be done."""
    owner = StateOwner(TierBudget(arena_bytes=8 * MIB))
    for number in range(20):
        owner.execute(StoreFragment("p", str(number), noise(SIZE, number), 1, Tier.COLD), ORIGIN)
    owner.work()
    owner.close()
    assert (owner.bodies.arena.bytes, owner.bodies.files.bytes) == (0, 0)


@untraced()
def test_headers_of_small_bodies_count_when_room_is_short() -> None:
    """The domain counts bodies; what the arena needs beside them is made room for all the same."""
    with staged(budget=TierBudget(arena_bytes=MIB // 4, hot_tokens=10**9)) as stage:
        for number in range(5_000):
            for _ in range(10_000):
                try:
                    stage.owner.execute(store(str(number), number.to_bytes(16, "big")), ORIGIN)
                    break
                except Busy:
                    stage.owner.work()
                    stage.owner.bodies.close_retired()
            else:
                raise AssertionError("no room was made")
