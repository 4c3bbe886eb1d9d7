"""Children merged into their parent: whole, in declared order, and with nobody's work passed over."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.session.calls import Call
from stepwell.client.session.session import Session
from stepwell.testing import LocalRuntime
from tests.support.client.sessions import executing, in_threads, unchanged
from tests.support.client.subplans import Work, declared, parent_of, record, tree

BASE = b"".join(b"%d\n" % number for number in range(1, 21))
FILE = 0o100644
RUN = 0o100755
LINK = 0o120000
DIRECTORY = 0o040000

ONE = BASE.replace(b"2\n", b"two\n", 1)
TWO = BASE.replace(b"10\n", b"ten\n")
SIX = BASE.replace(b"2\n", b"TWO\n", 1)


def edits(path: str, *after: bytes | None) -> dict[str, Work]:
    """Children that found the same at one path."""
    return {f"c{number}": {path: (BASE, each)} for number, each in enumerate(after, 1)}


def git_merge(tmp_path: Path, ours: bytes, base: bytes, theirs: bytes, *flags: str) -> bytes:
    for name, body in (("ours", ours), ("base", base), ("theirs", theirs)):
        (tmp_path / name).write_bytes(body)
    command = ["git", "merge-file", "-p", *flags, "ours", "base", "theirs"]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).stdout


def test_edits_come_together(client: sw.Client, tmp_path: Path) -> None:
    """As git merges them: one changeset of the parent, closed, and then it can go on."""
    context = parent_of(client, edits("a", ONE, TWO), own={"a": (BASE, BASE + b"21\n")})
    plan = context.merge_children()
    assert plan.merged is not None
    assert plan.conflicts == ()
    assert plan.subplans is not None
    assert plan.merged.children == tuple(child.plan_id for child in plan.subplans.children)
    expected = git_merge(tmp_path, git_merge(tmp_path, BASE + b"21\n", BASE, ONE), BASE, TWO)
    assert tree(context) == {"a": (expected, None)}
    assert plan.merged.changeset_id is not None
    merged = context.get(plan.merged.changeset_id)
    assert (merged.state, merged.entry_count) == (sw.ChangesetState.CLOSED, 1)
    with unchanged(client):
        assert context.merge_children() == plan
    assert str(client.plans.complete_execute(plan.plan_id).position) == "execute/complete"


@pytest.mark.parametrize(
    "works, expected, conflicts",
    [
        pytest.param([{"a": (b"x", None)}, {"a": (b"x", None)}], {"a": None}, [], id="both delete it"),
        pytest.param([{"a": (b"x", None)}, {"a": (b"x", b"y")}], {"a": None}, ["a"], id="deleted, then changed"),
        pytest.param([{"a": (b"x", b"y")}, {"a": (b"x", None)}], {"a": (b"y", None)}, ["a"], id="changed, deleted"),
        pytest.param([{"a": (None, b"x")}, {"a": (None, b"x")}], {"a": (b"x", None)}, [], id="both add the same"),
        pytest.param([{"a": (None, b"x\n")}, {"a": (None, b"y\n")}], {"a": (b"x\n", None)}, ["a"], id="add otherwise"),
        pytest.param(
            [{"a": (b"\0", b"\0x")}, {"a": (b"\0", b"\0y")}], {"a": (b"\0x", None)}, ["a"], id="binary that both change"
        ),
        pytest.param(
            [{"a": (b"\0", b"\0x")}, {"a": (b"\0", b"\0x")}], {"a": (b"\0x", None)}, [], id="binary changed alike"
        ),
        pytest.param(
            [{"a": ((ONE, FILE), (ONE, RUN))}, {"a": ((ONE, FILE), (BASE, FILE))}],
            {"a": (BASE, RUN)},
            [],
            id="mode of one, lines of the other",
        ),
        pytest.param(
            [{"a": ((b"x", FILE), (b"x", RUN))}, {"a": ((b"x", FILE), (b"x", 0o100600))}],
            {"a": (b"x", RUN)},
            ["a"],
            id="two modes",
        ),
        pytest.param([{"a": (b"x", b"y")}, {"a": (b"x", (b"y", RUN))}], {"a": (b"y", RUN)}, [], id="mode from one"),
        pytest.param(
            [{"a": ((b"to", LINK), (b"here", LINK))}, {"a": ((b"to", LINK), (b"there", LINK))}],
            {"a": (b"here", LINK)},
            ["a"],
            id="links",
        ),
        pytest.param(
            [{"a": (b"x", None), "b": (None, b"x")}, {"a": (b"x", b"y")}],
            {"a": None, "b": (b"x", None)},
            ["a"],
            id="moved, then changed: the new place is there, and the old one is asked about",
        ),
        pytest.param(
            [{"d": (None, (b"", DIRECTORY))}, {"d/f": (None, b"x")}],
            {"d/f": (b"x", None)},
            [],
            id="a directory that gives way",
        ),
        pytest.param(
            [{"d/f": (None, b"x")}, {"d": (None, (b"", DIRECTORY))}], {"d/f": (b"x", None)}, [], id="and comes late"
        ),
        pytest.param(
            [{"d/f": (b"x", None), "d": (None, (b"", DIRECTORY))}, {"d/f": (b"x", None)}],
            {"d": (b"", DIRECTORY), "d/f": None},
            [],
            id="emptied directory",
        ),
        pytest.param([{"a": (None, b"x")}, {"a/b": (None, b"y")}], {"a": (b"x", None)}, ["a/b"], id="file, directory"),
        pytest.param([{"a/b": (None, b"y")}, {"a": (None, b"x")}], {"a/b": (b"y", None)}, ["a"], id="directory, file"),
        pytest.param(
            [{"a": (b"x", None), "a/b": (None, b"y")}, {}], {"a": None, "a/b": (b"y", None)}, [], id="one replaces it"
        ),
        pytest.param(
            [{"a": (b"x", b"y")}, {"a": (b"x", None), "a/b": (None, b"z")}],
            {"a": (b"y", None)},
            ["a", "a/b"],
            id="changed, then replaced by a directory",
        ),
        pytest.param([{"a": (b"x", b"y")}, {"a": (b"y", b"x")}], {}, [], id="and back: one after the other"),
        pytest.param(
            [{"a": (b"x", b"y")}, {"a": (b"y", b"x")}, {"a": (b"y", b"z")}], {}, ["a"], id="back, and one too late"
        ),
        pytest.param([{"a": (b"x", b"y"), "b": (b"1", b"2")}, {}], {"a": (b"y", None), "b": (b"2", None)}, [], id=""),
    ],
)
def test_rules(
    client: sw.Client, works: list[Work], expected: dict[str, tuple[bytes, int | None] | None], conflicts: list[str]
) -> None:
    """What comes of it by default: in conflict, what was there first stays until somebody chooses."""
    context = parent_of(client, {f"c{number}": work for number, work in enumerate(works)})
    plan = context.merge_children()
    assert tree(context) == expected
    assert [each.path for each in plan.conflicts] == conflicts
    for conflict in plan.conflicts:
        shown = expected.get(conflict.path)
        if conflict.path in expected:
            assert (conflict.ours and bytes(context.body(conflict.ours.digest))) == (shown and shown[0])


def test_back_where_it_was_is_what_is_shown(client: sw.Client) -> None:
    """Of a conflict with somebody who found neither, `ours` is what is there."""
    works: dict[str, Work] = {"a": {"f": (b"x", b"y")}, "b": {"f": (b"y", b"x")}, "c": {"f": (b"y", b"z")}}
    context = parent_of(client, works)
    (conflict,) = context.merge_children().conflicts
    assert conflict.ours is not None
    assert bytes(context.body(conflict.ours.digest)) == b"x"
    context.resolve("f", accept="theirs")
    assert tree(context) == {"f": (b"z", None)}


def test_moves_and_tools(client: sw.Client) -> None:
    """A move that nobody else touched is one in the parent's diff; what was taken whole is still its tool's."""
    plan = declared(client, ["mover", "other"])
    for change in (
        sw.Change(path="new", source_path="old", before=BASE, after=BASE, tool="git-mv"),
        sw.Change(path="f", after=b"x", tool="editor"),
    ):
        child = client.plans.start_ready(plan.plan_id, straight=True).plan
        assert child is not None
        context = client.execution(child.plan_id)
        changeset_id = context.start_changeset()
        context.record_change(change)
        context.close_changeset(changeset_id)
        client.plans.complete_execute(child.plan_id)
    parent = client.execution(plan.plan_id)
    parent.merge_children()
    assert {entry.path: entry.tool for entry in parent.recorded()} == {"f": "editor", "new": "git-mv", "old": "git-mv"}
    assert "rename from old\nrename to new\n" in parent.plan_diff()
    assert parent.plan_summary().by_tool == {"editor": 1, "git-mv": 2}


class TestStrategies:
    """What is done where children disagree is declared with them."""

    def test_sequential_apply(self, client: sw.Client) -> None:
        """Nothing is merged line by line; whoever found what the one before left goes through."""
        works: dict[str, Work] = {
            "a": {"f": (BASE, ONE), "g": (b"1", b"2")},
            "b": {"f": (BASE, TWO), "g": (b"2", b"3")},
        }
        context = parent_of(client, works, merge=sw.MergeStrategy.SEQUENTIAL_APPLY)
        plan = context.merge_children()
        assert [(each.path, each.alias) for each in plan.conflicts] == [("f", "b")]
        assert tree(context) == {"f": (ONE, None), "g": (b"3", None)}
        assert context.conflict_sides("f").is_clean

    def test_fail_on_conflict(self, client: sw.Client) -> None:
        """The whole merge is refused, with every path, and nothing of it is recorded."""
        works: dict[str, Work] = {
            "a": {"f": (BASE, ONE), "g": (b"1", b"2")},
            "b": {"f": (BASE, SIX), "g": (b"1", None)},
        }
        context = parent_of(client, works, merge=sw.MergeStrategy.FAIL_ON_CONFLICT)
        with unchanged(client), pytest.raises(sw.MergeConflicts) as caught:
            context.merge_children()
        assert caught.value.details["paths"] == ["g", "f"]
        assert tree(context) == {}

    def test_fail_on_conflict_without_one(self, client: sw.Client, tmp_path: Path) -> None:
        """Edits that do not overlap are merged."""
        context = parent_of(client, edits("f", ONE, TWO), merge=sw.MergeStrategy.FAIL_ON_CONFLICT)
        context.merge_children()
        assert tree(context) == {"f": (git_merge(tmp_path, ONE, BASE, TWO), None)}

    def test_last_wins(self, client: sw.Client, tmp_path: Path) -> None:
        """Of lines that overlap the later ones; of everything else the later child's whole, also what it deleted."""
        other = SIX.replace(b"10\n", b"ten\n")
        works: dict[str, Work] = {
            "a": {
                "f": (BASE, ONE),
                "gone": (b"1", b"2"),
                "kept": (b"1", None),
                "binary": (b"\0", b"\0a"),
                "mode": ((b"x", FILE), (b"x", RUN)),
                "to/file": (None, b"x"),
                "to/other": (None, b"x"),
                "dir": (None, b"x"),
            },
            "b": {
                "f": (BASE, other),
                "gone": (b"1", None),
                "kept": (b"1", b"3"),
                "binary": (b"\0", b"\0b"),
                "mode": ((b"x", FILE), (b"x", 0o100600)),
                "to": (None, b"y"),
                "dir/f": (None, b"y"),
            },
        }
        context = parent_of(client, works, merge=sw.MergeStrategy.LAST_WINS)
        assert context.merge_children().conflicts == ()
        assert tree(context) == {
            "f": (git_merge(tmp_path, ONE, BASE, other, "--theirs"), None),
            "gone": None,
            "kept": (b"3", None),
            "binary": (b"\0b", None),
            "mode": (b"x", 0o100600),
            "to": (b"y", None),
            "dir/f": (b"y", None),
        }


