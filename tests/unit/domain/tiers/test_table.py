"""The table of fragments undoes exactly, whatever is done, and forgets what it no longer needs."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stepwell.domain import invariants
from stepwell.domain.state import State
from stepwell.domain.tiers.model import FragmentRow, Tier
from stepwell.domain.tiers.table import FragmentTable
from stepwell.domain.tiers.tier_index import FragmentEntry, Usage
from tests.support.domain.world import image

Step = tuple[str, str, Tier | None, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from("pqr"),
        st.sampled_from("abc"),
        st.sampled_from(Tier) | st.none(),
        st.just(0) | st.integers(0, 7),
    ),
    max_size=12,
)
KEPT, EXPIRES, SLIDES = 1, 2, 4
"""Bits of what a row asks for."""


def step(
    table: FragmentTable, project: str, name: str, tier: Tier | None, options: int = 0
) -> tuple[FragmentRow | None, ...]:
    """Put a row where it is wanted, or take it away. Rows with the same options have equal bodies."""
    before = table.get((project, name))
    after = None
    if tier is not None:
        serial = before.serial if before else table.next_serial
        keep, expires_at_ms = bool(options & KEPT), 9 if options & (EXPIRES | SLIDES) else None
        after = FragmentRow(
            project, name, "", "text", 0, 2, 3, b"%d" % options, Tier.HOT if keep and tier is Tier.WARM else tier, 0, 0,
            1, serial, {}, None, keep, expires_at_ms, 5 if options & SLIDES else None,
        )  # fmt: skip
    if before or after:
        table.swap(before, after)
    return before, after


@given(STEPS, STEPS)
def test_unswap_is_the_inverse_of_swap(earlier: list[Step], later: list[Step]) -> None:
    """Undone backwards, every step leads through the very state that was before it."""
    state = State()
    table = state.fragments
    for each in earlier:
        step(table, *each)
    for key in sorted(table.entries)[::2]:
        table.touch(table.entries[key], 7)
    table.forget_undo()
    for project in table.projects_after(""):
        table.fill_equal_bodies(project)
    images = [image(state)]
    done = []
    for each in later:
        done.append(step(table, *each))
        images.append(image(state))
        assert problems(state) == set()
    for before, after in reversed(done):
        assert comparable(images.pop()) == comparable(image(state))
        if before or after:
            table.unswap(before, after)
            assert problems(state) == set()
    table.forget_undo()
    assert image(state) == images.pop()


def problems(state: State) -> set[str]:
    """The invariants of what is derived from options that do not hold."""
    derived = ("what_expires_is_filed_by_its_time", "equal_bodies_are_found")
    return {name for each in invariants.check(state) if (name := each.partition(":")[0]) in derived}


def comparable(seen: dict[str, object]) -> dict[str, object]:
    """Half-way through undoing, an emptied project may still be there: it goes when the table settles."""
    left_out = {"undo", "usage", "kept", "created"}
    return {
        key: {each: found for each, found in value.items() if found != ([], [])}
        if "orders" in key and isinstance(value, dict)
        else value
        for key, value in seen.items()
        if key not in left_out
    }


def test_settling_forgets() -> None:
    """Neither removed fragments nor emptied projects are kept."""
    table = FragmentTable()
    step(table, "p", "a", Tier.HOT)
    step(table, "p", "a", None)
    assert list(table.projects_after("")) == ["p"]
    table.forget_undo()
    assert list(table.projects_after("")) == []
    assert (table._removed, table._emptied) == ([], set())


def test_project_that_is_used_again_is_kept() -> None:
    """Empty in between, and not at the end."""
    table = FragmentTable()
    step(table, "p", "a", Tier.HOT)
    step(table, "p", "a", None)
    step(table, "p", "b", Tier.COLD)
    table.forget_undo()
    assert list(table.projects_after("")) == ["p"]


def test_oldest_of_several_projects_is_one_order() -> None:
    """By use, across projects; unknown projects hold nothing."""
    table = FragmentTable()
    for project, name in ("pa", "qb", "pc", "rd", "qe"):
        step(table, project, name, Tier.HOT)
    table.touch(table.entries["p", "a"], 1)
    assert [entry.row.fragment_id for entry in table.oldest(Tier.HOT, ["q", "p", "zzz"])] == ["b", "c", "e", "a"]
    assert table.usage(Tier.HOT, ["q", "p", "zzz"]) == Usage(4, 8, 12)
    assert list(table.oldest(Tier.HOT, [])) == []


def test_usage_is_a_value() -> None:
    """Adding to what was handed out changes no counter."""
    table = FragmentTable()
    step(table, "p", "a", Tier.HOT)
    row = table.get(("p", "a"))
    assert row is not None
    table.usage(Tier.HOT).add(replace(row, tokens=99))
    assert table.usage(Tier.HOT) == Usage(1, 2, 3)
    assert len(table) == 1


def test_rows_that_stand_for_files_are_counted() -> None:
    """In each tier, of all projects and of some; undoing a swap, and restoring a table, count them, too."""
    table = FragmentTable()
    step(table, "p", "a", Tier.HOT)
    row = table.get(("p", "a"))
    assert row is not None
    file = replace(row, fragment_id="file:s", source="s", kind="file", tier=Tier.WARM, serial=table.next_serial)
    text, mine = replace(file, kind="text"), replace(file, fragment_id="mine", serial=file.serial + 1)
    for each in (file, mine):
        table.swap(None, each)
    assert (table.files(Tier.WARM), table.files(Tier.WARM, ["p"]), table.files(Tier.WARM, ["q"])) == (1, 1, 0)
    assert (table.usage(Tier.WARM).entries, table.files(Tier.HOT)) == (2, 0)
    table.swap(file, text)
    assert table.files(Tier.WARM) == 0
    table.unswap(file, text)
    assert table.files(Tier.WARM) == 1
    restored = FragmentTable()
    # An entry belongs to one table, which links it.
    loaded = [FragmentEntry(each.row, each.tick, each.touched_at_ms, each.last_accessed_ms) for each in table]
    restored.restore(loaded, table.next_serial, table.tick)
    assert (restored.files(Tier.WARM), restored.files(Tier.WARM, ["p"])) == (1, 1)


def test_what_is_kept_or_expires_is_restored() -> None:
    """In the lists apart and by its time, as reads have moved it."""
    table = FragmentTable()
    for number, options in enumerate((0, KEPT, KEPT | SLIDES, EXPIRES)):
        step(table, "p", f"f{number}", Tier.HOT, options)
    step(table, "p", "cold", Tier.COLD, KEPT)
    table.touch(table.entries["p", "f2"], 7)
    restored = FragmentTable()
    loaded = [
        FragmentEntry(each.row, each.tick, each.touched_at_ms, each.last_accessed_ms)
        for each in sorted(table, key=lambda each: each.tick)
    ]
    restored.restore(loaded, table.next_serial, table.tick)
    assert [entry.row.fragment_id for entry in restored.oldest_kept()] == ["f1", "f2"]
    assert restored.kept_usage() == restored.kept_usage(["p"]) == table.kept_usage()
    assert restored.kept_entries == 3
    assert restored.expiry.times() == {("p", "f2"): 12, ("p", "f3"): 9}
    assert [*restored.expiry.due(11)] == [("p", "f3")]


def test_reported_reads_of_what_is_kept() -> None:
    """They make it the most recently used of its list, which others do not share."""
    table = FragmentTable()
    for name in "ab":
        step(table, "p", name, Tier.HOT, KEPT)
    step(table, "p", "c", Tier.HOT)
    table.count_reads([("p", "a", 2), ("p", "c", 1), ("p", "none", 1)], 7)
    assert [entry.row.fragment_id for entry in table.oldest_kept()] == ["b", "a"]
    assert (table.entries["p", "a"].access_count, table.entries["p", "a"].last_accessed_ms) == (2, 7)


def test_removed_entries_hold_no_others() -> None:
    """A chain of them would be freed by recursion, deeper than a stack, when its first one is."""
    table = FragmentTable()
    for number in range(3):
        step(table, "p", f"f{number}", Tier.HOT)
    removed = [*table]
    for entry in removed:
        table.swap(entry.row, replace(entry.row, tier=Tier.WARM))
    assert any(entry.after for entry in removed), "undo needs the links"
    table.forget_undo()
    for entry in removed:
        assert (entry.before, entry.after, entry.inner_before, entry.inner_after) == (None,) * 4


def test_a_move_keeps_what_reading_left() -> None:
    """Count and time of access go along; the count since the last move starts anew."""
    table = FragmentTable()
    step(table, "p", "a", Tier.WARM)
    table.touch(table.entries["p", "a"], 7)
    step(table, "p", "a", Tier.HOT)
    entry = table.entries["p", "a"]
    assert (entry.access_count, entry.last_accessed_ms, entry.accesses_since_move) == (1, 7, 0)
