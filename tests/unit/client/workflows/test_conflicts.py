"""Conflicts of a merge: a choice concerns the hunks alone, and every other edit of every child is in the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

import stepwell as sw
from stepwell.domain.plans.conflicts import Side
from stepwell.trees.merge.text_merge import Hunk, HunkKind
from tests.support.client.sessions import unchanged
from tests.support.client.subplans import Given, Work, parent_of, record, tree

KEYS = "ABCD"
BASE = "".join(f"{key}=1\n" + "".join(f"  {key.lower()}{number}\n" for number in range(5)) for key in KEYS).encode()


def edited(**values: int) -> bytes:
    """The base with other values of some keys; the keys are far apart."""
    body = BASE
    for key, value in values.items():
        body = body.replace(f"{key}=1".encode(), f"{key}={value}".encode())
    return body


def values(context: sw.PlanExecutionContext, path: str = "f") -> str:
    """The value of each key in what is merged so far."""
    found = tree(context)[path]
    assert found is not None
    return " ".join(line.decode() for line in found[0].splitlines() if b"=" in line)


def children(*contents: Given, base: Given = BASE) -> dict[str, Work]:
    """Children that found the same content at one path."""
    return {f"c{number}": {"f": (base, each)} for number, each in enumerate(contents, 1)}


@pytest.fixture
def four(client: sw.Client) -> sw.PlanExecutionContext:
    """A merged plan of four children, of which the third is in conflict with the first; the fourth waits."""
    context = parent_of(client, children(edited(A=2), edited(B=3), edited(A=99), edited(C=4)))
    context.merge_children()
    return context


@pytest.mark.parametrize(
    "accept, expected", [("ours", "A=2 B=3 C=4 D=1"), ("theirs", "A=99 B=3 C=4 D=1"), (["theirs"], "A=99 B=3 C=4 D=1")]
)
def test_clean_edits_are_kept(
    client: sw.Client, four: sw.PlanExecutionContext, accept: Side | list[Side], expected: str
) -> None:
    """Of the child in conflict, of those before it and of those behind it, whichever side is accepted."""
    plan = four.resolve("f", accept=accept)
    assert plan.open_conflicts == ()
    assert values(four) == expected
    assert [each.resolution for each in plan.conflicts][1] is sw.Resolution.MERGED
    client.plans.complete_execute(plan.plan_id)
    client.plans.apply_plan(plan.plan_id)


def test_one_open_conflict_for_a_path(four: sw.PlanExecutionContext) -> None:
    """A child behind it waits, and is no question yet."""
    plan = four.merge_children()
    assert [(each.path, each.alias) for each in plan.conflicts] == [("f", "c3"), ("f", "c4")]
    assert [(each.path, each.alias) for each in plan.open_conflicts] == [("f", "c3")]


def test_later_child_that_overlaps_is_the_next_question(client: sw.Client) -> None:
    """It sees the choice; edits that it shares with the result are no question."""
    works = children(edited(A=2), edited(A=3, B=3), edited(A=4, C=4), edited(A=3, D=5))
    context = parent_of(client, works)
    plan = context.merge_children()
    plan = context.resolve(plan.open_conflicts[0], accept="theirs")
    assert values(context) == "A=3 B=3 C=1 D=1"
    assert [each.alias for each in plan.open_conflicts] == ["c3"]
    assert context.conflict_sides("f").hunks == (Hunk(HunkKind.LINES, b"A=3\n", b"A=4\n"),)
    plan = context.resolve(plan.open_conflicts[0], accept="ours")
    assert values(context) == "A=3 B=3 C=4 D=5"
    assert plan.open_conflicts == ()


def test_side_for_each_hunk(client: sw.Client) -> None:
    """In the order of the lines; as many as there are hunks."""
    context = parent_of(client, children(edited(A=2, B=2, D=2), edited(A=3, B=3, C=3, D=3)))
    context.merge_children()
    sides = context.conflict_sides("f")
    assert [(hunk.ours, hunk.theirs) for hunk in sides.hunks] == [
        (b"A=2\n", b"A=3\n"),
        (b"B=2\n", b"B=3\n"),
        (b"D=2\n", b"D=3\n"),
    ]
    for wrong in ([], ["ours"], ["ours"] * 4):
        with (
            unchanged(client),
            pytest.raises(sw.InvalidArgument, match=f"3 hunks of the conflict, not {len(wrong)}"),
        ):
            context.resolve(sides, accept=cast("list[Side]", wrong))
    plan = context.resolve(sides, accept=["ours", "theirs", "ours"])
    assert values(context) == "A=2 B=3 C=3 D=2"
    assert plan.conflicts[0].resolution is sw.Resolution.HUNKS


class TestMarkedText:
    """Text with markers, which a person edits and hands back."""

    def test_edited(self, four: sw.PlanExecutionContext) -> None:
        """The body replaces everything; the children behind it are merged with it."""
        text = four.conflict_text("f")
        assert text.startswith("<<<<<<< ours\nA=2\n=======\nA=99\n>>>>>>> theirs (c3)\n  a0\n")
        begin, end = text.index("<<<<<<<"), text.index("  a0")
        plan = four.resolve("f", body=(text[:begin] + "A=2+99\n" + text[end:]).encode())
        assert values(four) == "A=2+99 B=3 C=4 D=1"
        assert plan.open_conflicts == ()

    def test_not_edited(self, client: sw.Client, four: sw.PlanExecutionContext) -> None:
        """Markers that were left are refused, with the line."""
        text = four.conflict_text("f").encode()
        for body, line in ((text, 1), (text.replace(b"<<<<<<< ours\n", b""), 4)):
            with (
                unchanged(client),
                pytest.raises(sw.InvalidArgument, match=f"line {line} of the body is a conflict mark"),
            ):
                four.resolve("f", body=body)

    def test_markers_of_the_text_itself(self, client: sw.Client) -> None:
        """A text about git may have them."""
        marker = b"<<<<<<< ours\n"
        context = parent_of(client, children(marker + b"a\n", marker + b"b\n", base=marker))
        context.merge_children()
        context.resolve("f", body=marker + b"a and b\n")
        assert tree(context) == {"f": (marker + b"a and b\n", None)}

    def test_mode(self, four: sw.PlanExecutionContext) -> None:
        """The one that is given."""
        four.resolve("f", body=b"x\n", mode=0o100755)
        found = tree(four)["f"]
        assert found is not None
        assert found[1] == 0o100755


class TestVersion:
    """A choice is for the conflict that was seen."""

    def test_earlier_choice(self, client: sw.Client) -> None:
        """Of another thread with the same lease, for instance: the later one is told, and changes nothing."""
        works = children(edited(A=2), edited(A=3), edited(A=4))
        context = parent_of(client, works)
        first = context.merge_children().open_conflicts[0]
        sides = context.conflict_sides("f")
        assert first.version == sides.version
        context.resolve(first, accept="ours")
        for seen in (first, sides):
            with unchanged(client), pytest.raises(sw.Conflict, match="is now with child 'c3'"):
                context.resolve(seen, accept="theirs")
        with unchanged(client), pytest.raises(sw.Conflict, match="look at the conflict again"):
            context.resolve("f", body=b"x", version=sides.version)
        context.resolve("f", accept="theirs", version=context.conflict_sides("f").version)
        assert values(context) == "A=4 B=1 C=1 D=1"

    def test_change_by_the_parent(self, client: sw.Client, four: sw.PlanExecutionContext) -> None:
        """What the parent records at the path after the merge is `ours` from then on."""
        (seen,) = four.merge_children().open_conflicts
        found = tree(four)["f"]
        assert found is not None
        record(four, {"f": (found[0], found[0].replace(b"D=1", b"D=7"))})
        with unchanged(client), pytest.raises(sw.Conflict):
            four.resolve(seen, accept="theirs")
        four.resolve(four.conflict_sides("f"), accept="theirs")
        assert values(four) == "A=99 B=3 C=4 D=7"

    def test_change_that_ends_the_conflict(self, four: sw.PlanExecutionContext) -> None:
        """Then there is nothing to choose: the child is merged by every choice."""
        found = tree(four)["f"]
        assert found is not None
        record(four, {"f": (found[0], found[0].replace(b"A=2", b"A=1"))})
        sides = four.conflict_sides("f")
        assert (sides.hunks, sides.is_clean, sides.reason) == (
            (),
            True,
            "it can be merged by now: every choice does that",
        )
        four.resolve(sides, accept=[])
        assert values(four) == "A=99 B=3 C=4 D=1"


def test_deleted_by_a_child(client: sw.Client) -> None:
    """A question about the whole file; then the next child is merged with what is there."""
    context = parent_of(client, children(edited(A=2), None, edited(C=4)))
    context.merge_children()
    sides = context.conflict_sides("f")
    assert (sides.hunks, sides.marked) == ((Hunk(HunkKind.CONTENT, edited(A=2), None),), None)
    assert "one side deleted it" in context.conflict_text("f")
    plan = context.resolve("f", accept="theirs")
    assert tree(context) == {"f": None}
    assert [each.alias for each in plan.open_conflicts] == ["c3"], "it changed what is deleted"
    plan = context.resolve("f", accept="theirs")
    assert (values(context), plan.open_conflicts) == ("A=1 B=1 C=4 D=1", ())


def test_mode_is_a_hunk(client: sw.Client) -> None:
    """Behind those of the lines."""
    works = children((edited(A=2), 0o100755), (edited(A=3), 0o100600), base=(BASE, 0o100644))
    context = parent_of(client, works)
    context.merge_children()
    assert [hunk.kind for hunk in context.conflict_sides("f").hunks] == [HunkKind.LINES, HunkKind.MODE]
    context.resolve("f", accept=["theirs", "ours"])
    assert tree(context) == {"f": (edited(A=3), 0o100755)}


def test_sequential_apply(client: sw.Client) -> None:
    """No lines are merged by this strategy: one side is taken as a whole."""
    works = children(edited(A=2), edited(B=3))
    for accept, expected in (("ours", "A=2 B=1 C=1 D=1"), ("theirs", "A=1 B=3 C=1 D=1")):
        context = parent_of(client, works, merge=sw.MergeStrategy.SEQUENTIAL_APPLY)
        context.merge_children()
        sides = context.conflict_sides("f")
        assert [hunk.kind for hunk in sides.hunks] == [HunkKind.CONTENT]
        assert sides.is_clean
        assert "did not find what those before it left" in sides.reason
        assert context.conflict_text("f").encode() == edited(A=2, B=3)
        context.resolve("f", accept=cast("Side", accept))
        assert values(context) == expected


def test_several_paths(client: sw.Client) -> None:
    """Each has its own conflict, and they are independent."""
    works: dict[str, Work] = {
        f"c{number}": {path: (BASE, edited(A=number, B=number)) for path in ("f", "g")} for number in (2, 3, 4)
    }
    context = parent_of(client, works)
    plan = context.merge_children()
    while plan.open_conflicts:
        for conflict in plan.open_conflicts:
            plan = context.resolve(conflict, accept="ours" if conflict.path == "f" else "theirs")
    assert (values(context, "f"), values(context, "g")) == ("A=2 B=2 C=1 D=1", "A=4 B=4 C=1 D=1")


@pytest.mark.parametrize(
    "choice",
    [{}, {"accept": "ours", "body": b""}, {"accept": "mine"}, {"accept": ["mine"]}, {"accept": [1]}, {"accept": 5}],
)
def test_one_choice(client: sw.Client, four: sw.PlanExecutionContext, choice: dict[str, object]) -> None:
    """Neither two nor none, nor one that there is not."""
    accept = cast("Side | Sequence[Side] | None", choice.get("accept"))
    body = cast("bytes | None", choice.get("body"))
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="accept='ours', accept='theirs'"):
        four.resolve("f", accept=accept, body=body)


def test_wrong_arguments(client: sw.Client, four: sw.PlanExecutionContext) -> None:
    """A mode without a body, a body that is no bytes, a path without a conflict."""
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="a mode goes with a body"):
        four.resolve("f", accept="ours", mode=0o100644)
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="a body is bytes"):
        four.resolve("f", body=cast("bytes", "text"))
    with unchanged(client), pytest.raises(sw.NotFound, match="no open conflict at 'g'"):
        four.resolve("g", accept="ours")
    with unchanged(client), pytest.raises(sw.NotFound, match="no open conflict at 'g'"):
        four.conflict_sides("g")
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="give a path"):
        four.resolve(cast("str", None), accept="ours")


def test_modes_that_are_known_of_some(client: sw.Client) -> None:
    """What a resolution leaves is what the next child finds, whether or not a mode is known."""
    mode = 0o100644
    works: dict[str, Work] = {
        "c1": {"f": (BASE, edited(A=2))},
        "c2": {"f": ((BASE, mode), (edited(A=99), mode))},
        "c3": {"f": ((BASE, mode), (edited(C=4), mode))},
        "c4": {"f": (BASE, edited(A=5))},
    }
    for accept, expected in (("ours", "A=2 B=1 C=4 D=1"), ("theirs", "A=99 B=1 C=4 D=1")):
        context = parent_of(client, works)
        plan = context.resolve(context.merge_children().open_conflicts[0], accept=cast("Side", accept))
        assert values(context) == expected
        assert [each.alias for each in plan.open_conflicts] == ["c4"]
        assert plan.open_conflicts[0].version == context.conflict_sides("f").version
        assert context.resolve(plan.open_conflicts[0], accept="ours").open_conflicts == ()


def test_mode_of_an_edited_text(client: sw.Client) -> None:
    """The one that a child set, if no other child disagrees: the text does not show it."""
    works = children((edited(A=2), 0o100644), (edited(A=3), 0o100755), base=(BASE, 0o100644))
    context = parent_of(client, works)
    context.merge_children()
    context.resolve("f", body=edited(A=23))
    assert tree(context) == {"f": (edited(A=23), 0o100755)}


def test_mode_alone_of_an_unknown_one(client: sw.Client, four: sw.PlanExecutionContext) -> None:
    """It would be no change, and is refused rather than dropped."""
    found = tree(four)["f"]
    assert found is not None
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="a mode alone cannot be changed"):
        four.resolve("f", body=found[0], mode=0o100755)


def test_clean_deletion(client: sw.Client) -> None:
    """A child that deleted a file which the others leave as it was is no question."""
    context = parent_of(client, children(edited(A=2), edited(A=3), None))
    plan = context.merge_children()
    assert [each.alias for each in plan.open_conflicts] == ["c2"]
    plan = context.resolve("f", body=BASE)
    assert (plan.open_conflicts, tree(context)) == ((), {"f": None})


def test_markers_with_spaces_behind_them(client: sw.Client, four: sw.PlanExecutionContext) -> None:
    text = four.conflict_text("f").replace("<<<<<<< ours", "<<<<<<< ours  ")
    with unchanged(client), pytest.raises(sw.InvalidArgument, match="line 1 of the body is a conflict marker"):
        four.resolve("f", body=text.encode())
