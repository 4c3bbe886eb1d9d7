"""Bodies are known by content, and counted by who refers to them."""

import hashlib

import pytest

from stepwell.domain.content import Bodies, Digest, Held, digest_of
from stepwell.errors import InvalidArgument, TierFull

A: Held = (digest_of(b"aaaa"), 4)
B: Held = (digest_of(b"bb"), 2)


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
    bodies = Bodies()
    bodies.retain(A)
    bodies.retain(A)
    bodies.retain(B)
    assert (bodies.references, bodies.bytes) == ({A[0]: 2, B[0]: 1}, 6)
    bodies.release(A)
    assert A[0] in bodies
    assert bodies.bytes == 6
    bodies.release(A)
    assert A[0] not in bodies
    assert bodies.bytes == 2


def test_room_is_required_for_what_is_new() -> None:
    """The bound may be reached and not passed; a body that is there already needs no room."""
    bodies = Bodies()
    bodies.retain(A)
    bodies.require_room((B,), 6)
    bodies.require_room((A,), 4)
    bodies.require_room((), 4)
    with pytest.raises(TierFull, match="delete some, or raise bodies_bytes") as caught:
        bodies.require_room((B,), 5)
    assert caught.value.message == "bodies have no room left in their 5 bytes: delete some, or raise bodies_bytes"
    assert caught.value.details == {"limit": 5}


def test_room_is_required_for_all_that_arrive_together() -> None:
    """Two bodies that fit one by one are refused if they do not fit together; equal ones need room once."""
    bodies = Bodies()
    bodies.require_room((A, A), 4)
    with pytest.raises(TierFull):
        bodies.require_room((A, B), 5)
