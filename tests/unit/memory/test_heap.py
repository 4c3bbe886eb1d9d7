"""Bodies are kept for exactly as long as something refers to them."""

import pytest

from stepwell.domain.content import Bodies, digest_of
from stepwell.memory.heap import BodyHeap

A, B = b"a", b"b"


def counted(*bodies: bytes) -> Bodies:
    """A table in which these bodies are referred to."""
    table = Bodies()
    for body in bodies:
        table.retain((digest_of(body), len(body)))
    return table


def test_only_what_is_referred_to_is_kept() -> None:
    """A body that came with a command which nothing refers to afterwards is not held."""
    heap = BodyHeap()
    heap.keep({digest_of(A): A, digest_of(B): B}, counted(A))
    assert len(heap) == 1
    assert heap.read([digest_of(A)]) == {digest_of(A): A}
    with pytest.raises(KeyError):
        heap.read([digest_of(B)])


def test_equal_bodies_are_one() -> None:
    """The bytes that came first stay; the second copy is not held."""
    heap = BodyHeap()
    first, second = bytes(b"same" * 10), bytes(bytearray(b"same" * 10))
    for body in (first, second):
        heap.keep({digest_of(body): body}, counted(first))
    assert len(heap) == 1
    assert heap.read([digest_of(first)])[digest_of(first)] is first


def test_dropped_when_nobody_refers_to_it() -> None:
    """What is still referred to survives its drop; what is not there can be dropped again."""
    heap = BodyHeap()
    heap.keep({digest_of(A): A, digest_of(B): B}, counted(A, B))
    for _ in range(2):
        for body in (A, B):
            heap.drop(digest_of(body), counted(A))
    assert len(heap) == 1
    assert heap.read(()) == {}
