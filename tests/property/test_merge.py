"""Merging children: git's own merge, in declared order; a tree that can be, and nobody passed over."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell as sw
from stepwell.client.workflows.merge_tree import TreeMerge
from stepwell.domain.changesets.model import Content, is_same
from stepwell.domain.changesets.net_changes import NetChange
from stepwell.domain.changesets.paths import DIRECTORY
from stepwell.domain.plans.conflicts import Side
from stepwell.domain.plans.model import MergeStrategy
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.testing import LocalRuntime
from stepwell.trees.entry import ancestors_of
from tests.support.client.subplans import parent_of, tree

SIDES: tuple[Side, ...] = ("ours", "theirs")
Tree = dict[str, Content]

BODIES: dict[bytes, bytes] = {}
LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), min_size=4, max_size=14).map(b"".join)


@st.composite
def edited(draw: st.DrawFn, base: bytes) -> bytes:
    """A text with one or two edits in it; some end without a newline."""
    lines = base.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 2))):
        start = draw(st.integers(0, len(lines)))
        stop = min(len(lines), start + draw(st.integers(0, 2)))
        lines[start:stop] = draw(st.lists(st.sampled_from([b"x\n", b"y\n"]), max_size=2))
    text = b"".join(lines)
    return text.removesuffix(b"\n") if draw(st.booleans()) else text


@st.composite
def edits(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A text, and what several children made of it."""
    base = draw(LINES)
    return base, draw(st.lists(edited(base), min_size=1, max_size=3))


def held(body: bytes, mode: int | None = None) -> Content:
    BODIES[digest_of(body)] = body
    return Content(digest_of(body), len(body), held=True, mode=mode)


def git_merge(ours: bytes, base: bytes, theirs: bytes, *flags: str) -> tuple[bytes, bool]:
    with tempfile.TemporaryDirectory() as directory:
        for name, body in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(directory) / name).write_bytes(body)
        command = ["git", "merge-file", "-p", *flags, "ours", "base", "theirs"]
        done = subprocess.run(command, cwd=directory, capture_output=True, check=False)
    return done.stdout, done.returncode == 0


def tree_merged(strategy: MergeStrategy, children: Sequence[Mapping[str, NetChange]]) -> TreeMerge:
    tree_merge = TreeMerge(strategy, {}, BODIES.__getitem__)
    for number, changes in enumerate(children):
        tree_merge.add_child(f"child-{number}", changes, dict.fromkeys(changes, "tool"))
    return tree_merge


def outcome(tree_merge: TreeMerge) -> dict[str, bytes | None]:
    """What is left at each path that changed."""
    return {each.path: None if each.after is None else tree_merge.body(each.after) for each in tree_merge.changes()}


@given(edits())
def test_text(given_: tuple[bytes, list[bytes]]) -> None:
    """As if `git merge-file` were called for one child after another; from the first conflict on, nobody is merged."""
    base, texts = given_
    children = [{"f": NetChange("f", held(base), held(text))} for text in texts]
    ours = base
    disputed: list[tuple[str, str]] = []
    for number, text in enumerate(texts):
        if text == base:
            continue
        merged, is_clean = git_merge(ours, base, text)
        if disputed or not is_clean:
            disputed.append(("f", f"child-{number}"))
        else:
            ours = merged
    tree_merge = tree_merged(MergeStrategy.GIT_THREE_WAY, children)
    assert tree_merge.conflicts == disputed
    assert outcome(tree_merge) == ({} if ours == base else {"f": ours})


@given(edits())
def test_text_of_which_the_last_wins(given_: tuple[bytes, list[bytes]]) -> None:
    """As `git merge-file --theirs`."""
    base, texts = given_
    children = [{"f": NetChange("f", held(base), held(text))} for text in texts]
    ours = base
    for text in texts:
        ours = ours if text == base else text if ours == base else git_merge(ours, base, text, "--theirs")[0]
    tree_merge = tree_merged(MergeStrategy.LAST_WINS, children)
    assert tree_merge.conflicts == []
    assert outcome(tree_merge) == ({} if ours == base else {"f": ours})


NAMES = ("a", "b", "a/a", "a/b", "b/a", "a/a/a")
LEAVES = st.sampled_from([held(b"\0" + each) for each in (b"1", b"2", b"3", b"4")] + [held(b"", DIRECTORY)])


def is_possible(tree: Mapping[str, object]) -> bool:
    return all(above not in tree for path in tree for above in ancestors_of(path))


TREES = st.dictionaries(st.sampled_from(NAMES), LEAVES, max_size=4).filter(is_possible)


