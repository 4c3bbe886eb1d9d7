"""The arena is bounded in the same step as everything else: what hot and warm need of it never goes past."""

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.replies import FragmentsMoved, Note
from stepwell.domain.tiers.body_refs import BodyCount, digest_of
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    LocateBodies,
    PromoteFragment,
    RelieveArena,
    SetBudget,
    StoreFragment,
)
from stepwell.domain.tiers.model import COLD, HOT, WARM, Tier, TierBudget
from stepwell.errors import InvalidArgument, StepTooLarge, TierFull
from tests.support.domain.world import World, image

BUDGET = TierBudget(arena_bytes=15, cold_entries=4)
"""Room for ten bytes, and for four fragments in cold."""


@pytest.fixture
def world() -> World:
    """Bodies may need ten bytes of the arena."""
    return World(BUDGET)


def put(world: World, name: str, size: int = 4, tier: Tier = HOT, body: bytes = b"") -> Note:
    """A body of that size, which nobody else has, unless it is given."""
    return world.store(name, tier=tier, body=body or name.encode() * size).note


def pack(world: World, name: str, packed: int) -> None:
    world.state.bodies.note_packed(world.row(name).digest, packed)


def moved(reply: FragmentsMoved) -> list[tuple[str, Tier, Tier | None]]:
    return [(move.fragment_id, move.source, move.target) for move in reply.moves]


def needed(world: World) -> int:
    return world.state.bodies.arena_bytes


def test_part_of_the_arena_is_kept_free() -> None:
    """For segments being filled, dead space and forms in transition."""
    assert BUDGET.live_bytes == 10
    assert TierBudget(arena_bytes=1).live_bytes == 0
    assert TierBudget().live_bytes == limits.ARENA_BYTES * limits.ARENA_LIVE_PERCENT // 100


