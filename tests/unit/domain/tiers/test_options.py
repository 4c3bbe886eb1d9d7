"""What most stores do not ask for: keep, expiry, unique bodies; and guards, which change nothing."""

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.event_builder import events_of
from stepwell.domain.events import FragmentDeleted, FragmentStored
from stepwell.domain.replies import FragmentChecked, FragmentRemoved, Note, TierUsage
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import (
    CheckFragment,
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    ExpireFragments,
    GetFragment,
    GetMetrics,
    ListFragments,
    PeekFragment,
    PromoteFragment,
    RelieveArena,
    RequireFragment,
    SetBudget,
    StoreFragment,
    StoreOptions,
    SweepIdle,
)
from stepwell.domain.tiers.model import Fragment, Tier, TierBudget, Work, Writer
from stepwell.errors import Busy, Conflict, InvalidArgument, NotFound, OutOfScope, TierFull, TransactionAborted
from tests.support.domain.world import NOON_MS, World, image

KEEP = StoreOptions(keep=True)
UNIQUE = StoreOptions(unique=True)
SMALL = TierBudget(hot_tokens=10, warm_entries=3, cold_entries=3, kept_entries=3, arena_bytes=20)
"""14 bytes of the arena are for bodies."""


@pytest.fixture
def world() -> World:
    return World(SMALL)


def until(expires_at_ms: int) -> StoreOptions:
    return StoreOptions(expires_at_ms=NOON_MS + expires_at_ms)


def after(expires_after_ms: int) -> StoreOptions:
    return StoreOptions(expires_after_ms=expires_after_ms)


class TestKeep:
    """A fragment that is in no tier, and stays."""

    def test_takes_nothing_of_a_tier(self, world: World) -> None:
        """Others have all of hot's tokens; the metrics show it apart."""
        world.store("k", 1_000, options=KEEP)
        world.store("a", 10)
        assert (world.tiers(), world.kept()) == ((["a"], [], []), ["k"])
        metrics = world.do(GetMetrics())
        assert (metrics.hot, metrics.kept) == (TierUsage(1, 10, 1), TierUsage(1, 1_000, 1))
        assert metrics.arena_bytes == 2

    def test_usage_of_a_scope(self, world: World) -> None:
        """A scoped session sees what is kept in its projects only."""
        world.store("k", options=KEEP)
        world.store("j", 2, project="q", body=b"jj", options=KEEP)
        assert world.do(GetMetrics(), projects=["q"]).kept == TierUsage(1, 2, 2)
        assert world.do(GetMetrics(), projects=["none"]).kept == TierUsage()

    @pytest.mark.parametrize("tier, expected", [(Tier.HOT, Tier.HOT), (Tier.WARM, Tier.HOT), (Tier.COLD, Tier.COLD)])
    def test_is_raw_in_memory_or_on_disk(self, world: World, tier: Tier, expected: Tier) -> None:
        """It is never warm, because no read would bring it back from there."""
        reply = world.store("k", tier=tier, options=KEEP)
        assert (reply.tier, reply.note) == (expected, Note.PLACED)

    def test_larger_than_hot_is_in_memory_all_the_same(self, world: World) -> None:
        """Its tokens say nothing; one that is larger than the arena goes to disk."""
        assert world.store("k", 10**6, options=KEEP).tier is Tier.HOT
        reply = world.store("large", body=b"x" * 15, options=KEEP)
        assert (reply.tier, reply.note) == (Tier.COLD, Note.LARGER_THAN_ARENA)

    def test_reads_do_not_promote(self, world: World) -> None:
        """A polled fragment displaces nothing, wherever it is."""
        world.store("k", tier=Tier.COLD, options=KEEP)
        world.store("a", 10)
        for _ in range(3 * world.state.budget.promotion_threshold):
            assert world.do(GetFragment("p", "k")).row.tier is Tier.COLD
        assert world.tiers() == (["a"], [], [])

    def test_neither_idleness_nor_eviction_moves_it(self, world: World) -> None:
        """Not in memory, and not on disk, where retention deletes others."""
        world.store("k", options=KEEP)
        world.store("j", tier=Tier.COLD, options=KEEP)
        world.now_ms += 1_000 * limits.COLD_RETENTION_MS
        assert world.do(SweepIdle()).moves == ()
        for tier in Tier:
            assert world.do(EvictLru(tier, 10)).moves == ()
        assert (world.kept(), world.kept(Tier.COLD)) == (["k"], ["j"])

    def test_by_request(self, world: World) -> None:
        """From memory to disk and back, in one step each."""
        world.store("k", options=KEEP)
        assert world.do(PromoteFragment("p", "k")).note is Note.ALREADY_THERE
        assert world.do(DemoteFragment("p", "k")).tier is Tier.COLD
        assert world.do(DemoteFragment("p", "k")).note is Note.ALREADY_THERE
        assert world.do(PromoteFragment("p", "k")).tier is Tier.HOT

    def test_promotion_of_a_large_one(self, world: World) -> None:
        """It stays on disk, and the reply says why."""
        world.store("k", body=b"x" * 15, options=KEEP)
        reply = world.do(PromoteFragment("p", "k"))
        assert (reply.tier, reply.note) == (Tier.COLD, Note.LARGER_THAN_ARENA)

    def test_number_is_bounded(self, world: World) -> None:
        """By stores and by the budget itself. One that is kept already may be replaced."""
        for name in "abc":
            world.store(name, options=KEEP)
        error = world.refuse(StoreFragment("p", "d", b"", 1, options=KEEP), TierFull, "3 fragments .* kept_entries")
        assert error.details == {"kept_entries": 3}
        world.store("d")
        world.refuse(StoreFragment("p", "d", b"d", 1, options=KEEP), TierFull, "kept_entries")
        world.store("a", body=b"A", options=KEEP)
        world.refuse(SetBudget(replace(SMALL, kept_entries=2)), TierFull, "kept_entries")
        world.store("a")
        world.do(SetBudget(replace(SMALL, kept_entries=2)))

    def test_replaced_without_it(self, world: World) -> None:
        """Then it is in hot, and its tokens count. With it again, they do not."""
        world.store("a", 6, options=KEEP)
        world.store("b", 6)
        world.store("a", 6)
        assert (world.tiers(), world.kept()) == ((["a"], ["b"], []), [])
        world.store("a", 6, options=KEEP)
        world.do(PromoteFragment("p", "b"))
        assert (world.tiers(), world.kept()) == ((["b"], [], []), ["a"])


