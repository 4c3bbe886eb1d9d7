"""Receipts: kept once, bounded, seen by whoever may see all their projects, and never at the expense of fragments."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from stepwell import limits
from stepwell.domain import invariants, machine
from stepwell.domain.receipts.commands import GetReceipt, ListReceipts, StoreReceipt
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import DeleteFragment, GetMetrics, LocateBodies, SetBudget, StoreFragment
from stepwell.domain.tiers.model import Tier, TierBudget
from stepwell.domain.verdict import Origin
from stepwell.errors import AlreadyExists, InvalidArgument, NotFound, OutOfScope, TierFull, TransactionAborted
from tests.support.domain.world import NOON_MS, World, image


def receipt(name: str, *projects: str, body: bytes | int | None = None, title: str = "where?") -> StoreReceipt:
    """A receipt whose body is its name, unless another is given."""
    return StoreReceipt(name, projects or ("p",), title, name.encode() if body is None else body)


def names(world: World, projects: Collection[str] | None = None) -> list[str]:
    """All that a session can list."""
    return [row.receipt_id for row in world.do(ListReceipts(limit=1_000), projects=projects).receipts]


@contextmanager
def tiers_stay(world: World) -> Iterator[None]:
    """Nothing is moved, read or forgotten that is in the tiers."""
    parts = ("fragments", "clocks", "orders", "usage", "created")
    before = {part: image(world.state)[part] for part in parts}
    yield
    assert {part: image(world.state)[part] for part in parts} == before


@pytest.fixture
def world() -> World:
    return World()


class TestStoring:
    def test_what_is_known_of_it(self, world: World) -> None:
        """When and where comes from the manager; projects are in order, each once."""
        stored = world.do(receipt("a", "q", "p", "q", body=b"bytes", title="a question")).receipt
        assert stored == ReceiptRow("a", ("p", "q"), "a question", 5, digest_of(b"bytes"), NOON_MS, 1, 1)
        assert world.do(GetReceipt("a")).receipt == stored
        assert world.do(ListReceipts()).receipts == (stored,)
        assert world.state.revision == 1

    def test_body_is_held_and_told_where(self, world: World) -> None:
        """As a changeset's is: cold, and found by whoever reads the receipt; a page has none."""
        world.do(receipt("a"))
        digest = digest_of(b"a")
        assert world.state.bodies.tier_of(digest) is Tier.COLD
        assert world.do(GetReceipt("a")).body_digests == (digest,)
        assert world.do(ListReceipts()).body_digests == ()
        assert world.do(receipt("a")).body_digests == ()
        assert world.do(LocateBodies((digest,))).found == (digest,)

    def test_uploaded(self, world: World) -> None:
        """What is too large for a frame comes before it."""
        held = (digest_of(b"large"), limits.RECEIPT_BYTES_MAX)
        origin = Origin("alice", NOON_MS, uploads={1: held})
        outcome = machine.apply(world.state, receipt("a", body=1), origin)
        assert outcome.bodies == {}
        assert (world.state.receipts.rows["a"].held, world.state.receipts.bytes) == ((held,), held[1])
        world.refuse(receipt("b", body=7), InvalidArgument, "there is no upload 7")

    def test_same_again_is_the_same_receipt(self, world: World) -> None:
        """Whoever does not know whether it was stored stores it again."""
        first = world.do(receipt("a", "p", "q")).receipt
        world.now_ms += 1
        assert world.do(receipt("a", "q", "p")).receipt == first
        assert names(world) == ["a"]

    @pytest.mark.parametrize(
        "other", [receipt("a", body=b"other"), receipt("a", title="other"), receipt("a", "q"), receipt("a", "p", "q")]
    )
    def test_another_under_the_same_id_is_refused(self, world: World, other: StoreReceipt) -> None:
        """A receipt does not change."""
        world.do(receipt("a"))
        world.refuse(other, AlreadyExists, "store this one under a new id")

    def test_too_large(self, world: World) -> None:
        """It is said what to do instead."""
        uploads = {1: (digest_of(b"x"), limits.RECEIPT_BYTES_MAX + 1)}
        before = image(world.state)
        with pytest.raises(InvalidArgument, match="ask for fewer candidates"):
            machine.apply(world.state, receipt("a", body=1), Origin("alice", NOON_MS, uploads=uploads))
        assert image(world.state) == before

    def test_equal_bodies_are_one(self, world: World) -> None:
        """And stay for as long as something refers to them, a fragment too."""
        world.store("f", body=b"same")
        for name in "ab":
            world.do(receipt(name, body=b"same"))
        assert (world.state.bodies.bytes, world.state.receipts.bytes) == (4, 8)
        world.do(DeleteFragment("p", "f"))
        assert world.state.bodies.tier_of(digest_of(b"same")) is Tier.COLD