def differences(before: Tree, after: Tree) -> dict[str, NetChange]:
    paths = sorted({*before, *after})
    return {
        path: NetChange(path, before.get(path), after.get(path))
        for path in paths
        if not is_same(before.get(path), after.get(path))
    }


@given(TREES, st.lists(TREES, min_size=1, max_size=4), st.sampled_from([*MergeStrategy]))
def test_trees(base: Tree, trees: list[Tree], strategy: MergeStrategy) -> None:
    """There is such a tree, whatever came together; and whatever of a child is not in it was chosen by somebody."""
    children = [differences(base, tree) for tree in trees]
    tree_merge = tree_merged(strategy, children)
    after = {**base}
    for each in tree_merge.changes():
        assert is_same(after.pop(each.path, None), each.before)
        if each.after is not None:
            after[each.path] = each.after
    assert is_possible(after), sorted(after)
    disputed = {*tree_merge.conflicts}
    assert len(disputed) == len(tree_merge.conflicts)
    assert strategy is not MergeStrategy.LAST_WINS or not disputed
    for number, changes in enumerate(children):
        later = {path for behind in children[number + 1 :] for path in behind}
        for path, change in changes.items():
            is_in = is_same(after.get(path), change.after)
            gave_way = change.after is not None and change.after.mode == DIRECTORY and path not in after
            is_overruled = strategy is MergeStrategy.LAST_WINS and later
            assert is_in or gave_way or is_overruled or (path, f"child-{number}") in disputed, (path, number)
    again = tree_merged(strategy, [dict(reversed(changes.items())) for changes in children])
    assert [*again.changes()] == [*tree_merge.changes()]
    assert again.conflicts == tree_merge.conflicts


class Edit(NamedTuple):
    """Lines `start` to `stop` of the base, replaced by new ones that are nowhere else."""

    start: int
    stop: int
    lines: list[bytes]

    def overlaps(self, other: Edit) -> bool:
        """As in git: the ranges intersect or touch."""
        return self.start <= other.stop and other.start <= self.stop


BASE_LINES = [b"base %d\n" % number for number in range(24)]


@st.composite
def child_edits(draw: st.DrawFn, name: str) -> list[Edit]:
    """Some edits of one child, which do not touch each other: replacements, insertions and deletions."""
    edits_: list[Edit] = []
    start = 0
    while start <= len(BASE_LINES) and len(edits_) < 4:
        start += draw(st.integers(0, 8))
        stop = min(start + draw(st.integers(0, 3)), len(BASE_LINES))
        if start > stop:
            break
        new = f"{name}, edit {len(edits_)}, line ".encode()
        lines = [new + b"%d\n" % number for number in range(draw(st.integers(0, 2)))]
        if lines or stop > start:
            edits_.append(Edit(start, stop, lines))
        start = stop + 1
    return edits_


def text_of(edits_: list[Edit]) -> bytes:
    lines = [*BASE_LINES]
    for edit in reversed(edits_):
        lines[edit.start : edit.stop] = edit.lines
    return b"".join(lines)


@pytest.fixture(scope="module")
def client() -> Iterator[sw.Client]:
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        yield client


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_edit_that_overlaps_no_other_is_in_the_result(client: sw.Client, data: st.DataObject) -> None:
    """For any children and choices: of the children in conflict, of those before and of those behind them."""
    aliases = [f"child-{number}" for number in range(data.draw(st.integers(2, 5)))]
    made = {alias: data.draw(child_edits(alias)) for alias in aliases}
    base = b"".join(BASE_LINES)
    context = parent_of(client, {alias: {"f": (base, text_of(each))} if each else {} for alias, each in made.items()})
    plan = context.merge_children()
    while plan.open_conflicts:
        (conflict,) = plan.open_conflicts
        sides = context.conflict_sides("f")
        each = st.sampled_from(SIDES)
        choice = data.draw(each | st.lists(each, min_size=len(sides.hunks), max_size=len(sides.hunks)))
        plan = context.resolve(conflict, accept=choice)
    result = (tree(context).get("f") or (base, None))[0].splitlines(keepends=True)
    for alias, edits_ in made.items():
        others = [other for name, each_ in made.items() if name != alias for other in each_]
        for edit in edits_:
            if not any(edit.overlaps(other) for other in others):
                assert [line for line in result if line in edit.lines] == edit.lines, (alias, edit)
                assert not {*BASE_LINES[edit.start : edit.stop]} & {*result}, (alias, edit)
    untouched = [
        line
        for number, line in enumerate(BASE_LINES)
        if not any(edit.start <= number < edit.stop for edits_ in made.values() for edit in edits_)
    ]
    assert [line for line in result if line in {*untouched}] == untouched