class TestUnheld:
    """A content of which only the digest is known."""

    def parent(self, client: sw.Client, strategy: sw.MergeStrategy) -> sw.PlanExecutionContext:
        plan = declared(client, ["a", "b"], merge=strategy)
        for after in (ONE, TWO):
            found = client.plans.start_ready(plan.plan_id, straight=True).plan
            assert found is not None
            child = client.execution(found.plan_id)
            changeset_id = child.start_changeset()
            child.record_change(sw.Change(path="f", before=sw.Digest.of(BASE), after=sw.Digest.of(after)))
            if after == ONE:
                child.record_change(sw.Change(path="g", after=sw.Digest.of(after)))
            child.close_changeset(changeset_id)
            client.plans.complete_execute(found.plan_id)
        return client.execution(plan.plan_id)

    def test_cannot_be_merged(self, client: sw.Client) -> None:
        """It says what would have helped, and nothing is recorded."""
        context = self.parent(client, sw.MergeStrategy.GIT_THREE_WAY)
        with unchanged(client), pytest.raises(sw.InvalidArgument, match="record changes with their bytes"):
            context.merge_children()

    def test_can_be_taken(self, client: sw.Client) -> None:
        """Where it is taken whole, nobody needs the bytes."""
        context = self.parent(client, sw.MergeStrategy.LAST_WINS)
        context.merge_children()
        after = {path: each.after and each.after.digest for path, each in context.net_changes().items()}
        assert after == {"f": sw.Digest.of(TWO).value, "g": sw.Digest.of(ONE).value}


