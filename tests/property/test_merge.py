"""Merging children: git's own merge, in declared order; a tree that can be, and nobody passed over."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepwell.client.workflows.merge_tree import TreeMerge
from stepwell.domain.changesets.model import Content, is_same
from stepwell.domain.changesets.net_changes import NetChange
from stepwell.domain.changesets.paths import DIRECTORY
from stepwell.domain.plans.model import MergeStrategy
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees.entry import ancestors_of

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
