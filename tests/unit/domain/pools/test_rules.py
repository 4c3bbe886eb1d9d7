"""Token pools: never more leased than there is, refilled by time to the last part, and nothing held by the dead."""

import pytest

from stepwell import limits
from stepwell.domain.pools.commands import (
    CreatePool,
    DeletePool,
    EndTokenLeases,
    GetPool,
    LeaseTokens,
    ListPools,
    ResizePool,
    ReturnTokens,
    UseTokens,
)
from stepwell.domain.pools.model import TokenPool
from stepwell.errors import AlreadyExists, Busy, InvalidArgument, NotFound, PoolEmpty, TierFull
from tests.support.domain.world import NOON_MS, World


@pytest.fixture
def world() -> World:
    """A world with a pool that does not refill, and one of 100 tokens a second."""
    world = World()
    world.do(CreatePool("fixed", 100))
    world.do(CreatePool("second", 100, 1_000))
    return world


def pool(world: World, name: str = "fixed", later_ms: int = 0) -> TokenPool:
    """A pool so long after noon."""
    world.now_ms = NOON_MS + later_ms
    return world.do(GetPool(name)).pool


def counts(found: TokenPool) -> tuple[int, int, int]:
    """What is spent, leased and free."""
    return found.spent, found.leased, found.free


