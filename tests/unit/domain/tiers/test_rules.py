"""Every operation and every rule of the tiers."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.replies import FragmentsMoved, Move, Note, TierUsage
from stepwell.domain.tiers.body_refs import BodyCount, digest_of
from stepwell.domain.tiers.commands import (
    CheckFragment,
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    ListFragments,
    ListProjects,
    PeekFragment,
    PromoteFragment,
    SetBudget,
    StoreFragment,
    SweepIdle,
    SweepStale,
)
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.tiers.table import FragmentTable
from stepwell.domain.tiers.tier_index import FragmentEntry
from stepwell.errors import Conflict, InvalidArgument, NotFound, OutOfScope, StepTooLarge, TierFull
from tests.support.domain.world import NOON_MS, World, image

SMALL = TierBudget(hot_tokens=10, warm_entries=3, cold_entries=3)
HOUR_MS = 3_600_000


@pytest.fixture
def world() -> World:
    """Hot holds ten tokens, warm and cold three fragments each."""
    return World(SMALL)


def moved(reply: FragmentsMoved) -> list[tuple[str, Tier, Tier | None]]:
    return [(move.fragment_id, move.source, move.target) for move in reply.moves]


class TestStore:
    """Insert, replace and enforcement are one step."""

    def test_reply_and_row(self, world: World) -> None:
        """The reply says where the fragment is; the row has everything that was given."""
        command = StoreFragment("p", "f", b"body", 3, Tier.WARM, "src/f.py", "code", 2, {"k": "v"})
        reply = world.do(command)
        row = world.row("f")
        assert (reply.tier, reply.tokens, reply.revision, reply.note) == (Tier.WARM, 3, 1, Note.PLACED)
        assert (reply.project, reply.fragment_id, reply.digest) == ("p", "f", digest_of(b"body"))
        assert (row.source, row.kind, row.detail_depth, row.size) == ("src/f.py", "code", 2, 4)
        assert (row.metadata, row.created_at_ms, row.digest) == ({"k": "v"}, NOON_MS, digest_of(b"body"))

    def test_body_travels_beside_the_row(self, world: World) -> None:
        """The outcome has the bytes, for whoever keeps them."""
        outcome = machine.apply(world.state, StoreFragment("p", "f", b"body", 1), world.origin())
        assert outcome.bodies == {digest_of(b"body"): b"body"}

    def test_over_budget_demotes_the_least_recently_used(self, world: World) -> None:
        """Hot never exceeds its tokens; what leaves goes to warm, whole."""
        world.store("a", 4)
        world.store("b", 4)
        before = world.row("a")
        world.do(GetFragment("p", "b"))
        world.store("c", 6)
        assert world.tiers() == (["b", "c"], ["a"], [])
        after = world.row("a")
        assert (after.tokens, after.digest, after.size) == (before.tokens, before.digest, before.size)
        assert after.revision == before.revision

    def test_overflow_cascades_in_one_step(self, world: World) -> None:
        """One store may push hot into warm and warm into cold, at one revision."""
        for name in "abcd":
            world.store(name, 10)
        revision = world.state.revision
        outcome = machine.apply(world.state, StoreFragment("p", "e", b"e", 10), world.origin())
        assert world.tiers() == (["e"], ["b", "c", "d"], ["a"])
        assert world.state.revision == outcome.revision == revision + 1
        assert len(outcome.changes) == 3

    def test_one_insert_can_demote_many_past_warm(self, world: World) -> None:
        """More victims than warm can hold: those that were in warm go first, then the oldest arrivals."""
        world.store("w", tier=Tier.WARM)
        for name in "abcde":
            world.store(name, 2)
        world.store("big", 9)
        assert world.tiers() == (["big"], ["c", "d", "e"], ["w", "a", "b"])

    def test_newcomer_is_never_its_own_victim(self, world: World) -> None:
        """A fragment that just fits hot stays, and everybody else leaves."""
        world.store("a", 5)
        assert world.store("b", 10).tier is Tier.HOT
        assert world.tiers() == (["b"], ["a"], [])

    def test_larger_than_hot_goes_to_warm(self, world: World) -> None:
        """It does not empty hot, and the reply says why it is where it is."""
        world.store("a", 10)
        reply = world.store("big", 11)
        assert (reply.tier, reply.note) == (Tier.WARM, Note.LARGER_THAN_HOT)
        assert world.tiers() == (["a"], ["big"], [])

    @pytest.mark.parametrize("tier", Tier)
    def test_full_tiers_refuse(self, world: World, tier: Tier) -> None:
        """With cold full, what would overflow into it is refused, with advice, and nothing changes."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        for name in "def":
            world.store(name, tier=Tier.WARM)
        world.store("g", 10)
        error = world.refuse(StoreFragment("p", "x", b"x", 10, tier), TierFull, "delete some, or raise cold_entries")
        assert error.details == {"cold_entries": 3}

    def test_bytes_are_bounded(self) -> None:
        """Bodies count once however often they are stored; past the bound a store is refused."""
        world = World(TierBudget(bodies_bytes=6))
        world.store("a", body=b"1234")
        world.store("b", body=b"1234")
        world.store("c", body=b"56")
        world.refuse(StoreFragment("p", "d", b"7", 1), TierFull, "bodies have no room left in their 6 bytes: delete")
        world.do(DeleteFragment("p", "c"))
        world.store("d", body=b"7")

    def test_step_that_moves_too_much(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is refused with advice, and following the advice helps."""
        monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", 3)
        for name in "abc":
            world.store(name, 3)
        world.refuse(StoreFragment("p", "x", b"x", 10), StepTooLarge, r"make room with evict_lru\(\) first")
        world.do(EvictLru(count=2))
        world.store("x", 10)
        assert world.order(Tier.HOT) == ["x"]

    def test_replacing_is_atomic(self, world: World) -> None:
        """One fragment, a new revision, its creation and count of accesses kept, its old body gone."""
        world.store("f", 4, body=b"old")
        world.do(GetFragment("p", "f"))
        world.now_ms += 5
        reply = world.store("f", 6, body=b"new", tier=Tier.WARM)
        row = world.row("f")
        assert (row.created_at_ms, row.placed_at_ms, row.serial) == (NOON_MS, NOON_MS + 5, 1)
        assert (row.revision, row.tokens, row.tier) == (reply.revision, 6, Tier.WARM)
        assert world.state.bodies.counts == {digest_of(b"new"): BodyCount(3, 3, warm=1)}
        assert world.do(GetFragment("p", "f")).access_count == 2

    def test_replacing_frees_the_tokens_of_what_it_replaces(self, world: World) -> None:
        """Nobody is demoted for room that the old revision gives back."""
        world.store("a", 5)
        world.store("b", 5)
        world.store("b", 5, body=b"other")
        assert world.tiers() == (["a", "b"], [], [])

    def test_replacing_in_a_full_cold_tier(self, world: World) -> None:
        """The old revision makes the room."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        world.store("b", tier=Tier.COLD, body=b"other")
        assert world.order(Tier.COLD) == ["a", "c", "b"]

    def test_expected_revision(self, world: World) -> None:
        """A stale writer is refused; moving between tiers makes nobody stale."""
        first = world.store("f").revision
        world.do(DemoteFragment("p", "f"))
        world.do(GetFragment("p", "f"))
        second = world.do(StoreFragment("p", "f", b"2", 1, expected_revision=first)).revision
        error = world.refuse(
            StoreFragment("p", "f", b"3", 1, expected_revision=first), Conflict, "read it again and decide anew"
        )
        assert error.retry
        assert error.details == {"expected": first, "actual": second}

    def test_expected_revision_zero_means_absent(self, world: World) -> None:
        """Create, and never overwrite."""
        world.do(StoreFragment("p", "f", b"1", 1, expected_revision=0))
        world.refuse(StoreFragment("p", "f", b"2", 1, expected_revision=0), Conflict, "is at revision 1, not 0")
        world.refuse(StoreFragment("p", "g", b"2", 1, expected_revision=7), Conflict, "is at revision 0, not 7")

    def test_same_id_in_two_projects(self, world: World) -> None:
        """The key is the project and the id."""
        world.store("f", project="p")
        world.store("f", project="q")
        assert (world.row("f", "p").serial, world.row("f", "q").serial) == (1, 2)

    def test_metadata_is_bounded(self, world: World) -> None:
        """A decoder bounds each entry; the whole is bounded here."""
        command = StoreFragment("p", "f", b"", 1, metadata=dict.fromkeys("abc", "x" * 8_000))
        world.refuse(command, InvalidArgument, "store what is large as a body")

    @pytest.mark.parametrize(
        "names, problem",
        [
            (("a b", "f", "text"), "project is malformed"),
            (("p", "f\n", "text"), "fragment_id is malformed"),
            (("p", "", "text"), "fragment_id is malformed"),
            (("p", "f", "-"), "kind is malformed"),
        ],
    )
    def test_names_are_held_to_their_bounds(self, world: World, names: tuple[str, str, str], problem: str) -> None:
        """No decoder has looked at their patterns."""
        project, fragment_id, kind = names
        world.do(StoreFragment("p", "there", b"1", 1))
        before = image(world.state)
        with pytest.raises(InvalidArgument, match=problem):
            world.do(StoreFragment(project, fragment_id, b"2", 1, kind=kind))
        assert image(world.state) == before


class TestPeek:
    """A read that is no access."""

    @pytest.mark.parametrize("tier", Tier)
    def test_nothing_changes(self, world: World, tier: Tier) -> None:
        """However often a fragment is looked at: no use, no move, no revision."""
        world.store("a", tier=tier)
        world.do(GetFragment("p", "a"))
        world.store("b", tier=tier)
        before = image(world.state)
        world.now_ms += 7
        for _ in range(2 * SMALL.promotion_threshold):
            found = world.do(PeekFragment("p", "a"))
            assert (found.access_count, found.last_accessed_ms, found.row) == (1, NOON_MS, world.row("a"))
            assert found.body_digests == (digest_of(b"a"),)
            assert world.do(CheckFragment("p", "a")).fragment_revision == world.row("a").revision
        assert image(world.state) == before

    def test_absent(self, world: World) -> None:
        """A peek is refused, a check finds none."""
        world.refuse(PeekFragment("p", "a"), NotFound, "no fragment 'a'")
        assert world.do(CheckFragment("p", "a")).fragment_revision is None

    @pytest.mark.parametrize("kind", [PeekFragment, CheckFragment])
    def test_refused(self, world: World, kind: type[PeekFragment | CheckFragment]) -> None:
        """A malformed name, and a project outside of the scope, whether or not the fragment exists."""
        world.store("a")
        world.refuse(kind("p", "a\n"), InvalidArgument, "fragment")
        for name in "ab":
            with pytest.raises(OutOfScope):
                world.do(kind("p", name), projects=["q"])


class TestGet:
    """A read, an access, and now and then a climb."""

    def test_access_without_revision(self, world: World) -> None:
        """Recency and count change; revision and rows do not."""
        world.store("a")
        world.store("b")
        rows = [world.row("a"), world.row("b")]
        world.now_ms += 7
        outcome = machine.apply(world.state, GetFragment("p", "a"), world.origin())
        assert (outcome.revision, outcome.changes) == (2, ())
        assert [world.row("a"), world.row("b")] == rows
        assert world.order(Tier.HOT) == ["b", "a"]
        found = world.do(GetFragment("p", "a"))
        assert (found.access_count, found.last_accessed_ms, found.row) == (2, NOON_MS + 7, rows[0])
        assert found.body_digests == (digest_of(b"a"),)

    @pytest.mark.parametrize("tier, above", [(Tier.WARM, Tier.HOT), (Tier.COLD, Tier.WARM)])
    def test_fifth_access_climbs(self, world: World, tier: Tier, above: Tier) -> None:
        """The threshold counts accesses since the last move; the climb has its revision, and shows in the reply."""
        world.store("f", tier=tier)
        for _ in range(4):
            assert world.do(GetFragment("p", "f")).row.tier is tier
        assert world.state.revision == 1
        outcome = machine.apply(world.state, GetFragment("p", "f"), world.origin())
        assert outcome.revision == world.state.revision == 2
        assert world.row("f").tier is above
        found = world.do(GetFragment("p", "f"))
        assert (found.row.tier, found.access_count) == (above, 6)

    def test_counting_starts_anew_after_a_move(self, world: World) -> None:
        """From cold it takes twice the threshold to reach hot."""
        world.store("f", tier=Tier.COLD)
        tiers = [world.do(GetFragment("p", "f")).row.tier for _ in range(10)]
        assert tiers == [Tier.COLD] * 4 + [Tier.WARM] * 5 + [Tier.HOT]

    def test_explicit_move_resets_the_count(self, world: World) -> None:
        """A demotion is a move too."""
        world.store("f", tier=Tier.WARM)
        for _ in range(4):
            world.do(GetFragment("p", "f"))
        world.do(DemoteFragment("p", "f"))
        assert world.do(GetFragment("p", "f")).row.tier is Tier.COLD

    def test_hot_stays_hot(self, world: World) -> None:
        """There is nowhere to climb to, and no revision."""
        world.store("f")
        for _ in range(7):
            world.do(GetFragment("p", "f"))
        assert world.state.revision == 1

    def test_larger_than_hot_does_not_climb(self, world: World) -> None:
        """It would empty hot and still not fit."""
        world.store("a", 10)
        world.store("big", 11)
        for _ in range(6):
            assert world.do(GetFragment("p", "big")).row.tier is Tier.WARM
        assert world.tiers() == (["a"], ["big"], [])

    def test_climb_makes_room(self, world: World) -> None:
        """Who is above goes down for it, in the same step, and the climber is the one in the reply."""
        world.store("f", 4, tier=Tier.WARM)
        world.store("a", 8)
        replies = [world.do(GetFragment("p", "f")) for _ in range(5)]
        assert replies[-1].row.fragment_id == "f"
        assert replies[-1].row.tier is Tier.HOT
        assert world.tiers() == (["f"], ["a"], [])

    def test_reader_is_not_refused_for_lack_of_room(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where the climb would be refused, the read succeeds and the fragment stays."""
        for name in "ab":
            world.store(name, 5)
        world.store("f", 10, tier=Tier.WARM)
        monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", 2)
        for _ in range(6):
            assert world.do(GetFragment("p", "f")).row.tier is Tier.WARM
        monkeypatch.undo()
        assert world.do(GetFragment("p", "f")).row.tier is Tier.HOT

    def test_names_are_held_to_their_bounds(self, world: World) -> None:
        """What cannot be there is not just missing."""
        with pytest.raises(InvalidArgument, match="fragment_id is malformed"):
            world.do(GetFragment("p", "a\nb"))

    def test_missing(self, world: World) -> None:
        """A name that nothing has is an error that repeats it."""
        error = world.refuse(GetFragment("p", "f"), NotFound, "project 'p' has no fragment 'f'")
        assert isinstance(error, LookupError)
        assert error.details == {"project": "p", "fragment_id": "f"}

    def test_climb_into_full_tiers(self, world: World) -> None:
        """Up and down exchange places, which needs no room in cold."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        for name in "def":
            world.store(name, tier=Tier.WARM)
        for _ in range(5):
            world.do(GetFragment("p", "a"))
        assert world.tiers() == ([], ["e", "f", "a"], ["b", "c", "d"])


class TestPromoteAndDemote:
    """One tier at a time, as far as there is one."""

    def test_up_and_down(self, world: World) -> None:
        """Each step says where the fragment is, and neither changes its revision of the body."""
        revision = world.store("f", 3, tier=Tier.COLD).revision
        replies = [
            world.do(PromoteFragment("p", "f")),
            world.do(PromoteFragment("p", "f")),
            world.do(PromoteFragment("p", "f")),
            world.do(DemoteFragment("p", "f")),
            world.do(DemoteFragment("p", "f")),
            world.do(DemoteFragment("p", "f")),
        ]
        assert [(reply.tier, reply.note) for reply in replies] == [
            (Tier.WARM, Note.PLACED),
            (Tier.HOT, Note.PLACED),
            (Tier.HOT, Note.ALREADY_THERE),
            (Tier.WARM, Note.PLACED),
            (Tier.COLD, Note.PLACED),
            (Tier.COLD, Note.ALREADY_THERE),
        ]
        assert {(reply.tokens, reply.revision, reply.digest) for reply in replies} == {(3, revision, digest_of(b"f"))}

    def test_promoted_is_not_the_victim_of_its_promotion(self, world: World) -> None:
        """Others make room, oldest first."""
        world.store("f", 6, tier=Tier.WARM)
        world.store("a", 3)
        world.store("b", 3)
        world.do(PromoteFragment("p", "f"))
        assert world.tiers() == (["b", "f"], ["a"], [])

    def test_promoted_into_full_warm_is_no_victim(self, world: World) -> None:
        """Nor on the way from cold to warm."""
        for name in "abc":
            world.store(name, tier=Tier.WARM)
        world.store("f", tier=Tier.COLD)
        world.do(PromoteFragment("p", "f"))
        assert world.tiers() == ([], ["b", "c", "f"], ["a"])

    def test_what_cannot_fit_stays_in_warm(self, world: World) -> None:
        """And the reply says so."""
        world.store("a", 10)
        world.store("big", 11)
        reply = world.do(PromoteFragment("p", "big"))
        assert (reply.tier, reply.note) == (Tier.WARM, Note.LARGER_THAN_HOT)
        assert world.tiers() == (["a"], ["big"], [])

    def test_large_climbs_from_cold_to_warm(self, world: World) -> None:
        """The bound of hot is none for warm."""
        world.store("big", 11, tier=Tier.COLD)
        assert world.do(PromoteFragment("p", "big")).tier is Tier.WARM

    def test_demotion_into_full_tiers(self, world: World) -> None:
        """The demoted pushes the oldest of warm on; with cold full it is refused."""
        for name in "abc":
            world.store(name, tier=Tier.WARM)
        world.store("f")
        world.store("g")
        world.do(DemoteFragment("p", "f"))
        assert world.tiers() == (["g"], ["b", "c", "f"], ["a"])
        world.do(DemoteFragment("p", "b"))
        world.do(DemoteFragment("p", "c"))
        world.refuse(DemoteFragment("p", "f"), TierFull, "cold already holds its 3 entries: delete some")

    def test_missing(self, world: World) -> None:
        """Neither invents a fragment."""
        world.refuse(PromoteFragment("p", "f"), NotFound, "has no fragment 'f'")
        world.refuse(DemoteFragment("p", "f"), NotFound, "has no fragment 'f'")


class TestDelete:
    """The only way out, besides cold's retention."""

    def test_delete(self, world: World) -> None:
        """The fragment, its body and, with its last fragment, its project are gone."""
        world.store("f", body=b"body")
        reply = world.do(DeleteFragment("p", "f"))
        assert (reply.project, reply.fragment_id, reply.tier) == ("p", "f", Tier.HOT)
        assert world.state.bodies.bytes == 0
        assert world.do(ListProjects()).projects == ()
        world.refuse(DeleteFragment("p", "f"), NotFound, "has no fragment 'f'")

    def test_shared_body_stays(self, world: World) -> None:
        """As long as anybody refers to it."""
        world.store("a", body=b"same")
        world.store("b", body=b"same")
        world.do(DeleteFragment("p", "a"))
        assert world.state.bodies.counts == {digest_of(b"same"): BodyCount(4, 4, hot=1)}

    def test_expected_revision(self, world: World) -> None:
        """What changed since is not deleted."""
        first = world.store("f").revision
        second = world.store("f", body=b"2").revision
        world.refuse(DeleteFragment("p", "f", first), Conflict, "read it again")
        world.do(DeleteFragment("p", "f", second))

    def test_serial_is_not_reused(self, world: World) -> None:
        """A fragment that comes again comes last in pages."""
        world.store("a")
        world.store("b")
        world.do(DeleteFragment("p", "b"))
        assert world.row("a").serial == 1
        world.store("b")
        assert world.row("b").serial == 4  # the revision, which the deletion has increased too


class TestEvict:
    """The least recently used go down one tier."""

    def test_default_is_one_from_hot(self, world: World) -> None:
        """And the reply says what moved."""
        world.store("a")
        world.store("b")
        world.do(GetFragment("p", "a"))
        assert world.do(EvictLru()).moves == (Move("p", "b", Tier.HOT, Tier.WARM),)
        assert world.tiers() == (["a"], ["b"], [])

    def test_count(self, world: World) -> None:
        """Oldest first, and no more than there are."""
        for name in "abc":
            world.store(name)
        assert [move.fragment_id for move in world.do(EvictLru(count=2)).moves] == ["a", "b"]
        assert [move.fragment_id for move in world.do(EvictLru(count=2)).moves] == ["c"]
        assert world.do(EvictLru(count=2)).moves == ()

    def test_from_warm(self, world: World) -> None:
        """To cold."""
        world.store("a", tier=Tier.WARM)
        assert moved(world.do(EvictLru(Tier.WARM))) == [("a", Tier.WARM, Tier.COLD)]

    def test_from_cold_deletes_and_says_so(self, world: World) -> None:
        """There is nothing below."""
        world.store("a", tier=Tier.COLD)
        assert moved(world.do(EvictLru(Tier.COLD))) == [("a", Tier.COLD, None)]
        assert len(world.state.fragments) == 0

    def test_overflow_of_warm_is_reported_too(self, world: World) -> None:
        """What moved is what moved, also further down."""
        for name in "wxy":
            world.store(name, tier=Tier.WARM)
        world.store("a")
        assert moved(world.do(EvictLru())) == [("a", Tier.HOT, Tier.WARM), ("w", Tier.WARM, Tier.COLD)]

    def test_more_than_warm_can_hold(self, world: World) -> None:
        """The oldest of the evicted fall through to cold, each in one move."""
        for name in "abcde":
            world.store(name)
        assert moved(world.do(EvictLru(count=5))) == [
            ("c", Tier.HOT, Tier.WARM),
            ("d", Tier.HOT, Tier.WARM),
            ("e", Tier.HOT, Tier.WARM),
            ("a", Tier.HOT, Tier.COLD),
            ("b", Tier.HOT, Tier.COLD),
        ]
        assert world.tiers() == ([], ["c", "d", "e"], ["a", "b"])

    def test_full_cold_refuses(self, world: World) -> None:
        """Eviction never deletes to make room."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        world.store("w", tier=Tier.WARM)
        world.refuse(EvictLru(Tier.WARM), TierFull, "delete some, or raise cold_entries")

    def test_too_many_moves(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Evicting what overflows warm counts every move."""
        monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", 2)
        for name in "xyz":
            world.store(name, tier=Tier.WARM)
        for name in "ab":
            world.store(name)
        world.refuse(EvictLru(count=2), StepTooLarge, "more than 2 fragments in one step")
        assert len(world.do(EvictLru(count=1)).moves) == 2

    def test_scoped_session_evicts_its_own(self, world: World) -> None:
        """Older fragments of other projects stay; several projects of the session are one order."""
        for project, name in (("q", "other"), ("p", "a"), ("r", "b"), ("p", "c")):
            world.store(name, project=project)
        reply = world.do(EvictLru(count=2), projects={"p", "r", "empty"})
        assert [move.fragment_id for move in reply.moves] == ["a", "b"]
        assert world.order(Tier.HOT) == ["other", "c"]

    def test_scoped_eviction_moves_nobody_else(self, world: World) -> None:
        """A warm that is full of others' stays as it is: what was evicted falls through to cold."""
        for name in "xyz":
            world.store(name, project="q", tier=Tier.WARM)
        world.store("a")
        assert moved(world.do(EvictLru(), projects={"p"})) == [("a", Tier.HOT, Tier.COLD)]
        assert world.tiers() == ([], ["x", "y", "z"], ["a"])

    def test_scoped_eviction_cascades_into_its_own(self, world: World) -> None:
        """Its own in warm go first, however much older the others' are; several projects are one order."""
        for name, project in (("x", "q"), ("a", "p"), ("b", "r")):
            world.store(name, project=project, tier=Tier.WARM)
        for name in "cde":
            world.store(name)
        assert moved(world.do(EvictLru(count=3), projects={"p", "r"})) == [
            ("d", Tier.HOT, Tier.WARM),
            ("e", Tier.HOT, Tier.WARM),
            ("a", Tier.WARM, Tier.COLD),
            ("b", Tier.WARM, Tier.COLD),
            ("c", Tier.HOT, Tier.COLD),
        ]
        assert world.tiers() == ([], ["x", "d", "e"], ["a", "b", "c"])

    @pytest.mark.parametrize("tier", [Tier.HOT, Tier.WARM])
    def test_scoped_eviction_without_room(self, world: World, tier: Tier) -> None:
        """Where only others could make room, it is refused, and nobody has moved."""
        for name in "abc":
            world.store(name, project="q", tier=Tier.COLD)
        for name in "xy":
            world.store(name, project="q", tier=Tier.WARM)
        world.store("w", tier=Tier.WARM)
        world.store("h")
        world.refuse(EvictLru(tier), TierFull, "delete some, or raise cold_entries", projects={"p"})
        world.do(DeleteFragment("q", "a"))
        assert moved(world.do(EvictLru(tier), projects={"p"}))[-1] == ("w", Tier.WARM, Tier.COLD)

    def test_unrestricted_eviction_cascades_into_all(self, world: World) -> None:
        """Budgets are global, and so is its scope."""
        for name in "xyz":
            world.store(name, project="q", tier=Tier.WARM)
        world.store("a")
        assert moved(world.do(EvictLru())) == [("a", Tier.HOT, Tier.WARM), ("x", Tier.WARM, Tier.COLD)]

    def test_is_no_scan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Evicting one of many looks at one, whoever asks."""
        world = World()
        for number in range(300):
            machine.apply(world.state, StoreFragment("p", str(number), b"", 1), world.origin())
        looked_at: list[str] = []
        oldest = FragmentTable.oldest

        def counting(
            table: FragmentTable, tier: Tier, projects: frozenset[str] | None = None
        ) -> Iterator[FragmentEntry]:
            for entry in oldest(table, tier, projects):
                looked_at.append(entry.row.fragment_id)
                yield entry

        monkeypatch.setattr(FragmentTable, "oldest", counting)
        machine.apply(world.state, EvictLru(), world.origin())
        machine.apply(world.state, EvictLru(), world.origin(projects={"p"}))
        machine.apply(world.state, SweepStale(), world.origin())
        # One victim each; the sweep looks at the first of warm and of hot, finds them fresh, and stops.
        assert looked_at == ["0", "1", "0", "2"]


class TestSweep:
    """What was idle for too long goes down; what outlived cold goes away."""

    def budget(self, world: World, **changes: int) -> None:
        world.do(SetBudget(replace(world.state.budget, **changes)))

    def test_nothing_stale(self, world: World) -> None:
        """A sweep of fresh fragments moves nothing, and still has its revision."""
        world.store("a")
        revision = world.state.revision
        assert world.do(SweepStale()) == FragmentsMoved((), more=False)
        assert world.state.revision == revision + 1

    def test_each_tier_has_its_age(self, world: World) -> None:
        """Idle for exactly as long as allowed is stale; a millisecond less is not."""
        budget = world.state.budget
        for tier, ttl_ms, target in (
            (Tier.HOT, budget.hot_ttl_ms, Tier.WARM),
            (Tier.WARM, budget.warm_ttl_ms, Tier.COLD),
            (Tier.COLD, budget.cold_retention_ms, None),
        ):
            world.store("f", tier=tier)
            world.now_ms += ttl_ms - 1
            assert moved(world.do(SweepStale())) == []
            world.now_ms += 1
            assert moved(world.do(SweepStale())) == [("f", tier, target)]

    def test_reading_keeps_fresh(self, world: World) -> None:
        """Idle is since the last read, not since the store."""
        world.store("a")
        world.store("b")
        world.now_ms += HOUR_MS - 1
        world.do(GetFragment("p", "a"))
        world.now_ms += 1
        assert moved(world.do(SweepStale())) == [("b", Tier.HOT, Tier.WARM)]

    def test_moving_starts_the_new_tiers_clock(self, world: World) -> None:
        """Nothing falls through two tiers in one sweep, however old it is."""
        world.store("f")
        world.now_ms += 365 * 24 * HOUR_MS
        assert moved(world.do(SweepStale())) == [("f", Tier.HOT, Tier.WARM)]
        assert moved(world.do(SweepStale())) == []

    def test_what_leaves_makes_room_for_what_comes(self, world: World) -> None:
        """With every tier full and stale, all move at once: deletions first."""
        for tier in (Tier.COLD, Tier.WARM):
            for number in range(3):
                world.store(f"{tier}{number}", tier=tier)
        world.store("h")
        world.now_ms += 365 * 24 * HOUR_MS
        assert [target for _, _, target in moved(world.do(SweepStale()))] == [
            *[None] * 3,
            *[Tier.COLD] * 3,
            Tier.WARM,
        ]

    def test_no_room_below(self, world: World) -> None:
        """What is stale stays where it is, rather than pushing out what is fresh."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        world.store("w", tier=Tier.WARM)
        world.now_ms += 24 * HOUR_MS
        assert moved(world.do(SweepStale())) == []

    def test_is_bounded(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A sweep moves so many and says that there are more."""
        monkeypatch.setattr(limits, "SWEEP_MOVES_MAX", 2)
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        world.store("w", tier=Tier.WARM)
        world.now_ms += 91 * 24 * HOUR_MS
        first = world.do(SweepStale())
        assert (moved(first), first.more) == ([("a", Tier.COLD, None), ("b", Tier.COLD, None)], True)
        second = world.do(SweepStale())
        assert moved(second) == [("c", Tier.COLD, None), ("w", Tier.WARM, Tier.COLD)]
        assert world.do(SweepStale()).more is False

    def test_the_managers_own_sweep_is_quiet(self, world: World) -> None:
        """It moves the same, but has a revision only if anything moved."""
        world.store("a")
        world.do(SweepIdle())
        assert world.state.revision == 1
        world.now_ms += HOUR_MS
        assert moved(world.do(SweepIdle())) == [("a", Tier.HOT, Tier.WARM)]
        assert world.state.revision == 2

    def test_scoped_session_sweeps_its_own(self, world: World) -> None:
        """Others' stale fragments wait for somebody who may."""
        world.store("a")
        world.store("b", project="q")
        world.now_ms += HOUR_MS
        assert moved(world.do(SweepStale(), projects={"q"})) == [("b", Tier.HOT, Tier.WARM)]
        assert world.order(Tier.HOT) == ["a"]


class TestList:
    """Pages in order of creation, which change nothing."""

    @pytest.fixture
    def library(self) -> World:
        """Six fragments of three kinds in three tiers."""
        world = World()
        for number, (source, kind, tier) in enumerate(
            [
                ("src/a.py", "code", Tier.HOT),
                ("src/deep/b.py", "code", Tier.WARM),
                ("docs/c.md", "text", Tier.COLD),
                ("d.py", "code", Tier.COLD),
                ("", "note", Tier.HOT),
                ("src/e.txt", "text", Tier.WARM),
            ]
        ):
            world.do(StoreFragment("p", f"f{number}", b"", 1, tier, source, kind))
        world.store("other", project="q")
        return world

    @pytest.mark.parametrize(
        "command, expected",
        [
            (ListFragments("p"), "012345"),
            (ListFragments("p", ("src/**",)), "015"),
            (ListFragments("p", ("*.py", "docs/*")), "23"),
            (ListFragments("p", tier=Tier.COLD), "23"),
            (ListFragments("p", kind="code"), "013"),
            (ListFragments("p", ("**/*.py",), Tier.WARM, "code"), "1"),
            (ListFragments("p", ("nothing",)), ""),
            (ListFragments("unknown"), ""),
        ],
    )
    def test_filters(self, library: World, command: ListFragments, expected: str) -> None:
        """Globs, tier and kind narrow a page together."""
        before = image(library.state)
        page = library.do(command)
        assert [row.fragment_id for row in page.rows] == [f"f{number}" for number in expected]
        assert page.cursor is None
        assert image(library.state) == before

    def test_pages(self, library: World) -> None:
        """The cursor goes on behind the last row, whatever was replaced, moved or deleted in between."""
        page = library.do(ListFragments("p", limit=2))
        assert [row.fragment_id for row in page.rows] == ["f0", "f1"]
        library.do(DeleteFragment("p", "f1"))
        library.do(StoreFragment("p", "f0", b"again", 1))
        library.store("new")
        rest = library.do(ListFragments("p", limit=100, cursor=page.cursor))
        assert [row.fragment_id for row in rest.rows] == ["f2", "f3", "f4", "f5", "new"]

    def test_examines_a_bounded_number(self, library: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A page over globs can be empty and have a cursor."""
        monkeypatch.setattr(limits, "SCAN_ROWS_MAX", 2)
        page = library.do(ListFragments("p", ("docs/**",)))
        assert (page.rows, page.cursor) == ((), "2")
        assert [row.fragment_id for row in library.do(ListFragments("p", ("docs/**",), cursor="2")).rows] == ["f2"]

    def test_is_bounded_in_bytes(self, library: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Metadata and sources weigh."""
        monkeypatch.setattr(limits, "REPLY_BYTES_MAX", 5_000)
        assert len(library.do(ListFragments("p")).rows) == 2

    def test_malformed_cursor(self, library: World) -> None:
        """It is refused, not guessed at."""
        library.refuse(ListFragments("p", cursor="x"), InvalidArgument, "cursor is malformed: give a cursor as")

    def test_projects(self, library: World) -> None:
        """Those that hold fragments, in order of name, as far as the session may see."""
        library.store("x", project="a/b")
        first = library.do(ListProjects(limit=2))
        assert (first.projects, first.cursor) == (("a/b", "p"), "p")
        assert library.do(ListProjects(cursor="p")).projects == ("q",)
        assert library.do(ListProjects(), projects={"q", "zzz"}).projects == ("q",)

    def test_projects_of_a_scope(self, library: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A page neither names nor examines another's project, whatever its cursor is."""
        for project in ("a", "m", "r", "z"):
            library.store("x", project=project)
        scope = {"a", "empty", "q", "z"}
        monkeypatch.setattr(limits, "SCAN_ROWS_MAX", 3)
        seen: list[str] = []
        cursor: str | None = None
        for _ in range(3):
            page = library.do(ListProjects(limit=1, cursor=cursor), projects=scope)
            seen += page.projects
            cursor = page.cursor
            assert cursor is None or cursor in scope
        assert (seen, cursor) == (["a", "q", "z"], None)
        everything = library.do(ListProjects(), projects=scope)
        assert (everything.projects, everything.cursor) == (("a", "q", "z"), None)
        assert library.do(ListProjects(cursor="m"), projects=scope).projects == ("q", "z")
        assert library.do(ListProjects(), projects={"empty"}).projects == ()


class TestMetrics:
    """Sums, from counters."""

    def test_all(self, world: World) -> None:
        """Entries, tokens and bytes of each tier; equal bodies count once in the whole."""
        world.store("a", 3, body=b"12345")
        world.store("b", 2, body=b"12345", project="q")
        world.store("c", 7, tier=Tier.WARM, body=b"123")
        metrics = world.do(GetMetrics())
        assert (metrics.hot, metrics.warm, metrics.cold) == (TierUsage(2, 5, 10), TierUsage(1, 7, 3), TierUsage())
        assert (metrics.body_bytes, metrics.budget) == (8, SMALL)

    def test_scoped(self, world: World) -> None:
        """A scoped session counts its own only."""
        world.store("a", 3, body=b"12345")
        world.store("b", 2, body=b"123", project="q")
        metrics = world.do(GetMetrics(), projects={"q", "empty"})
        assert (metrics.hot, metrics.body_bytes) == (TierUsage(1, 2, 3), 3)

    def test_is_a_copy(self, world: World) -> None:
        """What is handed out does not follow the state."""
        metrics = world.do(GetMetrics())
        world.store("a")
        assert metrics.hot == TierUsage()


class TestSetBudget:
    """Budgets change in one step with what they enforce."""

    def test_lower(self, world: World) -> None:
        """What no longer fits goes down in the same step."""
        for name in "abc":
            world.store(name, 3)
        lower = replace(SMALL, hot_tokens=3, warm_entries=1)
        assert world.do(SetBudget(lower)).budget == lower
        assert world.tiers() == (["c"], ["b"], ["a"])
        assert world.state.budget == lower

    def test_larger_than_the_new_hot_leaves_it(self, world: World) -> None:
        """Nothing is too large to go down."""
        world.store("a", 9)
        world.do(SetBudget(replace(SMALL, hot_tokens=5)))
        assert world.tiers() == ([], ["a"], [])

    def test_raise(self, world: World) -> None:
        """Nothing moves up by itself."""
        world.store("big", 11)
        world.do(SetBudget(replace(SMALL, hot_tokens=100)))
        assert world.order(Tier.WARM) == ["big"]
        assert world.do(PromoteFragment("p", "big")).tier is Tier.HOT

    def test_cold_cannot_be_cut(self, world: World) -> None:
        """Enforcement never deletes."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        world.refuse(SetBudget(replace(SMALL, cold_entries=2)), TierFull, "cold already holds its 2 entries")

    def test_bytes_cannot_be_cut(self, world: World) -> None:
        """Nor are bodies dropped."""
        world.store("a", body=b"12345")
        world.refuse(SetBudget(replace(SMALL, bodies_bytes=4)), TierFull, "delete some before lowering bodies_bytes")
        world.do(SetBudget(replace(SMALL, bodies_bytes=5)))

    def test_too_much_at_once(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The advice is to go in parts, and that helps."""
        for name in "abc":
            world.store(name, 3)
        monkeypatch.setattr(limits, "MOVES_PER_STEP_MAX", 1)
        world.refuse(SetBudget(replace(SMALL, hot_tokens=3)), StepTooLarge, "lower the budget in parts")
        world.do(SetBudget(replace(SMALL, hot_tokens=6)))
        world.do(SetBudget(replace(SMALL, hot_tokens=3)))
        assert world.order(Tier.HOT) == ["c"]

    def test_needs_an_unrestricted_session(self, world: World) -> None:
        """Budgets are global."""
        world.refuse(SetBudget(SMALL), OutOfScope, "from a session connected without projects=", projects={"p"})


@pytest.mark.parametrize(
    "command",
    [
        StoreFragment("p", "f", b"", 1),
        GetFragment("p", "f"),
        PromoteFragment("p", "f"),
        DemoteFragment("p", "f"),
        DeleteFragment("p", "f"),
        ListFragments("p"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_out_of_scope(world: World, command: GetFragment) -> None:
    """A request that names a project outside its session's scope is refused, whether or not it exists."""
    for _ in range(2):
        error = world.refuse(
            command, OutOfScope, "not in this session's scope: q, r; connect with it in projects=", projects={"r", "q"}
        )
        assert error.details == {"project": "p"}
        world.store("f")
