"""What changes come to: the first before and the last after of each path, if each finds what the one before it left."""

from __future__ import annotations

from itertools import count

import pytest

from stepwell.domain.changesets.model import Content, EntryRow, Operation
from stepwell.domain.changesets.net_changes import NetChange, in_recording_order, net_changes
from stepwell.domain.changesets.paths import DIRECTORY, EXECUTABLE, LINK, REGULAR
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import BrokenChain, Conflict
from tests.support.domain.world import World

_numbers = count(1)


def side(body: bytes | None, mode: int | None = None, *, held: bool = True) -> Content | None:
    return None if body is None else Content(digest_of(body), len(body) if held else None, held, mode)


def entry(path: str, before: Content | None, after: Content | None, source: str | None = None) -> EntryRow:
    number = next(_numbers)
    return EntryRow("plan", "cs", number, Operation.MODIFY, path, source, before, after, "tool", 1, number)


A, B, C = side(b"a"), side(b"b"), side(b"c")


def test_first_before_and_last_after() -> None:
    """By path, in the order in which they were first touched."""
    entries = [entry("x", A, B), entry("y", None, A), entry("x", B, C), entry("z", A, None)]
    assert [*net_changes(entries).values()] == [NetChange("x", A, C), NetChange("y", None, A), NetChange("z", A, None)]
    assert net_changes([]) == {}


def test_back_to_where_it_was() -> None:
    """A path that is as it was is listed, and nothing."""
    net = net_changes([entry("x", None, A), entry("x", A, None), entry("y", A, B)])
    assert [change.is_nothing for change in net.values()] == [True, False]
    assert net["y"].reverse == NetChange("y", B, A)


def test_move() -> None:
    """Its source ends absent, its target began absent; and a chain goes through both."""
    net = net_changes([entry("old", None, A), entry("new", A, B, "old"), entry("new", B, C), entry("old", None, B)])
    assert net == {"old": NetChange("old", None, B), "new": NetChange("new", None, C)}


def test_move_onto_what_is_there() -> None:
    """It would lose what was there, so it does not follow."""
    with pytest.raises(BrokenChain):
        net_changes([entry("new", None, A), entry("new", B, B, "old")])


def test_broken_chain_names_every_path() -> None:
    """And is a conflict that trying again does not help."""
    entries = [
        *(entry("b", A, B), entry("b", A, C)),
        *(entry("a", None, A), entry("a", None, A)),
        *(entry("fits", A, B), entry("fits", B, None), entry("fits", None, C)),
        *(entry("c", A, None), entry("c", B, A), entry("c", B, A)),
    ]
    with pytest.raises(Conflict, match=r"^the changes of 3 paths do not follow .* the first is 'a'") as caught:
        net_changes(entries)
    assert type(caught.value) is BrokenChain
    assert (caught.value.details, caught.value.retry) == ({"paths": ["a", "b", "c"]}, False)


def test_only_one_path() -> None:
    """What is asked for is all that is looked at: the others may not follow."""
    entries = [entry("x", A, B), entry("y", A, B), entry("y", A, B), entry("x", B, C)]
    assert net_changes(entries, only="x") == {"x": NetChange("x", A, C)}
    assert net_changes(entries, only="z") == {}


@pytest.mark.parametrize(
    "modes, expected",
    [
        ([(REGULAR, EXECUTABLE), (EXECUTABLE, REGULAR)], (REGULAR, REGULAR)),
        ([(REGULAR, None), (None, None)], (REGULAR, REGULAR)),
        ([(None, EXECUTABLE), (None, None)], (None, EXECUTABLE)),
        ([(None, None), (EXECUTABLE, None)], (None, EXECUTABLE)),
        ([(None, None), (None, None)], (None, None)),
        ([(LINK, None), (LINK, REGULAR)], (LINK, REGULAR)),
    ],
)
def test_modes(modes: list[tuple[int | None, int | None]], expected: tuple[int | None, int | None]) -> None:
    """Who does not know the mode keeps the one that it finds, as far as anybody knew it."""
    (b1, a1), (b2, a2) = modes
    entries = [entry("x", side(b"a", b1), side(b"b", a1)), entry("x", side(b"b", b2), side(b"c", a2))]
    assert net_changes(entries) == {"x": NetChange("x", side(b"a", expected[0]), side(b"c", expected[1]))}


def test_modes_have_to_follow_too() -> None:
    """A mode that somebody changed in between breaks the chain."""
    with pytest.raises(BrokenChain):
        net_changes([entry("x", None, side(b"a", REGULAR)), entry("x", side(b"a", EXECUTABLE), A)])


def test_what_is_moved_keeps_its_mode() -> None:
    """Also one that only an earlier change knew."""
    made, moved = entry("old", None, side(b"a", EXECUTABLE)), entry("new", A, B, "old")
    for only in (None, "new"):
        assert net_changes([made, moved], only=only)["new"] == NetChange("new", None, side(b"b", EXECUTABLE))


def test_what_was_a_directory_does_not_make_one_of_a_file() -> None:
    """A mode is kept where it can be: there is no directory with content."""
    assert net_changes([entry("x", side(b"", DIRECTORY), A)])["x"].after == A
    assert net_changes([entry("to", side(b"a", EXECUTABLE), A, "from")])["to"].after == side(b"a", EXECUTABLE)


def test_held_if_any_of_them_is() -> None:
    """The bytes are there if either side of a link brought them."""
    digest_only = side(b"b", held=False)
    net = net_changes([entry("x", A, digest_only), entry("x", B, A), entry("x", A, digest_only), entry("x", B, C)])
    assert net["x"] == NetChange("x", A, C)
    made_a_file = [entry("x", A, digest_only), entry("x", side(b"b", LINK), side(b"b", REGULAR))]
    assert net_changes(made_a_file)["x"].after == side(b"b", REGULAR)


def test_in_the_order_of_recording() -> None:
    """Two that were open side by side: what counts is when each entry came, not which changeset was opened first."""
    world = World()
    world.use()
    world.execute()
    world.open("one", "ctx-1")
    world.open("two", "ctx-2")
    world.record("x", before=None, after=b"1", context_id="ctx-2")
    world.record("x", before=b"1", after=b"2", context_id="ctx-1")
    world.record("x", before=b"2", after=b"3", context_id="ctx-2")
    entries = in_recording_order([world.state.entries.of(each) for each in ("one", "two")])
    assert [each.ordinal for each in entries] == [1, 2, 3]
    assert net_changes(entries) == {"x": NetChange("x", None, side(b"3"))}