class TestArenaPressure:
    """What is kept gives way last, and to disk."""

    def test_others_go_first(self, world: World) -> None:
        """Warm, then hot; then the body of the least recently used fragment that is kept."""
        world.store("k", body=b"k" * 5, options=KEEP)
        world.store("j", body=b"j" * 5, options=KEEP)
        world.store("w", tier=Tier.WARM, body=b"ww")
        world.store("h", body=b"hh")
        world.store("a", body=b"aa")
        assert (world.tiers(), world.kept()) == ((["h", "a"], [], ["w"]), ["k", "j"])
        world.store("b", body=b"b" * 4)
        assert (world.tiers(), world.kept()) == ((["b"], [], ["w", "h", "a"]), ["k", "j"])
        world.do(GetFragment("p", "k"))
        world.do(SetBudget(replace(SMALL, cold_entries=4)))
        world.store("c", body=b"c" * 5, options=KEEP)
        assert world.tiers() == ([], [], ["w", "h", "a", "b"])
        assert (world.kept(), world.kept(Tier.COLD)) == (["k", "c"], ["j"])

    def test_full_of_what_is_kept(self, world: World) -> None:
        """Others are stored all the same, in hot: nothing is lost and nobody is refused."""
        for name in "abc":
            world.store(name, body=name.encode() * 5, options=KEEP)
        assert (world.kept(), world.kept(Tier.COLD)) == (["b", "c"], ["a"])
        assert world.store("h", body=b"h" * 14).tier is Tier.HOT
        assert (world.kept(), world.kept(Tier.COLD)) == ([], ["a", "b", "c"])
        bodies = [world.do(PeekFragment("p", name)).row.digest for name in "abc"]
        assert bodies == [digest_of(name.encode() * 5) for name in "abc"]

    def test_nothing_is_left(self, world: World) -> None:
        """With cold full, others cannot give way to what is kept."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        world.store("w", tier=Tier.WARM, body=b"w" * 10)
        world.refuse(StoreFragment("p", "k", b"k" * 5, 1, options=KEEP), TierFull, "cold_entries")

    def test_cold_that_is_full_does_not_keep_the_kept_in_memory(self, world: World) -> None:
        """Only tiers are bounded by cold's entries: what is kept goes to disk when there is nothing else."""
        for name in "abc":
            world.store(name, tier=Tier.COLD)
        for name in "jk":
            world.store(name, body=name.encode() * 7, options=KEEP)
        world.store("h", body=b"h" * 5)
        assert (world.order(Tier.HOT), world.kept(), world.kept(Tier.COLD)) == (["h"], ["k"], ["j"])

    def test_relief(self, world: World) -> None:
        """The manager needs room: the same order, and no more than it needs."""
        world.store("k", body=b"k" * 5, options=KEEP)
        world.store("j", body=b"j" * 5, options=KEEP)
        world.store("h", body=b"hh")
        reply = world.do(RelieveArena(4))
        assert ([move.fragment_id for move in reply.moves], reply.more) == (["h"], False)
        reply = world.do(RelieveArena(9))
        assert [(move.fragment_id, move.target) for move in reply.moves] == [("k", Tier.COLD)]
        assert world.kept() == ["j"]

    def test_equal_body_of_another_tier(self, world: World) -> None:
        """A body stays in memory as long as one of its fragments is there."""
        world.store("k", body=b"x" * 7, options=KEEP)
        world.store("h", body=b"x" * 7)
        world.do(DemoteFragment("p", "k"))
        assert world.state.bodies.arena_bytes == 7
        world.do(DemoteFragment("p", "h"))
        world.do(DemoteFragment("p", "h"))
        assert world.state.bodies.arena_bytes == 0