class TestBounds:
    def test_the_oldest_makes_way(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """By the order of storing, not by their ids; its body goes with it."""
        monkeypatch.setattr(limits, "RECEIPTS_MAX", 3)
        for name in "dcba":
            world.do(receipt(name))
        assert names(world) == ["a", "b", "c"]
        assert digest_of(b"d") not in world.state.bodies
        world.refuse(GetReceipt("d"), NotFound, "or newer ones took its place")
        world.do(receipt("d"))
        assert names(world) == ["d", "a", "b"]

    def test_as_many_as_it_takes_make_way(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """And no more."""
        monkeypatch.setattr(limits, "RECEIPTS_BYTES_MAX", 10)
        for name, size in {"a": 4, "b": 3, "c": 3, "d": 6}.items():
            world.do(receipt(name, body=name.encode() * size))
        assert (names(world), world.state.receipts.bytes) == (["d", "c"], 9)
        world.do(receipt("e", body=b"e" * 10))
        assert names(world) == ["e"]
        world.do(receipt("f", body=b""))
        assert names(world) == ["f", "e"]

    def test_one_that_is_there_does_not_make_way_for_itself(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limits, "RECEIPTS_MAX", 2)
        for name in "aba":
            world.do(receipt(name))
        assert names(world) == ["b", "a"]

    def test_share_of_all_bodies(self) -> None:
        """However many are stored, most of the room is left for fragments."""
        world = World(TierBudget(bodies_bytes=100))
        for number in range(30):
            world.do(receipt(f"receipt-{number}", body=f"{number:5}".encode()))
        assert world.state.bodies.bytes == 10
        assert names(world) == ["receipt-29", "receipt-28"]
        world.do(StoreFragment("p", "f", b"f" * 90, 1))
        world.refuse(receipt("large", body=b"x" * 11), TierFull, "all receipts may have 10: raise bodies_bytes")

    def test_no_room_is_refused(self) -> None:
        """Fragments have all of it: they stay, and whoever wanted to keep a receipt goes on without."""
        world = World(TierBudget(bodies_bytes=100))
        world.do(StoreFragment("p", "f", b"f" * 95, 1))
        with tiers_stay(world):
            world.do(receipt("a", body=b"aaaa"))
            world.refuse(receipt("b", body=b"bb"), TierFull, "bodies have no room left in their 100 bytes")
            assert names(world) == ["a"]

    def test_what_makes_way_leaves_its_room(self) -> None:
        """All bodies' bytes are taken: a receipt can still take the place of another."""
        world = World(TierBudget(bodies_bytes=100))
        world.do(receipt("a", body=b"a" * 10))
        world.do(StoreFragment("p", "f", b"f" * 90, 1))
        world.do(receipt("b", body=b"b" * 10))
        assert names(world) == ["b"]

    def test_what_others_refer_to_leaves_no_room(self) -> None:
        """A body that a fragment has too does not go with its receipt."""
        world = World(TierBudget(bodies_bytes=100))
        world.do(receipt("a", body=b"a" * 10))
        world.do(StoreFragment("p", "same", b"a" * 10, 1))
        world.do(StoreFragment("p", "f", b"f" * 90, 1))
        world.refuse(receipt("b", body=b"b" * 10), TierFull, "bodies have no room left")
        world.do(receipt("again", body=b"a" * 10))
        assert names(world) == ["again"]

    def test_lower_budget_lets_the_oldest_go(self) -> None:
        """In the same step, so that nobody has to delete them first."""
        world = World(TierBudget(bodies_bytes=1_000))
        for name in "abcd":
            world.do(receipt(name, body=name.encode() * 20))
        world.do(StoreFragment("p", "f", b"f" * 30, 1))
        world.refuse(SetBudget(TierBudget(bodies_bytes=20)), TierFull, "30 bytes are held already")
        world.do(SetBudget(TierBudget(bodies_bytes=400)))
        assert names(world) == ["d", "c"]
        world.do(SetBudget(TierBudget(bodies_bytes=30)))
        assert (names(world), world.state.bodies.bytes) == ([], 30)

    def test_earlier_bounds_are_put_right_like_a_budget(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """A directory that was kept under wider bounds opens: what is too much goes first."""
        for name in "abc":
            world.do(receipt(name))
        monkeypatch.setattr(limits, "RECEIPTS_MAX", 1)
        assert invariants.check(world.state, but=(invariants.BUDGET,)) == []
        assert invariants.check(world.state) == [f"{invariants.BUDGET}: receipts: 3 of 1"]
        world.do(SetBudget(world.state.budget))
        assert names(world) == ["c"]


class TestTiers:
    def test_nothing_moves(self) -> None:
        """Tiers that are full to the brim stay as they are, and a receipt is no fragment."""
        world = World(TierBudget(hot_tokens=2, warm_entries=2, cold_entries=2, arena_bytes=32))
        for tier in Tier:
            for number in range(2):
                world.store(f"{tier}-{number}", tier=tier)
        metrics = world.do(GetMetrics())
        with tiers_stay(world):
            for number in range(20):
                world.do(receipt(f"receipt-{number}"))
                world.do(GetReceipt(f"receipt-{number}"))
            names(world)
        after = world.do(GetMetrics())
        assert (after.hot, after.warm, after.cold, after.arena_bytes) == (
            metrics.hot, metrics.warm, metrics.cold, metrics.arena_bytes,
        )  # fmt: skip

    def test_hot_body_stays_hot(self, world: World) -> None:
        """A receipt with the body of a fragment does not say in which form that is kept."""
        world.store("f", body=b"same")
        world.do(receipt("a", body=b"same"))
        assert world.state.bodies.tier_of(digest_of(b"same")) is Tier.HOT


class TestScope:
    @pytest.fixture
    def shared(self, world: World) -> World:
        for name, projects in {"p1": "p", "pq": "pq", "q1": "q", "p2": "p", "pr": "pr"}.items():
            world.do(receipt(name, *projects))
        return world

    def test_all_of_its_projects_have_to_be_in_scope(self, shared: World) -> None:
        """One that is not, and there is no such receipt."""
        assert names(shared, {"p"}) == ["p2", "p1"]
        assert names(shared, {"p", "q"}) == ["p2", "q1", "pq", "p1"]
        assert names(shared, {"z"}) == []
        for name in ("pq", "q1", "pr"):
            hidden = shared.refuse(GetReceipt(name), NotFound, "there is no receipt", projects={"p"})
            absent = shared.refuse(GetReceipt("nothing"), NotFound, "there is no receipt", projects={"p"})
            assert hidden.message.replace(repr(name), repr("nothing")) == absent.message

    def test_storing_outside_of_it_is_refused(self, shared: World) -> None:
        shared.refuse(receipt("new", "p", "q"), OutOfScope, "'q' is not in this session's scope", projects={"p"})

    def test_pages_end_where_what_can_be_seen_ends(self, shared: World) -> None:
        """What is behind it does not show: neither in the limit, nor in a cursor."""
        page = shared.do(ListReceipts(limit=1), projects={"p"})
        assert [row.receipt_id for row in page.receipts] == ["p2"]
        rest = shared.do(ListReceipts(limit=1, cursor=page.cursor), projects={"p"})
        assert ([row.receipt_id for row in rest.receipts], rest.cursor) == (["p1"], None)
        assert shared.do(ListReceipts(limit=2), projects={"q"}).cursor is None

    def test_metrics_of_a_scoped_session_do_not_count_them(self, shared: World) -> None:
        assert shared.do(GetMetrics(), projects={"p"}).body_bytes == 0


class TestPages:
    def test_newest_first(self, world: World) -> None:
        """Whatever comes meanwhile, and whatever goes, none is seen twice and none left out that was there."""
        for number in range(7):
            world.do(receipt(f"r{number}"))
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = world.do(ListReceipts(3, cursor))
            seen += [row.receipt_id for row in page.receipts]
            world.do(receipt(f"later-{len(seen)}"))
            if page.cursor is None:
                break
            cursor = page.cursor
        assert seen == [f"r{number}" for number in reversed(range(7))]

    @pytest.mark.parametrize("cursor", ["x", "-1", "٣", ""])
    def test_foreign_cursor(self, world: World, cursor: str) -> None:
        world.refuse(ListReceipts(cursor=cursor), InvalidArgument, "cursor is malformed")

    def test_page_of_long_rows_is_bounded(self, world: World) -> None:
        """Rows with as many projects as there can be fill a reply before a page."""
        projects = tuple(f"{number:02}" + "p" * 126 for number in range(limits.PROJECTS_PER_SESSION_MAX))
        for number in range(limits.RECEIPTS_MAX):
            machine.apply(world.state, receipt(f"r{number}", *projects), world.origin())
        page = world.do(ListReceipts(limits.PAGE_ROWS_MAX))
        assert page.cursor is not None
        assert 100 < len(page.receipts) < limits.RECEIPTS_MAX


class TestTransactions:
    def test_together(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """One revision, each a place of its own, and the bound holds inside it."""
        monkeypatch.setattr(limits, "RECEIPTS_MAX", 2)
        machine.apply_all(world.state, [receipt(name) for name in "cab"], world.origin())
        assert names(world) == ["b", "a"]
        assert {row.revision for row in world.state.receipts} == {1}
        assert invariants.check(world.state) == []

    def test_undone(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Those that made way are back, in their places."""
        monkeypatch.setattr(limits, "RECEIPTS_MAX", 2)
        for name in "ab":
            world.do(receipt(name))
        error = world.abort([receipt("c"), receipt("d"), receipt("a"), receipt("a", body=b"other")])
        assert isinstance(error, TransactionAborted)
        assert names(world) == ["b", "a"]
