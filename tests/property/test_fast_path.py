"""A shortcut does what the machine does, or nothing: the same replies, changes and state, whatever came before."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain import machine
from stepwell.domain.commands import Command
from stepwell.domain.machine import Outcome
from stepwell.domain.replies import FragmentPlaced, Reply
from stepwell.domain.state import State
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    ExpireFragments,
    GetFragment,
    PromoteFragment,
    SetBudget,
    StoreFragment,
    StoreOptions,
)
from stepwell.domain.tiers.fast_path import StoreRun
from stepwell.domain.tiers.model import FragmentRow, Tier, TierBudget, Work, Writer
from stepwell.domain.tiers.serial_index import SerialIndex
from stepwell.domain.verdict import Origin
from stepwell.errors import Refused
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.handles import Handle
from stepwell.protocol.messages import CommandResult, Response
from tests.support.domain.world import image, origin

projects = st.sampled_from("pq")
names = st.sampled_from([*"abcdefgh", "", "a\n", "\x7f", "\x80", "e f"])
places = {"project": projects, "fragment_id": names}
texts = st.integers(0, 5).flatmap(lambda size: st.binary(min_size=size, max_size=size))
works = st.sampled_from([None, None, Work("plan"), Work("plan", "changeset")])
options = st.builds(
    StoreOptions,
    keep=st.booleans(),
    expires_at_ms=st.none() | st.integers(1_000, 1_012),
    expires_after_ms=st.none() | st.integers(1, 6),
    unique=st.booleans(),
)
plain = st.builds(StoreFragment, **places, body=texts, tokens=st.integers(1, 4), work=works)
odd = st.builds(
    StoreFragment,
    **places,
    body=texts | st.just(7),  # an upload that nobody has made
    tokens=st.integers(0, 4),
    tier=st.sampled_from(Tier),
    kind=st.sampled_from(["text", "", "a b", "-"]),
    metadata=st.sampled_from([{}, {"k": "v"}, {"k": "v" * limits.METADATA_BYTES_MAX}]),
    expected_revision=st.sampled_from([None, 0, 1]),
    options=st.none() | options,
)
tight = st.builds(
    TierBudget,
    hot_tokens=st.integers(4, 12),
    warm_entries=st.integers(1, 4),
    cold_entries=st.integers(1, 8),
    arena_bytes=st.integers(8, 20),
    bodies_bytes=st.integers(6, 15),
    promotion_threshold=st.integers(1, 3),
)
budgets = tight | st.just(TierBudget())
others = (st.builds(kind, **places) for kind in (DeleteFragment, PromoteFragment, DemoteFragment))
gets = st.builds(GetFragment, **places)
commands = st.one_of(
    plain, plain, plain, odd, gets, gets, *others, st.builds(SetBudget, budgets), st.builds(ExpireFragments)
)
scopes = st.sampled_from([None, None, ("p",), ("p", "q")])


ROOM = 1_000


def general(state: State, command: Command[Reply], asking: Origin) -> Outcome | str:
    try:
        return machine.apply(state, command, asking)
    except Refused as error:
        return error.kind


def short(state: State, commands: Sequence[Command[Reply]], asking: Origin) -> list[Outcome | str]:
    """By the shortcuts, as far as there are any."""
    outcomes: list[Outcome | str] = []
    while len(outcomes) < len(commands):
        rest = commands[len(outcomes) :]
        run = machine.apply_store_run(state, rest, asking, ROOM)
        if run.rows:
            outcomes += [stored(run, row, command) for row, command in zip(run.rows, rest, strict=False)]
        elif found := machine.apply_get_run(state, rest, asking):
            outcomes += [Outcome(each, state.revision) for each in found]
        else:
            outcomes.append(general(state, rest[0], asking))
    return outcomes


def stored(run: StoreRun, row: FragmentRow, command: Command[Reply]) -> Outcome:
    """The outcome that the machine would give. It also names a body that the fragment has already."""
    assert isinstance(command, StoreFragment)
    assert isinstance(command.body, bytes)
    replaced = run.replaced.get(row.revision)
    assert (row.digest in run.bodies) != (replaced is not None and replaced.digest == row.digest)
    placed = FragmentPlaced(row.project, row.fragment_id, row.tier, row.tokens, row.revision, row.digest)
    return Outcome(placed, row.revision, run.changes(row), {row.digest: command.body})


asked_at_once = st.one_of([st.lists(each, min_size=1, max_size=8) for each in (gets, plain, commands)])


@settings(max_examples=5 * settings().max_examples)  # so that an id that is one in a hundred is tried as well
@given(budgets, st.lists(st.tuples(asked_at_once, scopes), min_size=4, max_size=12))
def test_the_machine_does_the_same(
    budget: TierBudget, steps: list[tuple[list[Command[Reply]], tuple[str, ...] | None]]
) -> None:
    ones, others = State(budget), State(budget)
    for state, name in itertools.product((ones, others), "abcd"):
        general(state, StoreFragment("p", name, name.encode(), 1), origin())
    for number, (asked, scope) in enumerate(steps):
        asking = replace(origin(now_ms=1_000 + number, projects=scope), writer=Writer("alice", 7, "tester"))
        assert short(ones, asked, asking) == [general(others, command, asking) for command in asked]
    assert image(ones) == image(others)


def test_no_more_than_there_is_room_for() -> None:
    """The room in memory is another bound than the budget."""
    state = State()
    machine.apply(state, StoreFragment("p", "a", b"", 1), origin())
    commands = [StoreFragment("p", name, name.encode() * 4, 1) for name in "bcd"]
    run = machine.apply_store_run(state, commands, origin(), 11)
    assert [row.fragment_id for row in run.rows] == ["b", "c"]
    assert [*run.bodies.values()] == [b"bbbb", b"cccc"]


@pytest.mark.parametrize("odd", [{"source": "s" * 257}, {"metadata": {"k": "v"}}], ids=["source", "metadata"])
def test_what_is_found_by_a_shortcut_is_small(odd: dict[str, Any]) -> None:
    """So that its size is known without looking: whatever may be large is left to the machine."""
    state = State()
    for name, more in (("a", {"source": "s" * 256}), ("b", odd), ("c", {})):
        machine.apply(state, StoreFragment("p", name, b"", 1, **more), origin())
    before = image(state)
    assert machine.apply_get_run(state, [GetFragment("p", "b"), GetFragment("p", "a")], origin()) == []
    assert image(state) == before
    found = machine.apply_get_run(state, [GetFragment("p", "a"), GetFragment("p", "b")], origin())
    assert [each.row.fragment_id for each in found] == ["a"]


def test_the_largest_that_is_found_is_as_small_as_it_is_said_to_be() -> None:
    """Every text as long as it may be, and of characters that take the most bytes."""
    state = State()
    wide = "\N{GRINNING FACE}"
    command = StoreFragment("p" * 128, wide * 512, b"", 1, source=wide * 256, kind="k" * 64, detail_depth=16)
    machine.apply(state, command, origin())
    (found,) = machine.apply_get_run(state, [GetFragment("p" * 128, wide * 512)], origin())
    handle = Handle(2**62, 2**40, 2**40, packed_bytes=2**40)
    frame = bytearray()
    encode_frame(Response(1, (CommandResult(2**62, found, {found.row.digest: handle}),)), frame)
    assert len(frame) <= limits.SIMPLE_RESULT_BYTES


def test_metadata_that_may_be_too_large_is_no_shortcut() -> None:
    """It has to be measured; small metadata is stored as it is."""
    state = State()
    machine.apply(state, StoreFragment("p", "a", b"", 1), origin())
    large = StoreFragment("p", "b", b"b", 1, metadata={"k": "v" * (limits.METADATA_BYTES_MAX // 4)})
    small = StoreFragment("p", "c", b"c", 1, metadata={"k": "v" * (limits.METADATA_BYTES_MAX // 4 - 1)})
    before = image(state)
    assert machine.apply_store_run(state, [large], origin(), ROOM).rows == []
    assert image(state) == before
    (row,) = machine.apply_store_run(state, [small, large], origin(), ROOM).rows
    assert row.metadata == small.metadata


def test_a_run_demotes_a_bounded_number() -> None:
    """A store for which too many fragments would move is left to the machine, and the run ends before it."""
    many = limits.DEMOTIONS_PER_RUN
    state = State(TierBudget(hot_tokens=3 * many))
    for number in range(2 * many):
        machine.apply(state, StoreFragment("p", f"{number}", f"{number}".encode(), 1), origin())
    sizes = {"a": 2 * many, "b": 1, "c": 1}
    commands = [StoreFragment("p", name, name.encode(), tokens) for name, tokens in sizes.items()]
    run = machine.apply_store_run(state, commands, origin(), ROOM)
    assert [row.fragment_id for row in run.rows] == ["a"]
    assert [len(each) for each in run.demotions.values()] == [many]
    assert state.fragments.usage(Tier.WARM).entries == many


def test_only_fragments_from_before_a_run_are_demoted_in_it() -> None:
    """When these are used up, the run ends, and the next one demotes the fragments that it stored."""
    state = State(TierBudget(hot_tokens=2))
    for name in "ab":
        machine.apply(state, StoreFragment("p", name, name.encode(), 1), origin())
    commands = [StoreFragment("p", name, name.encode(), 1) for name in "cdefg"]
    names: list[list[str]] = []
    while commands:
        run = machine.apply_store_run(state, commands, origin(), ROOM)
        names.append([row.fragment_id for row in run.rows])
        del commands[: len(run.rows)]
    assert names == [["c", "d"], ["e", "f"], ["g"]]
    assert [entry.row.fragment_id for entry in state.fragments.oldest(Tier.WARM)] == [*"abcde"]


def test_replacements_are_simple() -> None:
    """Of any hot fragment: with another body, with the same one, with the expected revision, among new fragments."""
    state = State()
    for name in "abc":
        machine.apply(state, StoreFragment("p", name, name.encode(), 1), origin())
    commands = [
        StoreFragment("p", "b", b"B", 2),
        StoreFragment("p", "new", b"n", 1),
        StoreFragment("p", "a", b"a", 3),
        StoreFragment("p", "c", b"C", 1, expected_revision=3),
    ]
    run = machine.apply_store_run(state, commands, origin(), ROOM)
    assert [row.fragment_id for row in run.rows] == ["b", "new", "a", "c"]
    assert [run.replaced[row.revision].fragment_id for row in run.rows if row.revision in run.replaced] == [*"bac"]
    assert [*run.bodies.values()] == [b"B", b"n", b"C"]
    assert [row.fragment_id for row in run.released] == [*"bc"], "a keeps its body"
    assert digest_of(b"a") in state.bodies
    assert digest_of(b"b") not in state.bodies
    assert [entry.row.fragment_id for entry in state.fragments.oldest(Tier.HOT)] == ["b", "new", "a", "c"]
    assert state.bodies.bytes == 4


@pytest.mark.parametrize(
    "command",
    [
        StoreFragment("p", "a", b"b", 1),
        StoreFragment("p", "a", b"A", 1, expected_revision=0),
        StoreFragment("p", "a", b"A", 1, expected_revision=2),
        StoreFragment("p", "warm", b"w", 1),
    ],
    ids=["body of another fragment", "expected to be absent", "stale", "not hot"],
)
def test_replacements_that_are_not_simple(command: StoreFragment) -> None:
    """The machine decides them, and refuses some."""
    state = State()
    for name in ("a", "b", "warm"):
        tier = Tier.WARM if name == "warm" else Tier.HOT
        machine.apply(state, StoreFragment("p", name, name.encode(), 1, tier=tier), origin())
    before = image(state)
    assert machine.apply_store_run(state, [command], origin(), ROOM).rows == []
    assert image(state) == before


def test_run_ends_before_a_body_that_it_has_released() -> None:
    """The body of the replaced row is freed behind the run: a later command brings its bytes again."""
    state = State()
    for name in "ab":
        machine.apply(state, StoreFragment("p", name, name.encode(), 1), origin())
    commands = [StoreFragment("p", "a", b"A", 1), StoreFragment("p", "c", b"a", 1)]
    run = machine.apply_store_run(state, commands, origin(), ROOM)
    assert [row.fragment_id for row in run.rows] == ["a"]
    assert [*machine.apply_store_run(state, commands[1:], origin(), ROOM).bodies.values()] == [b"a"]


def test_replaced_fragment_is_not_demoted_by_its_run() -> None:
    """It was the least recently used, and is the most recently used now; a demoted one is not replaced by the run."""
    state = State(TierBudget(hot_tokens=4))
    for name in "abcd":
        machine.apply(state, StoreFragment("p", name, name.encode(), 1), origin())
    commands = [
        StoreFragment("p", "a", b"A", 2),  # demotes b
        StoreFragment("p", "e", b"e", 1),  # demotes c
        StoreFragment("p", "c", b"C", 1),
    ]
    run = machine.apply_store_run(state, commands, origin(), ROOM)
    assert [row.fragment_id for row in run.rows] == ["a", "e"]
    assert [before.fragment_id for each in run.demotions.values() for before, _ in each] == ["b", "c"]


@pytest.mark.parametrize(
    "options", [StoreOptions(), StoreOptions(keep=True), StoreOptions(unique=True)], ids=["none", "keep", "unique"]
)
def test_stores_with_options_are_not_simple(options: StoreOptions) -> None:
    """Whatever they say: the machine decides them."""
    state = State()
    machine.apply(state, StoreFragment("p", "a", b"a", 1), origin())
    before = image(state)
    assert (
        machine.apply_store_run(state, [StoreFragment("p", "b", b"b", 1, options=options)], origin(), ROOM).rows == []
    )
    assert image(state) == before


def test_fragments_with_options_are_replaced_by_the_machine() -> None:
    """One that is kept or expires is hot and has the expected revision, and its place is elsewhere all the same."""
    state = State()
    kinds = [StoreOptions(keep=True), StoreOptions(expires_at_ms=2**40), StoreOptions(expires_after_ms=9)]
    for number, options in enumerate(kinds):
        machine.apply(state, StoreFragment("p", f"{number}", b"a%d" % number, 1, options=options), origin())
    before = image(state)
    for number, _ in enumerate(kinds):
        commands = [StoreFragment("p", f"{number}", b"new", 1)]
        assert machine.apply_store_run(state, commands, origin(), ROOM).rows == []
    assert image(state) == before


def test_reads_of_what_is_kept_are_simple_and_of_what_expires_are_not() -> None:
    """What expires has to be compared with the time; what is kept is read as fast as any other hot fragment."""
    state = State()
    machine.apply(state, StoreFragment("p", "kept", b"k", 1, options=StoreOptions(keep=True)), origin())
    machine.apply(state, StoreFragment("p", "over", b"o", 1, options=StoreOptions(expires_at_ms=2**40)), origin())
    found = machine.apply_get_run(state, [GetFragment("p", "kept"), GetFragment("p", "over")], origin())
    assert [each.row.fragment_id for each in found] == ["kept"]


def test_rows_of_a_run_name_their_work() -> None:
    """Rows of one session share an object for each work."""
    state = State()
    asking = replace(origin(), writer=Writer("alice", 7, "tester"))
    machine.apply(state, StoreFragment("p", "a", b"a", 1), asking)
    work = Work("plan", "changeset")
    commands = [StoreFragment("p", name, name.encode(), 1, work=work if name != "d" else None) for name in "bcd"]
    b, c, d = machine.apply_store_run(state, commands, asking, ROOM).rows
    assert b.writer == Writer("alice", 7, "tester", work)
    assert b.writer is c.writer
    assert d.writer is asking.writer


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=300), st.integers(-1, 400))
def test_serials_are_a_sorted_mapping(steps: list[tuple[int, bool]], number: int) -> None:
    """Also where numbers come in any order, go, and come back under another id."""
    numbers = {"c": 3, "a": 1}
    serials = SerialIndex(numbers.__getitem__, numbers)
    model = {1: "a", 3: "c"}
    for at, (each, is_set) in enumerate(steps):
        if is_set and each not in model:
            model[each] = f"{at}"
            numbers[f"{at}"] = each
            serials.add(each, f"{at}")
        elif is_set:
            serials.add(each, model[each])
        elif each in model:
            serials.remove(each)
            del numbers[model.pop(each)]
    assert [*serials] == [model[each] for each in sorted(model)]
    assert [*serials.after(number)] == [model[each] for each in sorted(model) if each > number]
    assert len(serials) == len(model)
    assert len(serials._places) <= 2 * len(model) + 64
