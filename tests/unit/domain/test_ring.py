"""The ring keeps the order of use, and undoes exactly."""

from hypothesis import given
from hypothesis import strategies as st

from stepwell.domain.ring import Link, Ring
from tests.unit.domain.support import backwards

MEMBERS = "abcdef"


def filled(members: str) -> tuple[Ring[str], dict[str, Link[str]]]:
    ring: Ring[str] = Ring()
    return ring, {member: ring.append(member) for member in members}


def both_ways(ring: Ring[str]) -> list[str]:
    """The order, after making sure that the other direction agrees."""
    forwards = list(ring)
    assert list(backwards(ring)) == forwards[::-1]
    return forwards


def test_empty() -> None:
    """A new ring holds nothing."""
    assert both_ways(Ring()) == []


def test_append_is_most_recent() -> None:
    """What is appended comes last."""
    ring, _ = filled("abc")
    assert both_ways(ring) == ["a", "b", "c"]


def test_touch_moves_to_the_end() -> None:
    """A touched link is the most recently used, also when it is that already."""
    ring, links = filled("abc")
    ring.touch(links["a"])
    ring.touch(links["a"])
    assert both_ways(ring) == ["b", "c", "a"]


@given(st.lists(st.tuples(st.sampled_from(["append", "touch", "take_out"]), st.sampled_from(MEMBERS))))
def test_behaves_as_a_list(steps: list[tuple[str, str]]) -> None:
    """Whatever is appended, touched and taken out, the order is that of a plain list."""
    ring, links = filled("")
    model: list[str] = []
    for step, member in steps:
        if step == "append" and member not in model:
            links[member] = ring.append(member)
            model.append(member)
        elif step == "touch" and member in model:
            ring.touch(links[member])
            model.remove(member)
            model.append(member)
        elif step == "take_out" and member in model:
            links[member].take_out()
            model.remove(member)
        assert both_ways(ring) == model


@given(st.lists(st.sampled_from(MEMBERS)), st.lists(st.sampled_from(MEMBERS)))
def test_undoing_in_reverse_restores_every_order(warm_up: list[str], steps: list[str]) -> None:
    """Taking out and appending anew, undone backwards, passes through the very same orders."""
    ring, links = filled(MEMBERS)
    for member in warm_up:
        ring.touch(links[member])
    orders: list[list[str]] = []
    undo: list[tuple[Link[str], Link[str]]] = []
    for member in steps:
        orders.append(list(ring))
        old = links[member]
        old.take_out()
        new = ring.append(member)
        undo.append((old, new))
        links[member] = new
    for old, new in reversed(undo):
        new.take_out()
        old.put_back()
        assert both_ways(ring) == orders.pop()


def test_victims_are_found_without_a_scan() -> None:
    """The first of a ring of any size costs one step: the rest is not looked at."""
    ring: Ring[int] = Ring()
    links = [ring.append(number) for number in range(1, 1_001)]
    for link in links[1:]:
        del link.after, link.before, link.value
    assert next(iter(ring)) == 1
