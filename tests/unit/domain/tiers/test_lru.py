"""Rings keep the order of use, and undo exactly, whichever links they follow."""

import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.domain.tiers.lru import InnerLruList, LruList, LruNode
from tests.support.domain.world import backwards

NAMES = "abcdef"


class Named(LruNode):
    """A member that a test can tell from another."""

    name: str


AnyRing = LruList[Named] | InnerLruList[Named]
KINDS: list[type[AnyRing]] = [LruList, InnerLruList]
either = pytest.mark.parametrize("kind", KINDS)


def joined(ring: AnyRing, name: str) -> Named:
    member = Named(name)
    ring.extend((member,))
    return member


def filled(kind: type[AnyRing], names: str) -> tuple[AnyRing, dict[str, Named]]:
    ring = kind()
    members = {name: Named(name) for name in names}
    ring.extend(members.values())
    return ring, members


def both_ways(ring: AnyRing) -> list[str]:
    """The order, after making sure that the other direction agrees."""
    forwards = [member.name for member in ring]
    assert [member.name for member in backwards(ring)] == forwards[::-1]
    return forwards


@either
def test_empty(kind: type[AnyRing]) -> None:
    """A new ring holds nothing."""
    assert both_ways(kind()) == []


@either
def test_who_comes_last_is_most_recent(kind: type[AnyRing]) -> None:
    """In the order in which they come, also if nobody does."""
    ring, _ = filled(kind, "abc")
    ring.extend(())
    joined(ring, "d")
    assert both_ways(ring) == ["a", "b", "c", "d"]


@either
def test_touch_moves_to_the_end(kind: type[AnyRing]) -> None:
    """A touched member is the most recently used, also when it is that already."""
    ring, members = filled(kind, "abc")
    ring.touch(members["a"])
    ring.touch(members["a"])
    assert both_ways(ring) == ["b", "c", "a"]


def test_the_two_kinds_do_not_meddle() -> None:
    """A member has a place in one of each kind, and moving in one is nothing to the other."""
    ring, members = filled(LruList, "abc")
    inner: InnerLruList[Named] = InnerLruList()
    inner.extend(members.values())
    ring.touch(members["a"])
    inner.unlink(members["b"])
    assert both_ways(ring) == ["b", "c", "a"]
    assert both_ways(inner) == ["a", "c"]


@either
@given(st.lists(st.tuples(st.sampled_from(["append", "touch", "unlink"]), st.sampled_from(NAMES))))
def test_behaves_as_a_list(kind: type[AnyRing], steps: list[tuple[str, str]]) -> None:
    """Whatever is appended, touched and taken out, the order is that of a plain list."""
    ring, members = filled(kind, "")
    model: list[str] = []
    for step, name in steps:
        if step == "append" and name not in model:
            members[name] = joined(ring, name)
            model.append(name)
        elif step == "touch" and name in model:
            ring.touch(members[name])
            model.remove(name)
            model.append(name)
        elif step == "unlink" and name in model:
            ring.unlink(members[name])
            model.remove(name)
        assert both_ways(ring) == model


@either
@given(st.lists(st.sampled_from(NAMES)), st.lists(st.sampled_from(NAMES)))
def test_undoing_in_reverse_restores_every_order(kind: type[AnyRing], warm_up: list[str], steps: list[str]) -> None:
    """Taking out and appending anew, undone backwards, passes through the very same orders."""
    ring, members = filled(kind, NAMES)
    for name in warm_up:
        ring.touch(members[name])
    orders: list[list[str]] = []
    undo: list[tuple[Named, Named]] = []
    for name in steps:
        orders.append(both_ways(ring))
        old = members[name]
        ring.unlink(old)
        new = members[name] = joined(ring, name)
        undo.append((old, new))
    for old, new in reversed(undo):
        ring.unlink(new)
        ring.relink(old)
        assert both_ways(ring) == orders.pop()


@either
def test_victims_are_found_without_a_scan(kind: type[AnyRing]) -> None:
    """The first of a ring of any size costs one step: the rest is not looked at."""
    ring, members = filled(kind, NAMES)
    links = ("after", "before") if kind is LruList else ("inner_after", "inner_before")
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES[1:]:
            for link in links:
                patch.setattr(members[name], link, None)
        assert next(iter(ring)).name == NAMES[0]


@either
def test_nodes_end_with_their_ring(kind: type[AnyRing]) -> None:
    """Though they refer to each other and the garbage collector does not visit them."""
    ended: list[str] = []

    class Data:
        """An object whose end can be noticed."""

    class Holder(Named):
        """A member with an object that ends with it."""

        data: Data

    ring = kind()
    for name in NAMES:
        data = Data()
        weakref.finalize(data, ended.append, name)
        ring.extend((Holder(name, data),))
        del data
    assert not ended
    del ring
    assert sorted(ended) == [*NAMES]