class TestPools:
    def test_of_one_name(self, world: World) -> None:
        """There is one; the other creator hears what to do."""
        world.refuse(CreatePool("fixed", 7), AlreadyExists, "resize or delete it")
        assert pool(world).tokens == 100

    def test_unknown(self, world: World) -> None:
        """Every command but the first one names the remedy."""
        for command in (GetPool("x"), ResizePool("x", 1), DeletePool("x"), LeaseTokens("x", "a", 1)):
            world.refuse(command, NotFound, "create it with pools.create")

    def test_number_is_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A session that ends returns its leases of all of them in one step."""
        monkeypatch.setattr(limits, "POOLS_MAX", 2)
        world.refuse(CreatePool("third", 1), TierFull, "delete some")

    def test_list(self, world: World) -> None:
        """In order of name, page by page, as they are now."""
        page = world.do(ListPools(limit=1))
        assert [each.name for each in page.pools] == ["fixed"]
        assert [each.name for each in world.do(ListPools(cursor=page.cursor)).pools] == ["second"]

    def test_resize(self, world: World) -> None:
        """What is leased stays so, even if it is more than the pool has now."""
        world.do(LeaseTokens("fixed", "a", 60))
        assert counts(world.do(ResizePool("fixed", 50)).pool) == (0, 60, -10)
        world.refuse(LeaseTokens("fixed", "b", 1), PoolEmpty, "has 0 free tokens of 50")
        assert counts(world.do(ResizePool("fixed", 200)).pool) == (0, 60, 140)

    def test_delete(self, world: World) -> None:
        """Not under the hands of its holders."""
        world.do(LeaseTokens("fixed", "a", 60))
        world.refuse(DeletePool("fixed"), Busy, "1 lease of pool 'fixed' is held")
        world.do(ReturnTokens("fixed", "a"))
        assert world.do(DeletePool("fixed")).pool.name == "fixed"
        assert [each.name for each in world.do(ListPools()).pools] == ["second"]


class TestLeases:
    def test_never_more_than_there_is(self, world: World) -> None:
        """Leased and spent tokens are not free; what was not used is, once it is returned."""
        world.do(LeaseTokens("fixed", "a", 60))
        world.refuse(LeaseTokens("fixed", "b", 41), PoolEmpty, "has 40 free tokens of 100, not 41")
        world.do(LeaseTokens("fixed", "b", 40))
        assert counts(world.do(UseTokens("fixed", "a", 25)).pool) == (25, 75, 0)
        assert counts(world.do(ReturnTokens("fixed", "a")).pool) == (25, 40, 35)
        assert counts(world.do(ReturnTokens("fixed", "b", 10)).pool) == (35, 0, 65)

    def test_more_was_used_than_leased(self, world: World) -> None:
        """It counts: the tokens are gone, whoever planned with fewer."""
        world.do(LeaseTokens("fixed", "a", 10))
        assert counts(world.do(UseTokens("fixed", "a", 130)).pool) == (130, 0, -30)
        world.refuse(LeaseTokens("fixed", "b", 1), PoolEmpty, "has 0 free tokens")
        assert counts(world.do(ReturnTokens("fixed", "a", 140)).pool) == (140, 0, -40)

    def test_used_is_the_number_of_all(self, world: World) -> None:
        """And so cannot be less than was reported."""
        world.do(LeaseTokens("fixed", "a", 50))
        world.do(UseTokens("fixed", "a", 20))
        world.refuse(ReturnTokens("fixed", "a", 19), InvalidArgument, "20 tokens of the lease are reported")
        assert counts(world.do(ReturnTokens("fixed", "a", 20)).pool) == (20, 0, 80)

    def test_ended(self, world: World) -> None:
        """A lease ends once."""
        world.do(LeaseTokens("fixed", "a", 50))
        world.refuse(LeaseTokens("fixed", "a", 1), AlreadyExists, "there is a lease")
        world.do(ReturnTokens("fixed", "a"))
        for command in (UseTokens("fixed", "a", 1), ReturnTokens("fixed", "a")):
            world.refuse(command, NotFound, "it was returned, or its session has ended")

    def test_larger_than_the_pool(self, world: World) -> None:
        """Waiting would not help, so it is another error."""
        world.refuse(LeaseTokens("fixed", "a", 101), InvalidArgument, "has 100 tokens in all")

    def test_number_is_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """All of them are in the row of the pool."""
        monkeypatch.setattr(limits, "LEASES_PER_POOL_MAX", 1)
        world.do(LeaseTokens("fixed", "a", 1))
        world.refuse(LeaseTokens("fixed", "b", 1), Busy, "are held already")

    def test_end_with_their_session(self, world: World) -> None:
        """What it has not reported is free again, in every pool; the leases of others stay."""
        world.do(LeaseTokens("fixed", "a", 50))
        world.do(LeaseTokens("second", "b", 50))
        world.do(LeaseTokens("fixed", "c", 10), session="bob")
        world.do(UseTokens("fixed", "a", 20))
        ended = world.do(EndTokenLeases("alice")).pools
        assert {each.name: counts(each) for each in ended} == {"fixed": (20, 10, 70), "second": (0, 0, 100)}
        assert world.do(EndTokenLeases("alice")).pools == ()


class TestRefilling:
    def test_is_continuous(self, world: World) -> None:
        """100 a second are one in 10 ms, and never more than the pool has."""
        world.do(LeaseTokens("second", "a", 80))
        world.do(ReturnTokens("second", "a", 80))
        for later_ms, spent in ((0, 80), (9, 80), (10, 79), (105, 70), (795, 1), (800, 0), (10_000, 0)):
            assert pool(world, "second", later_ms).spent == spent

    def test_loses_no_time_to_rounding(self, world: World) -> None:
        """However often the pool is used."""
        world.do(LeaseTokens("second", "a", 100))
        world.do(UseTokens("second", "a", 100))
        for later_ms in range(1, 501):
            world.now_ms = NOON_MS + later_ms
            world.do(UseTokens("second", "a", 0))
        assert pool(world, "second", 500).spent == 50

    def test_when_to_try_again(self, world: World) -> None:
        """At that moment there is enough, and not one earlier."""
        world.do(LeaseTokens("second", "a", 70))
        world.do(UseTokens("second", "a", 70))
        refused = world.refuse(LeaseTokens("second", "b", 95), PoolEmpty, "try again in 650 ms")
        assert refused.details["retry_after_ms"] == 650
        world.now_ms = NOON_MS + 649
        world.refuse(LeaseTokens("second", "b", 95), PoolEmpty, "in 1 ms")
        world.now_ms = NOON_MS + 650
        world.do(LeaseTokens("second", "b", 95))

    def test_time_alone_does_not_help(self, world: World) -> None:
        """While others hold the tokens, or if the pool does not refill."""
        world.do(LeaseTokens("second", "a", 70))
        refused = world.refuse(LeaseTokens("second", "b", 31), PoolEmpty, "when other leases are returned")
        assert refused.details["retry_after_ms"] is None
        world.do(LeaseTokens("fixed", "a", 70))
        world.do(ReturnTokens("fixed", "a", 70))
        world.refuse(LeaseTokens("fixed", "b", 31), PoolEmpty, "it does not refill")

    def test_resized(self, world: World) -> None:
        """Until then it was refilled at its earlier rate."""
        world.do(LeaseTokens("second", "a", 100))
        world.do(ReturnTokens("second", "a", 100))
        world.now_ms = NOON_MS + 500
        world.do(ResizePool("second", 1_000))
        assert pool(world, "second", 500).spent == 50
        assert pool(world, "second", 550).spent == 0


def test_soft_limit(world: World) -> None:
    """The lease that crosses it says so, and no later one."""
    assert [world.do(LeaseTokens("fixed", str(n), 40)).became_low for n in range(2)] == [False, False]
    assert world.do(LeaseTokens("fixed", "c", 1)).became_low
    assert not world.do(LeaseTokens("fixed", "d", 1)).became_low
    world.do(ReturnTokens("fixed", "0"))
    assert not pool(world).is_low