class TestStore:
    """Whoever arrives is made room for, by the least recently used."""

    def test_bound_may_be_reached(self, world: World) -> None:
        """And not passed: then the oldest of hot falls through warm, where it would need as much."""
        put(world, "a", 5)
        put(world, "b", 5)
        assert (world.tiers(), needed(world)) == ((["a", "b"], [], []), 10)
        put(world, "c", 1)
        assert (world.tiers(), needed(world)) == ((["b", "c"], [], ["a"]), 6)

    def test_warm_goes_first(self, world: World) -> None:
        """However much older what is in hot may be."""
        put(world, "h")
        put(world, "v", 3, WARM)
        put(world, "w", 3, WARM)
        put(world, "n", 3)
        assert world.tiers() == (["h", "n"], ["w"], ["v"])

    def test_packed_in_warm_helps(self, world: World) -> None:
        """What is known to be smaller there stays there."""
        put(world, "a", 5)
        put(world, "b", 5)
        pack(world, "a", 2)
        put(world, "c", 3)
        assert (world.tiers(), needed(world)) == ((["b", "c"], ["a"], []), 10)

    def test_packed_in_warm_may_not_help_enough(self, world: World) -> None:
        """Then it goes on, and the next of hot comes down only if that is not enough either."""
        put(world, "a", 5)
        put(world, "b", 5)
        pack(world, "a", 2)
        put(world, "c", 4)
        assert (world.tiers(), needed(world)) == ((["b", "c"], [], ["a"]), 9)

    def test_newcomer_is_no_victim(self, world: World) -> None:
        """Everybody else leaves for a body that just fits, in hot as in warm."""
        for name, tier in (("h", HOT), ("w", WARM)):
            put(world, "a")
            put(world, "b", tier=WARM)
            assert put(world, name, 10, tier) is Note.PLACED
            assert world.row(name).tier is tier
            assert needed(world) == 10
            world.do(EvictLru(COLD, 4))

    def test_newcomer_is_the_latest_of_its_tier(self, world: World) -> None:
        """Behind those that came down for it."""
        put(world, "a", 8)
        pack(world, "a", 1)
        put(world, "n", 3, WARM)
        assert (world.tiers(), needed(world)) == (([], ["a", "n"], []), 4)

    def test_room_in_warm_for_the_newcomer_alone(self) -> None:
        """What leaves hot cannot stay in a warm that the newcomer fills, also if there are bytes enough."""
        world = World(replace(BUDGET, warm_entries=1))
        put(world, "a", 6)
        put(world, "b", 4)
        pack(world, "a", 1)
        put(world, "n", 3, WARM)
        assert (world.tiers(), needed(world)) == ((["b"], ["n"], ["a"]), 7)

    @pytest.mark.parametrize("tier", [HOT, WARM])
    def test_larger_than_the_arena_goes_to_cold(self, world: World, tier: Tier) -> None:
        """It empties nothing, and the reply says why it is where it is."""
        put(world, "a", 10)
        assert put(world, "big", 11, tier) is Note.LARGER_THAN_ARENA
        assert world.tiers() == (["a"], [], ["big"])

    def test_larger_than_hot_and_the_arena(self) -> None:
        """Cold is the only tier that can hold it."""
        world = World(replace(BUDGET, hot_tokens=5))
        reply = world.store("big", 6, body=bytes(11))
        assert (reply.tier, reply.note) == (COLD, Note.LARGER_THAN_ARENA)

    def test_cold_needs_nothing(self, world: World) -> None:
        """A body that goes there moves nobody, and is where it was asked for."""
        put(world, "a", 10)
        assert put(world, "big", 99, COLD) is Note.PLACED
        assert (world.tiers(), needed(world)) == ((["a"], [], ["big"]), 10)

    def test_equal_bodies_need_their_bytes_once(self, world: World) -> None:
        """A body that is there moves nobody; nor does one that is in cold too."""
        put(world, "a", body=b"x" * 10)
        put(world, "c", tier=COLD, body=b"x" * 10)
        put(world, "b", body=b"x" * 10)
        assert (world.tiers(), needed(world)) == ((["a", "b"], [], ["c"]), 10)

    def test_demoting_one_of_equals_may_free_nothing(self, world: World) -> None:
        """Then the next go, until it helps."""
        put(world, "a", body=b"xxxx")
        put(world, "b", 4)
        put(world, "c", body=b"xxxx")
        put(world, "n", 5)
        assert (world.tiers(), needed(world)) == ((["c", "n"], [], ["a", "b"]), 9)

    def test_hot_raises_what_warm_shares(self, world: World) -> None:
        """A packed body that somebody stores in hot as well is needed raw."""
        put(world, "w", tier=WARM, body=b"x" * 8)
        pack(world, "w", 1)
        put(world, "a", 5)
        assert needed(world) == 6
        put(world, "n", body=b"x" * 8)
        assert (world.tiers(), needed(world)) == ((["n"], [], ["w", "a"]), 8)

    def test_replaced_body_gives_back_its_bytes(self, world: World) -> None:
        """Nobody goes down for room that the old revision leaves."""
        put(world, "a", 5)
        put(world, "b", 5)
        put(world, "b", body=b"other")
        assert (world.tiers(), needed(world)) == ((["a", "b"], [], []), 10)

    def test_replacing_with_a_body_that_is_too_large(self, world: World) -> None:
        """The fragment leaves its tier for cold."""
        put(world, "a", 5)
        assert put(world, "a", 11) is Note.LARGER_THAN_ARENA
        assert (world.tiers(), needed(world)) == (([], [], ["a"]), 0)

    def test_full_cold_refuses(self, world: World) -> None:
        """Nothing is deleted for room, and nothing has changed."""
        for name in "cdef":
            put(world, name, tier=COLD)
        put(world, "a", 10)
        world.refuse(StoreFragment("p", "n", b"n", 1), TierFull, "delete some, or raise cold_entries")
        world.do(DeleteFragment("p", "c"))
        put(world, "n", 1)

    def test_too_many_moves(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Moves for the arena count like all others; following the advice helps."""
        for name in "abc":
            put(world, name, 3)
        monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", 3)
        world.refuse(StoreFragment("p", "n", bytes(10), 1), StepTooLarge, r"make room with evict_lru\(\) first")
        world.do(EvictLru(count=1))
        world.do(EvictLru(WARM, count=1))
        put(world, "n", body=bytes(10))
        assert world.tiers() == (["n"], [], ["a", "b", "c"])

    def test_falling_through_two_tiers_is_one_move(self, world: World) -> None:
        """From hot to cold, at one revision, ahead of the newcomer."""
        put(world, "a", 10)
        outcome = machine.apply(world.state, StoreFragment("p", "n", b"n", 1), world.origin())
        assert [(c.before and c.before.key, c.after and c.after.key) for c in outcome.changes] == [
            (("p", "a"), ("p", "a")),
            (None, ("p", "n")),
        ]
        assert outcome.revision == 2

    def test_all_budgets_in_one_step(self) -> None:
        """Tokens push hot down, entries push warm down, and the bytes that are then left are counted."""
        world = World(TierBudget(hot_tokens=2, warm_entries=2, arena_bytes=15))
        for name in "abcd":
            put(world, name, 2)
        put(world, "n", 5)
        assert (world.tiers(), needed(world)) == ((["d", "n"], ["c"], ["a", "b"]), 9)


class TestUndo:
    """A transaction that fails half-way has cost nothing."""

    def test_packed_sizes_are_not_forgotten(self, world: World) -> None:
        """A body that was dropped on the way is back with what it took, and so within the bound."""
        put(world, "w", tier=WARM, body=b"x" * 10)
        pack(world, "w", 1)
        put(world, "a", 9)
        world.abort([DeleteFragment("p", "w"), StoreFragment("p", "n", b"n", 1), DeleteFragment("p", "none")])
        assert (world.tiers(), needed(world)) == ((["a"], ["w"], []), 10)

    def test_dropped_and_stored_again(self, world: World) -> None:
        """In one transaction it is the same body, and keeps its packed size."""
        put(world, "w", tier=WARM, body=b"x" * 10)
        pack(world, "w", 1)
        again = StoreFragment("p", "v", b"x" * 10, 1, WARM)
        machine.apply_all(world.state, [DeleteFragment("p", "w"), again], world.origin())
        assert world.state.bodies.counts == {digest_of(b"x" * 10): BodyCount(10, 1, warm=1, is_tried=True)}


class TestUpAndDown:
    """A body grows on its way up, from compressed to raw."""

    def test_promotion_grows(self, world: World) -> None:
        """Others make way for the raw form, and the promoted is no victim."""
        put(world, "w", 8, WARM)
        pack(world, "w", 1)
        put(world, "a", 9)
        world.do(PromoteFragment("p", "w"))
        assert (world.tiers(), needed(world)) == ((["w"], [], ["a"]), 8)

    def test_promotion_from_cold(self, world: World) -> None:
        """It needs room as a store does."""
        put(world, "c", 8, COLD)
        put(world, "a", 9)
        world.do(PromoteFragment("p", "c"))
        assert (world.tiers(), needed(world)) == (([], ["c"], ["a"]), 8)

    def test_too_large_stays(self, world: World) -> None:
        """In cold, and the reply says so; no number of reads lifts it either."""
        put(world, "big", 11, COLD)
        reply = world.do(PromoteFragment("p", "big"))
        assert (reply.tier, reply.note) == (COLD, Note.LARGER_THAN_ARENA)
        for _ in range(6):
            assert world.do(GetFragment("p", "big")).row.tier is COLD

    def test_too_large_for_hot_stays_in_warm(self, world: World) -> None:
        """Where it is small enough while it is compressed, it does not even leave."""
        put(world, "w", 10, WARM)
        pack(world, "w", 2)
        world.do(SetBudget(replace(BUDGET, arena_bytes=4)))
        reply = world.do(PromoteFragment("p", "w"))
        assert (reply.tier, reply.note) == (WARM, Note.LARGER_THAN_ARENA)
        for _ in range(6):
            assert world.do(GetFragment("p", "w")).row.tier is WARM
        assert needed(world) == 2

    def test_climb_makes_room(self, world: World) -> None:
        """The access that lifts a fragment lowers others."""
        put(world, "c", 8, COLD)
        put(world, "a", 9)
        tiers = [world.do(GetFragment("p", "c")).row.tier for _ in range(5)]
        assert tiers == [COLD] * 4 + [WARM]
        assert world.tiers() == ([], ["c"], ["a"])

    def test_climb_without_room(self, world: World) -> None:
        """A reader is not refused: the fragment stays."""
        put(world, "w", 8, WARM)
        pack(world, "w", 1)
        put(world, "a", 9)
        for name in "cdef":
            put(world, name, tier=COLD)
        for _ in range(6):
            assert world.do(GetFragment("p", "w")).row.tier is WARM

    def test_demotion_needs_no_room(self, world: World) -> None:
        """However full the arena is, also with cold full."""
        for name in "cdef":
            put(world, name, tier=COLD)
        put(world, "a", 10)
        world.do(DemoteFragment("p", "a"))
        assert (world.row("a").tier, needed(world)) == (WARM, 10)
        world.do(DeleteFragment("p", "c"))
        world.do(DemoteFragment("p", "a"))
        assert needed(world) == 0

    def test_scoped_eviction_moves_nobody_else(self, world: World) -> None:
        """What goes down needs no more than before, so that a full arena moves nobody of another project."""
        world.store("x", project="q", tier=WARM, body=b"x" * 5)
        put(world, "a", 5)
        assert moved(world.do(EvictLru(), projects={"p"})) == [("a", HOT, WARM)]
        assert (world.tiers(), needed(world)) == (([], ["x", "a"], []), 10)


class TestBudget:
    """The bound can be moved."""

    def test_lower(self, world: World) -> None:
        """What no longer fits goes down in the same step."""
        put(world, "w", 3, WARM)
        for name in "abc":
            put(world, name, 2)
        world.do(SetBudget(replace(BUDGET, arena_bytes=8)))
        assert (world.tiers(), needed(world)) == ((["b", "c"], [], ["w", "a"]), 4)

    def test_lower_without_room(self, world: World) -> None:
        """It is refused where cold cannot take what has to go, and in one go only so many do."""
        for name in "cdef":
            put(world, name, tier=COLD)
        put(world, "a", 10)
        world.refuse(SetBudget(replace(BUDGET, arena_bytes=14)), TierFull, "delete some, or raise cold_entries")

    def test_lower_too_much_at_once(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The advice is to go in parts."""
        for name in "abc":
            put(world, name, 3)
        monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", 1)
        world.refuse(SetBudget(replace(BUDGET, arena_bytes=5)), StepTooLarge, "lower the budget in parts")
        world.do(SetBudget(replace(BUDGET, arena_bytes=9)))
        world.do(SetBudget(replace(BUDGET, arena_bytes=5)))
        assert world.tiers() == (["c"], [], ["a", "b"])

    def test_no_room_at_all(self, world: World) -> None:
        """An arena that can hold nothing holds nothing, except what needs nothing."""
        put(world, "a")
        world.do(StoreFragment("p", "empty", b"", 1))
        world.do(SetBudget(replace(BUDGET, arena_bytes=1)))
        assert (world.row("a").tier, needed(world)) == (COLD, 0)
        assert world.do(StoreFragment("p", "nothing", b"", 1)).tier is HOT


class TestRelieve:
    """The manager makes room ahead of a body that is about to arrive."""

    def test_room_is_there(self, world: World) -> None:
        """Then nothing moves, and there is no revision."""
        put(world, "a")
        assert world.do(RelieveArena(6)) == FragmentsMoved((), more=False)
        assert world.state.revision == 1

    def test_least_recently_used_go_down(self, world: World) -> None:
        """Of warm, then of hot, no more than needed."""
        put(world, "a", 3)
        put(world, "w", 3, WARM)
        put(world, "b", 3)
        assert moved(world.do(RelieveArena(3))) == [("w", WARM, COLD)]
        assert moved(world.do(RelieveArena(6))) == [("a", HOT, COLD)]
        assert (world.tiers(), needed(world), world.state.revision) == ((["b"], [], ["w", "a"]), 3, 5)

    def test_packed_in_warm_helps(self, world: World) -> None:
        """One tier down is enough for what is known to be small there."""
        put(world, "a", 5)
        pack(world, "a", 2)
        assert moved(world.do(RelieveArena(8))) == [("a", HOT, WARM)]

    def test_more_than_there_is(self, world: World) -> None:
        """It frees what can be freed, and promises nothing; what needs nothing stays."""
        put(world, "a")
        world.do(StoreFragment("p", "empty", b"", 1))
        reply = world.do(RelieveArena(99))
        assert (moved(reply), reply.more) == ([("a", HOT, COLD)], False)
        assert world.do(RelieveArena(99)) == FragmentsMoved((), more=False)

    def test_is_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """It moves so many and says that another call would help."""
        monkeypatch.setattr(limits, "SWEEP_MOVES_MAX", 2)
        for name in "abc":
            put(world, name, 3)
        first = world.do(RelieveArena(9))
        # The second has come as far as warm when the step is full.
        assert (moved(first), first.more) == ([("a", HOT, COLD), ("b", HOT, WARM)], True)
        second = world.do(RelieveArena(9))
        assert (moved(second), second.more) == ([("b", WARM, COLD), ("c", HOT, WARM)], True)
        third = world.do(RelieveArena(9))
        assert (moved(third), third.more, needed(world)) == ([("c", WARM, COLD)], False, 0)

    def test_full_cold_is_no_refusal(self, world: World) -> None:
        """It moves as many as cold can take, then none, and says that it would not help to ask again."""
        for name in "cde":
            put(world, name, tier=COLD)
        put(world, "a", 5)
        put(world, "b", 5)
        before = image(world.state)
        reply = world.do(RelieveArena(10))
        assert (moved(reply), reply.more, needed(world)) == ([("a", HOT, COLD)], False, 5)
        assert image(world.state) != before
        before = image(world.state)
        assert world.do(RelieveArena(10)) == FragmentsMoved((), more=False)
        assert image(world.state) == before


class TestUploads:
    """A large body arrives beside the request, which names it by its number."""

    def test_store(self, world: World) -> None:
        """It is as if the bytes had come along, except that they did not."""
        held = (digest_of(b"large"), 5)
        origin = replace(world.origin(), uploads={3: held})
        outcome = machine.apply(world.state, StoreFragment("p", "f", 3, 1), origin)
        row = world.row("f")
        assert ((row.digest, row.size), outcome.bodies) == (held, {})
        assert needed(world) == 5

    def test_unknown(self, world: World) -> None:
        """Nothing is stored under a number that was not offered."""
        world.refuse(StoreFragment("p", "f", 3, 1), InvalidArgument, "there is no upload 3 on this connection")

    def test_counts_against_the_bounds(self, world: World) -> None:
        """By its size, like any other."""
        origin = replace(world.origin(), uploads={0: (digest_of(b"x"), 11)})
        machine.apply(world.state, StoreFragment("p", "f", 0, 1), origin)
        assert world.row("f").tier is COLD


class TestReading:
    """What can be asked about bodies."""

    def test_metrics(self, world: World) -> None:
        """What bodies need, of all; of a scope the raw bytes of its hot and warm, because bodies are shared."""
        put(world, "a", body=b"xxxx")
        put(world, "w", 3, WARM)
        pack(world, "w", 1)
        put(world, "c", 3, COLD)
        world.store("b", project="q", body=b"xxxx")
        assert world.do(GetMetrics()).arena_bytes == 5
        assert world.do(GetMetrics(), projects={"p"}).arena_bytes == 7
        assert world.do(GetMetrics(), projects={"q"}).arena_bytes == 4

    def test_locate(self, world: World) -> None:
        """Those that something refers to, from any tier and project; no access, no revision."""
        world.store("a", body=b"hot")
        world.store("b", project="q", tier=COLD, body=b"cold")
        before = image(world.state)
        digests = tuple(map(digest_of, (b"cold", b"nobody's", b"hot")))
        reply = world.do(LocateBodies(digests), projects={"p"})
        assert reply.found == reply.body_digests == (digests[0], digests[2])
        assert image(world.state) == before
        world.do(DeleteFragment("q", "b"))
        assert world.do(LocateBodies(digests[:1])).found == ()
