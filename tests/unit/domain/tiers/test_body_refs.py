"""Bodies are known by content, and counted by who refers to them."""

import hashlib

import pytest

from stepwell.domain.tiers.body_refs import ArenaForecast, BodyCount, BodyTable, Digest, digest_of
from stepwell.domain.tiers.model import COLD, HOT, WARM, BodyRef
from stepwell.errors import InvalidArgument, TierFull

A: BodyRef = (digest_of(b"aaaa"), 4)
B: BodyRef = (digest_of(b"bb"), 2)


def test_digest_is_sha256() -> None:
    """Anybody can check it with `sha256sum`."""
    assert digest_of(b"x") == digest_of(memoryview(b"x")) == hashlib.sha256(b"x").digest()
    assert str(Digest.of(b"x")) == hashlib.sha256(b"x").hexdigest()


def test_digest_round_trip() -> None:
    """What is printed can be parsed."""
    assert Digest.parse(str(Digest.of(b"x"))) == Digest.of(b"x")


@pytest.mark.parametrize("text", ["", "zz", "ab" * 31, "ab" * 33, "ab" * 31 + "a"])
def test_digest_refuses_what_is_none(text: str) -> None:
    """A digest of another length, or no hexadecimal text at all, is refused with advice."""
    with pytest.raises(InvalidArgument, match=r"not the hexadecimal form of a SHA-256"):
        Digest.parse(text)


def test_digest_refuses_bytes_of_another_length() -> None:
    """The advice names the ways to make one."""
    with pytest.raises(InvalidArgument, match=r"Digest\.of\(body\) or Digest\.parse\(hex\)"):
        Digest(b"short")


def test_equal_bodies_count_their_bytes_once() -> None:
    """References are counted one by one, bytes once, until the last reference is gone."""
    bodies = BodyTable()
    bodies.retain(A, HOT)
    bodies.retain(A, COLD)
    bodies.retain(B, HOT)
    assert bodies.counts == {A[0]: BodyCount(4, 4, hot=1, cold=1), B[0]: BodyCount(2, 2, hot=1)}
    assert bodies.bytes == 6
    bodies.release(A, HOT)
    assert A[0] in bodies
    assert bodies.bytes == 6
    bodies.release(A, COLD)
    assert A[0] not in bodies
    assert bodies.bytes == 2


def test_freed_is_what_nothing_else_refers_to() -> None:
    """However often it is given up: as long as somebody does not, it takes its bytes."""
    bodies = BodyTable()
    for held, tier in ((A, HOT), (A, COLD), (A, COLD), (B, COLD)):
        bodies.retain(held, tier)
    assert [bodies.freed(leaving) for leaving in ((), (B,), (A, A), (A, A, B), (A, A, A, B))] == [0, 2, 0, 2, 6]
    new: BodyRef = (digest_of(b"ccc"), 3)
    bodies.require_room((new,), 7, (B,))
    with pytest.raises(TierFull, match="in their 6 bytes"):
        bodies.require_room((new,), 6, (B,))
    assert bodies.bytes == 6


def test_hottest_tier_says_what_a_body_costs() -> None:
    """Raw while anything hot refers to it, nothing while only cold does; whoever else refers is no matter."""
    bodies = BodyTable()
    assert bodies.tier_of(A[0]) is None
    seen = []
    for step, tier in (
        (bodies.retain, COLD),
        (bodies.retain, WARM),
        (bodies.retain, HOT),
        (bodies.retain, HOT),
        (bodies.release, HOT),
        (bodies.release, HOT),
        (bodies.release, WARM),
        (bodies.release, COLD),
    ):
        step(A, tier)
        seen.append((bodies.tier_of(A[0]), bodies.arena_bytes))
    assert seen == [(COLD, 0), (WARM, 4), (HOT, 4), (HOT, 4), (HOT, 4), (WARM, 4), (COLD, 0), (None, 0)]


def test_packed_size_counts_while_warm_is_the_hottest() -> None:
    """From when it is known; in hot a body is raw whatever it would take otherwise."""
    bodies = BodyTable()
    bodies.retain(A, WARM)
    bodies.retain(B, WARM)
    bodies.note_packed(A[0], 1)
    assert (bodies.arena_bytes, bodies.bytes) == (3, 6)
    bodies.retain(A, HOT)
    assert bodies.arena_bytes == 6
    bodies.release(A, HOT)
    assert bodies.arena_bytes == 3


def test_packed_size_only_lowers_a_cost() -> None:
    """A body that does not compress counts its size; one that nobody refers to counts nothing."""
    bodies = BodyTable()
    bodies.note_packed(A[0], 1)
    assert (bodies.counts, bodies.arena_bytes) == ({}, 0)
    bodies.retain(A, HOT)
    bodies.note_packed(A[0], 3)
    bodies.retain(A, WARM)
    bodies.release(A, HOT)
    bodies.note_packed(A[0], 9)
    assert bodies.arena_bytes == 3


def test_what_is_released_is_forgotten_when_it_settles() -> None:
    """Until then its packed size is known, so that undoing gives back the very same costs."""
    bodies = BodyTable()
    bodies.retain(A, WARM)
    bodies.retain(B, WARM)
    bodies.note_packed(A[0], 1)
    bodies.release(A, WARM)
    bodies.release(B, WARM)
    assert (bodies.bytes, bodies.arena_bytes, A[0] in bodies) == (0, 0, False)
    bodies.retain(A, WARM)
    assert (bodies.bytes, bodies.arena_bytes) == (4, 1)
    bodies.forget_undo()
    assert bodies.counts == {A[0]: BodyCount(4, 1, warm=1, is_tried=True)}
    bodies.release(A, WARM)
    bodies.forget_undo()
    bodies.retain(A, WARM)
    assert bodies.arena_bytes == 4


def test_outlook_changes_nothing() -> None:
    """It says what the arena would hold, of bodies that are there and of new ones, and leaves the counts alone."""
    bodies = BodyTable()
    bodies.retain(A, WARM)
    bodies.note_packed(A[0], 1)
    outlook = ArenaForecast(bodies)
    outlook.retain(A, HOT)
    outlook.retain(B, WARM)
    assert outlook.arena_bytes == 6
    outlook.release(A, HOT)
    outlook.release(A, WARM)
    assert outlook.arena_bytes == 2
    assert (bodies.counts, bodies.arena_bytes) == ({A[0]: BodyCount(4, 1, warm=1, is_tried=True)}, 1)


def test_room_is_required_for_what_is_new() -> None:
    """The bound may be reached and not passed; a body that is there already needs no room."""
    bodies = BodyTable()
    bodies.retain(A, COLD)
    bodies.require_room((B,), 6)
    bodies.require_room((A,), 4)
    bodies.require_room((), 4)
    with pytest.raises(TierFull, match="delete some, or raise bodies_bytes") as caught:
        bodies.require_room((B,), 5)
    assert caught.value.message == "bodies have no room left in their 5 bytes: delete some, or raise bodies_bytes"
    assert caught.value.details == {"limit": 5}
    bodies.release(A, COLD)
    with pytest.raises(TierFull):
        bodies.require_room((A,), 3)


def test_room_is_required_for_all_that_arrive_together() -> None:
    """Two bodies that fit one by one are refused if they do not fit together; equal ones need room once."""
    bodies = BodyTable()
    bodies.require_room((A, A), 4)
    with pytest.raises(TierFull):
        bodies.require_room((A, B), 5)