class TestExpiry:
    """From the moment it expires, a fragment is absent for every command."""

    @pytest.mark.parametrize("options", [until(10), after(10)], ids=["at", "after"])
    def test_absent(self, world: World, options: StoreOptions) -> None:
        """Not a moment earlier, and for all."""
        world.store("a", options=options)
        world.now_ms += 9
        world.do(PeekFragment("p", "a"))
        world.now_ms += 1
        world.store("b")
        for command in (
            GetFragment("p", "a"),
            PeekFragment("p", "a"),
            PromoteFragment("p", "a"),
            DemoteFragment("p", "a"),
            DeleteFragment("p", "a"),
        ):
            world.refuse(command, NotFound, "has no fragment 'a'")
        assert world.do(CheckFragment("p", "a")).fragment_revision is None
        assert [row.fragment_id for row in world.do(ListFragments("p")).rows] == ["b"]
        world.refuse(RequireFragment("p", "a", 1), Conflict, "is at revision 0, not 1")
        world.do(RequireFragment("p", "a", 0))
        assert world.do(DeleteFragment("p", "a", missing_ok=True)).tier is None

    def test_deleted(self, world: World) -> None:
        """In the order of their times, and nothing else; its body goes with it."""
        world.store("late", options=until(30))
        world.store("b", options=until(20))
        world.store("a", project="q", options=until(10))
        world.store("stays")
        assert world.do(ExpireFragments()).moves == ()
        world.now_ms += 20
        moves = world.do(ExpireFragments()).moves
        assert [(move.fragment_id, move.source, move.target) for move in moves] == [
            ("a", Tier.HOT, None),
            ("b", Tier.HOT, None),
        ]
        assert world.order(Tier.HOT) == ["late", "stays"]
        assert digest_of(b"a") not in world.state.bodies

    def test_deleted_in_bounded_steps(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The reply says that there is more."""
        monkeypatch.setattr(limits, "EXPIRED_PER_STEP_MAX", 2)
        for name in "abc":
            world.store(name, options=until(1))
        world.now_ms += 1
        replies = [world.do(ExpireFragments()) for _ in range(2)]
        assert [(len(reply.moves), reply.more) for reply in replies] == [(2, True), (1, False)]

    def test_reads_move_it(self, world: World) -> None:
        """To at least so long after the read, and never to an earlier time; a look moves nothing."""
        world.store("a", options=StoreOptions(expires_at_ms=NOON_MS + 50, expires_after_ms=20))
        world.do(GetFragment("p", "a"))
        entry = world.state.fragments.entries["p", "a"]
        assert entry.expires_at_ms == NOON_MS + 50
        world.now_ms += 40
        for look in (PeekFragment("p", "a"), CheckFragment("p", "a")):
            world.do(look)
        assert entry.expires_at_ms == NOON_MS + 50
        world.do(GetFragment("p", "a"))
        assert entry.expires_at_ms == NOON_MS + 60
        world.now_ms += 19
        world.do(GetFragment("p", "a"))
        world.now_ms += 20
        world.refuse(GetFragment("p", "a"), NotFound, "no fragment")

    def test_store_is_no_later_than_a_read(self, world: World) -> None:
        """A time that a read at this moment would move is moved by the store."""
        world.store("a", options=StoreOptions(expires_at_ms=NOON_MS + 1, expires_after_ms=20))
        assert world.row("a").expires_at_ms == NOON_MS + 20

    def test_replaced_without_it(self, world: World) -> None:
        """Then it stays; and the other way round it goes."""
        world.store("a", options=until(1))
        world.store("a")
        world.store("b")
        world.store("b", options=until(1))
        world.now_ms += 1
        assert [move.fragment_id for move in world.do(ExpireFragments()).moves] == ["b"]

    def test_moves_do_not_change_it(self, world: World) -> None:
        """Demoted or promoted, it expires at the same time."""
        world.store("a", options=until(10))
        world.do(DemoteFragment("p", "a"))
        world.do(DemoteFragment("p", "a"))
        world.now_ms += 10
        assert [move.source for move in world.do(ExpireFragments()).moves] == [Tier.COLD]

    def test_stored_again_is_another_one(self, world: World) -> None:
        """Its reads, its time of creation and its place in a page are those of a new fragment, and so is its event."""
        world.store("a", options=until(10))
        world.store("b")
        world.do(GetFragment("p", "a"))
        world.now_ms += 10
        command = StoreFragment("p", "a", b"a", 2, expected_revision=0)
        outcome = machine.apply(world.state, command, world.origin())
        assert invariants.check(world.state) == []
        found = world.do(PeekFragment("p", "a"))
        assert (found.access_count, found.row.created_at_ms) == (0, world.now_ms)
        assert [row.fragment_id for row in world.do(ListFragments("p")).rows] == ["b", "a"]
        gone, stored = events_of(outcome.changes, outcome.revision, world.now_ms, lambda _: ("p",))
        assert isinstance(gone, FragmentDeleted)
        assert isinstance(stored, FragmentStored)
        assert stored.replaced is None

    def test_stored_again_where_others_give_way(self, world: World) -> None:
        """What has expired makes room for what comes in its place, before others are demoted."""
        world.store("a", 6, options=until(1))
        world.store("b", 4)
        world.now_ms += 1
        world.store("a", 6)
        assert world.tiers() == (["b", "a"], [], [])

    def test_undone(self, world: World) -> None:
        """A transaction that is refused leaves what had expired as it was."""
        world.store("a", options=until(1))
        world.store("s", options=after(5))
        world.now_ms += 1
        world.abort(
            [
                StoreFragment("p", "a", b"new", 1),
                StoreFragment("p", "s", b"s", 1, options=after(9)),
                DeleteFragment("p", "s"),
                RequireFragment("p", "a", 0),
            ]
        )

    def test_in_the_past(self, world: World) -> None:
        """It is stored, and absent at once."""
        assert world.store("a", options=StoreOptions(expires_at_ms=1)).revision == 1
        world.refuse(GetFragment("p", "a"), NotFound, "no fragment")
        assert [move.fragment_id for move in world.do(ExpireFragments()).moves] == ["a"]

    def test_reported_reads_of_what_was_replaced(self, world: World) -> None:
        """They were of a fragment that did not expire: they count, and move no time."""
        world.store("a")
        world.store("a", options=after(10))
        world.now_ms += 5
        machine.count_reads(world.state, [("p", "a", 3)], world.origin())
        assert invariants.check(world.state) == []
        world.now_ms += 5
        machine.count_reads(world.state, [("p", "a", 1)], world.origin())
        world.refuse(GetFragment("p", "a"), NotFound, "no fragment")

    @pytest.mark.parametrize(
        "at_ms, after_ms",
        [(0, None), (limits.EXPIRES_AT_MS_MAX + 1, None), (None, 0), (None, limits.EXPIRES_AFTER_MS_MAX + 1)],
    )
    def test_bounds(self, at_ms: int | None, after_ms: int | None) -> None:
        """A fragment with a time that cannot be shown does not exist."""
        with pytest.raises(InvalidArgument, match="give the"):
            Fragment(fragment_id="a", body="", expires_at_ms=at_ms, expires_after_ms=after_ms)


class TestUnique:
    """If another fragment of the project has an equal body, the reply names it, and nothing is stored."""

    def test_equal(self, world: World) -> None:
        """The row of the other one is in the reply; the state has a revision more and nothing else."""
        world.store("a", 3, body=b"x")
        before = image(world.state)
        reply = world.store("b", 7, body=b"x", options=UNIQUE)
        assert (reply.fragment_id, reply.note, reply.tokens, reply.revision) == ("a", Note.EQUAL_BODY, 3, 1)
        assert reply.digest == digest_of(b"x")
        assert image(world.state) == before | {"revision": 2}

    def test_not_equal(self, world: World) -> None:
        """In another project, or under its own id, an equal body is none of another fragment."""
        world.store("a", body=b"x", options=UNIQUE)
        assert world.store("a", body=b"x", options=UNIQUE).note is Note.PLACED
        assert world.store("b", project="q", body=b"x", options=UNIQUE).note is Note.PLACED
        assert world.store("b", body=b"y", options=UNIQUE).note is Note.PLACED

    def test_follows_all_changes(self, world: World) -> None:
        """From the first store of this kind on: new, replaced, deleted and undone bodies."""
        world.store("a", body=b"x")
        world.store("probe", body=b"p", options=UNIQUE)
        world.store("a", body=b"y")
        assert world.store("b", body=b"x", options=UNIQUE).note is Note.PLACED
        assert world.store("c", body=b"y", options=UNIQUE).fragment_id == "a"
        world.do(DeleteFragment("p", "a"))
        world.abort([StoreFragment("p", "c", b"y", 1), DeleteFragment("p", "b"), RequireFragment("p", "c", 0)])
        assert world.store("c", body=b"y", options=UNIQUE).note is Note.PLACED
        assert world.store("d", body=b"x", options=UNIQUE).fragment_id == "b"

    def test_expired_is_absent(self, world: World) -> None:
        """Its body may be stored under another id; a later equal one is found behind it."""
        world.store("a", body=b"x", options=until(1))
        world.now_ms += 1
        assert world.store("b", body=b"x", options=UNIQUE).note is Note.PLACED
        assert world.store("c", body=b"x", options=UNIQUE).fragment_id == "b"

    def test_expected_revision_is_compared_first(self, world: World) -> None:
        """A writer whose knowledge is stale is refused, equal body or not."""
        world.store("a", body=b"x")
        world.refuse(
            StoreFragment("p", "b", b"x", 1, expected_revision=4, options=UNIQUE), Conflict, "is at revision 0, not 4"
        )

    def test_two_in_one_transaction(self, world: World) -> None:
        """The second finds the first, as it would in a request of its own."""
        commands = [StoreFragment("p", name, b"x", 1, options=UNIQUE) for name in "ab"]
        outcomes = machine.apply_all(world.state, commands, world.origin())
        assert [getattr(outcome.reply, "fragment_id", "") for outcome in outcomes] == ["a", "a"]
        assert world.order(Tier.HOT) == ["a"]

    def test_large_project_is_indexed_in_steps(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Until it is complete the answer is `Busy`; what changes meanwhile is in it."""
        monkeypatch.setattr(limits, "EQUAL_BODIES_ROWS_PER_STEP", 2)
        for name in "abcde":
            world.store(name)
        first = StoreFragment("p", "new", b"e", 1, options=UNIQUE)
        world.refuse(first, Busy, "are being indexed")
        world.store("a", body=b"A")
        world.do(DeleteFragment("p", "b"))
        world.store("late")
        world.store("e", body=b"E")
        world.store("f", body=b"e")
        world.refuse(first, Busy, "are being indexed")
        world.refuse(first, Busy, "are being indexed")
        assert world.do(first).fragment_id == "f"
        index = world.state.fragments.equal_bodies("p")
        assert index is not None
        assert index.ids() == {digest_of(text): {name} for text, name in zip(
            (b"A", b"c", b"d", b"E", b"late", b"e"), ("a", "c", "d", "e", "late", "f"), strict=True
        )}  # fmt: skip

    def test_equal_bodies_of_many_cost_no_more(self, world: World) -> None:
        """The dict of ids has no scan: one is added and removed as fast as with two."""
        for number in range(3):
            world.store(f"{number}", body=b"x")
        assert world.store("new", body=b"x", options=UNIQUE).fragment_id == "0"
        world.do(DeleteFragment("p", "0"))
        assert world.store("new", body=b"x", options=UNIQUE).fragment_id == "1"
        world.do(DeleteFragment("p", "1"))
        assert world.store("new", body=b"x", options=UNIQUE).fragment_id == "2"
        world.do(DeleteFragment("p", "2"))
        assert world.store("new", body=b"x", options=UNIQUE).fragment_id == "new"


class TestGuards:
    """A compare that changes nothing, and a deletion of what need not be there."""

    def test_require(self, world: World) -> None:
        """The revision of the body, 0 for absent; anything else is a conflict that says what there is."""
        world.store("a")
        before = image(world.state)
        assert world.do(RequireFragment("p", "a", 1)) == FragmentChecked(1)
        assert world.do(RequireFragment("p", "none", 0)) == FragmentChecked(None)
        assert image(world.state) == before | {"revision": 3}
        error = world.refuse(RequireFragment("p", "a", 0), Conflict, "is at revision 1, not 0")
        assert error.details == {"expected": 0, "actual": 1}
        world.refuse(RequireFragment("p", "none", 1), Conflict, "is at revision 0, not 1")

    def test_require_sees_a_scope(self, world: World) -> None:
        """A session learns nothing about other projects."""
        world.refuse(RequireFragment("p", "a", 0), OutOfScope, "p", projects=["q"])
        world.refuse(DeleteFragment("p", "a", missing_ok=True), OutOfScope, "p", projects=["q"])

    def test_require_in_a_transaction(self, world: World) -> None:
        """It holds for all, at the state that the commands before it left."""
        world.store("a")
        error = world.abort([StoreFragment("p", "b", b"b", 1), RequireFragment("p", "a", 7)])
        assert error.details == {"index": 1, "cause": "Conflict"}
        commands = [RequireFragment("p", "a", 1), StoreFragment("p", "a", b"A", 1), RequireFragment("p", "a", 2)]
        machine.apply_all(world.state, commands, world.origin())
        with pytest.raises(TransactionAborted):
            machine.apply_all(world.state, [DeleteFragment("p", "a"), RequireFragment("p", "a", 2)], world.origin())
        assert world.row("a").revision == 2

    def test_missing_ok(self, world: World) -> None:
        """The reply says whether there was one; an expected revision is compared all the same."""
        world.store("a")
        assert world.do(DeleteFragment("p", "a", missing_ok=True)) == FragmentRemoved("p", "a", Tier.HOT)
        assert world.do(DeleteFragment("p", "a", missing_ok=True)) == FragmentRemoved("p", "a", None)
        assert world.do(DeleteFragment("p", "a", 0, missing_ok=True)).tier is None
        world.refuse(DeleteFragment("p", "a", 1, missing_ok=True), Conflict, "is at revision 0, not 1")
        world.refuse(DeleteFragment("p", "a"), NotFound, "no fragment")


class TestWriter:
    """A fragment names who has stored its body."""

    WRITER = Writer("alice", 7, "planner")

    def test_of_the_latest_body(self, world: World) -> None:
        """Of the session that replaced it; moves do not change it, and it is in the event."""
        origin = replace(world.origin(), writer=self.WRITER)
        outcome = machine.apply(world.state, StoreFragment("p", "a", b"a", 1, work=Work("plan", "cs")), origin)
        (event,) = events_of(outcome.changes, outcome.revision, world.now_ms, lambda _: ("p",))
        assert isinstance(event, FragmentStored)
        assert event.writer == world.row("a").writer == Writer("alice", 7, "planner", Work("plan", "cs"))
        world.do(DemoteFragment("p", "a"))
        assert world.row("a").writer == event.writer
        machine.apply(world.state, StoreFragment("p", "a", b"b", 1, tier=Tier.WARM), origin)
        assert world.row("a").writer is self.WRITER

    @pytest.mark.parametrize(
        "writer, shown",
        [
            (Writer("s", 7), "process 7"),
            (Writer("s", 7, "planner"), "planner (process 7)"),
            (Writer("s", 7, "", Work("a")), "process 7 for plan a"),
            (Writer("s", 7, "planner", Work("a", "c")), "planner (process 7) for plan a, changeset c"),
        ],
    )
    def test_shown(self, writer: Writer, shown: str) -> None:
        """As a sentence for a person, without what is not there."""
        assert str(writer) == shown

    def test_work_without_a_session(self, world: World) -> None:
        """The manager itself has no writer, and its fragments have none, whatever work is named."""
        world.do(StoreFragment("p", "a", b"", 1, work=Work("plan")))
        assert world.row("a").writer is None