class TestImpossibleTrees:
    """No choice leads to a file below a file."""

    def test_refused_until_there_is_room(self, client: sw.Client) -> None:
        """The one that is in the way is named, and can be recorded away."""
        context = parent_of(client, {"a": {"x": (None, b"1")}, "b": {"x/y": (None, b"2")}})
        context.merge_children()
        for choice in ({"accept": "theirs"}, {"body": b"3"}):
            with unchanged(client), pytest.raises(sw.PlanError, match="as long as there is one at 'x'"):
                context.resolve("x/y", **choice)
        record(context, {"x": (b"1", None)})
        context.resolve("x/y", accept="theirs")
        assert tree(context) == {"x/y": (b"2", None)}

    def test_from_above(self, client: sw.Client) -> None:
        """A file in the place of a directory that has something in it."""
        context = parent_of(client, {"a": {"x/y": (None, b"1")}, "b": {"x": (None, b"2")}})
        context.merge_children()
        with pytest.raises(sw.PlanError, match="one at 'x/y'"):
            context.resolve("x", accept="theirs")
        context.resolve("x", accept="ours")
        assert tree(context) == {"x/y": (b"1", None)}


class TestRefusals:
    """A merge comes when everybody is done, and by whoever executes the parent."""

    def test_child_that_is_not_finished(self, client: sw.Client) -> None:
        plan = declared(client, ["a"])
        with unchanged(client), pytest.raises(sw.PlanNotReady, match="let it finish, or cancel it"):
            client.execution(plan.plan_id).merge_children()

    def test_no_children(self, client: sw.Client) -> None:
        plan = executing(client, "childless", (client.projects or ("",))[0])
        with unchanged(client), pytest.raises(sw.PlanNotReady, match="no children to merge"):
            client.execution(plan.plan_id).merge_children()

    def test_cancelled_child_gives_nothing(self, client: sw.Client) -> None:
        """What it recorded stays readable, and is not merged."""
        plan = declared(client, ["a", "b"])
        for _ in range(2):
            child = client.plans.start_ready(plan.plan_id, straight=True).plan
            assert child is not None
            record(client.execution(child.plan_id), {"f": (None, b"x")})
            client.plans.cancel_plan(child.plan_id)
        context = client.execution(plan.plan_id)
        merged = context.merge_children().merged
        assert merged is not None
        assert (merged.children, merged.changeset_id, tree(context)) == ((), None, {})

    @pytest.mark.parametrize("is_merged", [False, True])
    def test_somebody_else(self, runtime: LocalRuntime, client: sw.Client, is_merged: bool) -> None:  # noqa: FBT001
        """Without the lease nothing is merged or resolved, whether it is done already or not."""
        context = parent_of(client, edits("f", ONE, SIX))
        if is_merged:
            context.merge_children()
        with runtime.client(projects=client.projects) as other:
            for lease in (None, 1):
                stranger = other.execution(context.plan_id, lease=lease)
                with unchanged(client), pytest.raises(sw.LeaseLost):
                    stranger.merge_children()
                if is_merged:
                    with unchanged(client), pytest.raises(sw.LeaseLost):
                        stranger.resolve("f", accept="ours")

    def test_too_many_conflicts(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        context = parent_of(client, edits("f", ONE, SIX, SIX))
        monkeypatch.setattr(limits, "CONFLICTS_MAX", 1)
        with unchanged(client), pytest.raises(sw.StepTooLarge, match="at most 1 are kept"):
            context.merge_children()


class TestParts:
    """More than one transaction takes is recorded in parts, and still all or nothing."""

    WORKS: ClassVar[dict[str, Work]] = {
        "a": {f"f{number}": (None, b"a%d" % number) for number in range(10)},
        "b": {f"f{number}": (None, b"b%d" % number) for number in range(8, 12)},
    }

    @pytest.fixture(autouse=True)
    def small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(limits, "MERGED_ENTRIES", 3)

    def test_all_of_it(self, client: sw.Client) -> None:
        context = parent_of(client, self.WORKS)
        plan = context.merge_children()
        assert [each.path for each in plan.conflicts] == ["f8", "f9"]
        assert len(tree(context)) == 12
        assert len(plan.changeset_ids) == 1

    def test_by_size(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """Large bodies are uploaded, a few at a time."""
        monkeypatch.setattr(limits, "MERGED_ENTRIES", 400)
        monkeypatch.setattr(limits, "MERGED_BYTES", 100_000)
        large = {f"f{number}": (None, bytes([number]) * 70_000) for number in range(5)}
        context = parent_of(client, {"a": large})
        context.merge_children()
        assert tree(context) == {path: (after, None) for path, (_, after) in large.items()}

    @pytest.mark.parametrize("kept_open", [False, True], ids=["aborted at once", "left to the next"])
    def test_interrupted(self, client: sw.Client, monkeypatch: pytest.MonkeyPatch, *, kept_open: bool) -> None:
        """What was sent counts for nothing, and the next call begins anew."""
        context = parent_of(client, self.WORKS)
        together, perform = Session.perform_together, Session.perform
        parts: list[int] = []

        def breaking(session: Session, calls: Sequence[Call[object]]) -> list[tuple[object, int]]:
            if len(parts) == 2:
                if kept_open:
                    monkeypatch.setattr(Session, "perform", lambda *_: 1 / 0)
                raise KeyboardInterrupt
            parts.append(len(calls))
            return [*together(session, calls)]

        monkeypatch.setattr(Session, "perform_together", breaking)
        with pytest.raises((KeyboardInterrupt, ZeroDivisionError)):
            context.merge_children()
        monkeypatch.setattr(Session, "perform_together", together)
        monkeypatch.setattr(Session, "perform", perform)
        assert tree(context) == {}
        (left,) = context.changesets()
        assert left.state is (sw.ChangesetState.OPEN if kept_open else sw.ChangesetState.ABORTED)
        other = client.execution(context.plan_id)  # another context has the same right to it
        other.merge_children()
        assert len(tree(other)) == 12
        assert [each.state for each in other.changesets()] == [sw.ChangesetState.ABORTED, sw.ChangesetState.CLOSED]


def test_threads_that_merge_at_once(client: sw.Client) -> None:
    """One merge is made, and everybody is given it."""
    context = parent_of(client, edits("f", ONE, TWO))
    plans: list[sw.Plan] = []
    in_threads(4, lambda _: plans.append(context.merge_children()))
    assert len({plan.merged and plan.merged.changeset_id for plan in plans}) == 1
    assert len([each for each in context.changesets() if each.entry_count]) == 1


@pytest.mark.parametrize("before_reading", [False, True])
def test_somebody_was_quicker(client: sw.Client, monkeypatch: pytest.MonkeyPatch, *, before_reading: bool) -> None:
    """A merge that another thread made meanwhile is the one that is given, whether or not it is in what was read."""
    context = parent_of(client, edits("f", ONE, TWO))
    other = client.execution(context.plan_id)
    name = "net_changes" if before_reading else "of"
    reading = getattr(context, name)

    def read_late(*arguments: str) -> object:
        other.merge_children()
        return reading(*arguments)

    monkeypatch.setattr(context, name, read_late)
    assert context.merge_children() == other.merge_children()
    assert [each.state for each in other.changesets()] == [sw.ChangesetState.CLOSED]


def test_text_that_is_not_utf8(client: sw.Client) -> None:
    """Has its bytes, marked, and no text."""
    context = parent_of(client, {"a": {"f": (None, b"\xff\n")}, "b": {"f": (None, b"\xfe\n")}})
    context.merge_children()
    assert context.conflict_sides("f").marked == b"<<<<<<< ours\n\xff\n=======\n\xfe\n>>>>>>> theirs (b)\n"
    assert "theirs: 2 bytes, sha256" in context.conflict_text("f")


def test_conflict_of_modes_alone(client: sw.Client) -> None:
    """Has no lines to mark: what each side has is said."""
    base = (b"x\n", 0o100644)
    works = {"a": {"f": (base, (b"x\n", 0o100600))}, "b": {"f": (base, (b"x\n", 0o100755))}}
    context = parent_of(client, works)
    context.merge_children()
    described = context.conflict_text("f")
    assert "ours: mode 100600" in described
    assert "theirs: mode 100755" in described
