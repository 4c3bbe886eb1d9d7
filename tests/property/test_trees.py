"""Trees of any kind: changed and changed back, recorded and applied elsewhere; and texts merged as git merges them."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.domain.plans.conflicts import Side
from stepwell.trees.capture import TreeCapture
from stepwell.trees.entry import Delta
from stepwell.trees.merge.text_merge import merge_text
from tests.support.trees import (
    BODIES,
    EMPTY_DIRECTORY,
    MODES,
    NAMES,
    TARGETS,
    Node,
    Tree,
    apply,
    bodies,
    build,
    deltas,
    discard,
    file,
    kept,
    link,
    read,
    without_nesting,
)

NODES: st.SearchStrategy[Node] = st.one_of(
    st.builds(file, st.sampled_from(BODIES) | st.binary(max_size=40), st.sampled_from(MODES)),
    st.builds(link, st.sampled_from(TARGETS)),
    st.just(EMPTY_DIRECTORY),
)
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


def tree_of(nodes: dict[str, Node]) -> Tree:
    return {path: nodes[path] for path in without_nesting(nodes)}


TREES = st.dictionaries(PATHS, NODES, max_size=8).map(tree_of)


@contextmanager
def directory() -> Iterator[Path]:
    """Where nobody waits for a disk."""
    with tempfile.TemporaryDirectory() as above, pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _descriptor: None)
        yield Path(above)


@given(TREES, TREES)
def test_there_and_back(before: Tree, after: Tree) -> None:
    """A change gives the other tree, and its reverse the first: paths, contents, modes, links, empty directories."""
    with directory() as above:
        root = build(above / "root", before)
        there = deltas(before, after)
        apply(root, there, bodies(before, after))
        assert read(root) == after
        apply(root, [each.reverse for each in there], bodies(before, after))
        assert (read(root), kept(root)) == (before, set())


@given(TREES, TREES)
def test_recorded_and_applied_to_a_copy(before: Tree, after: Tree) -> None:
    """What was recorded while one tree became another makes the same of a copy of the first."""
    with directory() as above:
        root, copy = build(above / "root", before), build(above / "copy", before)
        with TreeCapture(root) as recording:
            for path in root.iterdir():
                if path.is_dir() and not path.is_symlink():
                    discard(path)
                else:
                    path.unlink()
            (above / "after").mkdir()
            for path in build(above / "after", after).iterdir():
                path.rename(root / path.name)
            found = recording.differences()
            changes = [Delta(each.path, None if each.source_path else each.before, each.after) for each in found]
            changes += [Delta(each.source_path, each.before, None) for each in found if each.source_path]
            apply(copy, changes, recording.body)
        assert read(copy) == read(root) == after


LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"\n", b"e\r\n", b"tail"]), max_size=8)
TEXTS = LINES.map(b"".join)
SIDES: tuple[Side, ...] = ("ours", "theirs")


def git_merge(above: str, *flags: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "merge-file", "-p", *flags, "ours", "base", "theirs"]
    return subprocess.run(command, cwd=above, capture_output=True, check=False)


@given(TEXTS, TEXTS, TEXTS)
def test_merging_is_what_git_does(ours: bytes, base: bytes, theirs: bytes) -> None:
    """Byte for byte, and clean when git says so; one side for all hunks is git's `--ours` or `--theirs`."""
    merged = merge_text(ours, base, theirs)
    with tempfile.TemporaryDirectory() as above:
        for name, body in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(above) / name).write_bytes(body)
        marked = git_merge(above)
        assert (merged.marked(), not merged.hunks) == (marked.stdout, marked.returncode == 0)
        for side in SIDES:
            assert merged.resolved([side for _ in merged.hunks]) == git_merge(above, f"--{side}").stdout
