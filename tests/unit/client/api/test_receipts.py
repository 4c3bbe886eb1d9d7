"""Receipts by way of the client: any bytes come back as they were, small or large, to whoever may see them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from ulid import ULID

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.model import TierBudget
from stepwell.limits import KIB, MIB
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import fragment, in_threads, refused
from tests.support.data_directories import serving
from tests.support.managers import served
from tests.support.memory.bodies import compressible, noise
from tests.support.wait import eventually

SIZES = [0, 1, limits.INLINE_BODY_BYTES_MAX, limits.INLINE_BODY_BYTES_MAX + 1, limits.RECEIPT_BYTES_MAX]


def kept(client: sw.Client, data: bytes = b"bytes", title: str = "where?") -> str:
    """The id of a new receipt of the session's only project."""
    (project,) = client.projects or ("p",)
    return client.receipts.store(str(ULID()), [project], title, data)


@pytest.mark.parametrize("size", SIZES)
def test_bytes_come_back(client: sw.Client, size: int) -> None:
    """In a frame or beside it, from shared memory and from where they are later."""
    data = noise(size, size)
    receipt_id = kept(client, data)
    assert client.receipts.get(receipt_id) == data
    eventually(lambda: client.status().memory.waiting == 0)
    assert client.receipts.get(receipt_id) == data


def test_list(client: sw.Client) -> None:
    """The newest first, page by page, each with what a line needs."""
    made = [kept(client, b"x" * number, f"question {number}") for number in range(5)]
    page = client.receipts.list(limit=3)
    assert [row.receipt_id for row in page.receipts] == made[:1:-1]
    newest = page.receipts[0]
    assert isinstance(newest, sw.types.ReceiptRow)
    assert (newest.title, newest.size, newest.projects) == ("question 4", 4, client.projects)
    assert newest.created_at_ms >= page.receipts[-1].created_at_ms
    rest = client.receipts.list(limit=3, cursor=page.cursor)
    assert ([row.receipt_id for row in rest.receipts], rest.cursor) == (made[1::-1], None)


def test_long_title_is_cut(client: sw.Client) -> None:
    """A question may be a page: a list has its first line."""
    kept(client, title="é" * 10_000)
    assert client.receipts.list().receipts[0].title == "é" * limits.TITLE_CHARS_MAX


def test_same_again(client: sw.Client) -> None:
    """It is the same receipt, and not a second one; another under its id is refused."""
    receipt_id = kept(client, b"one")
    (project,) = client.projects or ("",)
    assert client.receipts.store(receipt_id, [project], "where?", b"one") == receipt_id
    assert len(client.receipts.list().receipts) == 1
    with refused(client, sw.AlreadyExists, "under a new id"):
        client.receipts.store(receipt_id, [project], "where?", b"another")


def test_nothing_moves(client: sw.Client) -> None:
    """Neither storing nor reading one is an access."""
    client.tiers.store(fragment("a"))
    before = client.tiers.metrics()
    receipt_id = kept(client)
    for _ in range(10):
        client.receipts.get(receipt_id)
    assert client.tiers.metrics() == before
    assert client.tiers.get("a").access_count == 1


def test_scope(runtime: LocalRuntime) -> None:
    """A session finds those of which it may see every project, and of others not even how many there are."""
    with (
        runtime.client() as anybody,
        runtime.client(projects=["scope/a"]) as one,
        runtime.client(projects=["scope/a", "scope/b"]) as both,
    ):
        ids = {
            name: anybody.receipts.store(str(ULID()), projects, name, name.encode())
            for name, projects in {"a": ["scope/a"], "b": ["scope/b"], "ab": ["scope/b", "scope/a"]}.items()
        }
        assert [row.title for row in one.receipts.list().receipts] == ["a"]
        assert [row.title for row in both.receipts.list().receipts] == ["ab", "b", "a"]
        assert one.receipts.list(limit=1).cursor is None
        assert both.receipts.get(ids["ab"]) == b"ab"
        for name in ("b", "ab"):
            with refused(one, sw.NotFound, "there is no receipt"):
                one.receipts.get(ids[name])
        with refused(one, sw.OutOfScope, "connect with"):
            one.receipts.store(str(ULID()), ["scope/a", "scope/b"], "", b"")


def test_too_large_is_not_even_sent(client: sw.Client) -> None:
    with refused(client, sw.InvalidArgument, "ask for fewer candidates"):
        kept(client, bytes(limits.RECEIPT_BYTES_MAX + 1))


@pytest.mark.parametrize("size", [KIB, MIB])
def test_no_room_is_refused_and_the_caller_goes_on(size: int) -> None:
    """At once; what was stored is there, and where it was."""
    budget = TierBudget(arena_bytes=4 * MIB)
    with served(budget) as stage, sw.connect(stage.address, projects=["p"]) as client:
        body = noise(budget.live_bytes - 500)  # there is room for a smaller one only where this is not
        client.tiers.store(fragment("a", body))
        before = client.tiers.metrics()
        stage.owner._bodies.arena.limit = stage.owner._bodies.arena.bytes
        with pytest.raises((sw.TierFull, sw.Busy)):
            for number in range(10_000):
                kept(client, noise(size, number))
        after = client.tiers.metrics()
        assert (after.hot, after.warm, after.cold) == (before.hot, before.warm, before.cold)
        assert bytes(client.tiers.get("a").body) == body


@pytest.mark.parametrize("size", [KIB, MIB])
def test_answer_that_was_lost(runtime: LocalRuntime, size: int) -> None:
    """Stored once, whoever asks again."""
    client = runtime.client(projects=["p"])
    with runtime.faults.drop_reply():
        receipt_id = kept(client, noise(size))
    assert [row.receipt_id for row in client.receipts.list().receipts] == [receipt_id]
    assert client.receipts.get(receipt_id) == noise(size)


def test_threads(client: sw.Client) -> None:
    """Each finds its own bytes."""

    def store_some(number: int) -> None:
        for turn in range(20):
            data = f"{number}/{turn}".encode() * 1_000
            assert client.receipts.get(kept(client, data)) == data

    in_threads(8, store_some)
    assert len(client.receipts.list(limit=1_000).receipts) == 160


class TestDurable:
    @pytest.fixture
    def directory(self, tmp_path: Path) -> Iterator[Path]:
        yield tmp_path / "data"
        shutil.rmtree(tmp_path / "data")

    def test_survives_its_manager(self, directory: Path) -> None:
        """Killed without a word: what was acknowledged is there, byte by byte, in the same order."""
        bodies = [noise(size, size) for size in SIZES] + [compressible(2 * MIB)]
        with serving(directory) as address, sw.connect(address, projects=["p"]) as client:
            ids = [kept(client, data, f"question {number}") for number, data in enumerate(bodies)]
            before = client.receipts.list()
        with serving(directory) as address, sw.connect(address, projects=["p"]) as client:
            assert client.receipts.list() == before
            assert [client.receipts.get(each) for each in ids] == bodies
            eventually(lambda: client.status().memory.waiting == 0)
            assert [client.receipts.get(each) for each in ids] == bodies
            newer = kept(client, b"newer")
            assert [row.receipt_id for row in client.receipts.list().receipts] == [newer, *reversed(ids)]
