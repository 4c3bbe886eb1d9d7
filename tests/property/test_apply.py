"""Trees of any kind: captured, applied to a copy, and rolled back."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stepwell as sw
from stepwell.testing import LocalRuntime
from tests.support.client.applicable_plans import change_into, executing
from tests.support.trees import BODIES, EMPTY_DIRECTORY, MODES, NAMES, Tree, build, file, kept, link, read
from tests.support.trees import without_nesting as flat

RECORDABLE = [name for name in NAMES if name != "\udcff"]
"""What a recorded path may be."""

PATHS = st.lists(st.sampled_from(RECORDABLE), min_size=1, max_size=3).map("/".join)
NODES = st.one_of(
    st.builds(file, st.sampled_from(BODIES), st.sampled_from(MODES)),
    st.sampled_from([b"a", b"../outside", b"\xff"]).map(link),
    st.just(EMPTY_DIRECTORY),
)
TREES = st.dictionaries(PATHS, NODES, max_size=7).map(lambda tree: {path: tree[path] for path in flat(tree)})
MOVES = st.lists(st.tuples(PATHS, PATHS), max_size=2)


@pytest.fixture(scope="module")
def client() -> Iterator[sw.Client]:
    with pytest.MonkeyPatch.context() as patch, LocalRuntime(workers=0) as runtime:
        patch.setattr(os, "fsync", lambda _descriptor: None)  # nobody cuts the power
        with runtime.client(projects=["p"]) as connected:
            yield connected


def moved(tree: Tree, moves: list[tuple[str, str]]) -> Tree:
    """A tree in which some have other names."""
    for source, target in moves:
        if source in tree and len(flat([*(tree.keys() - {source}), target])) == len(tree):
            tree = {**{path: node for path, node in tree.items() if path != source}, target: tree[source]}
    return tree


@given(TREES, TREES, TREES, MOVES)
@example({"a": file()}, {"a/a": file()}, {"a": link(b"a")}, [])  # where nothing is to be, behind a link that goes
def test_captured_applied_and_rolled_back(
    client: sw.Client, before: Tree, middle: Tree, other: Tree, moves: list[tuple[str, str]]
) -> None:
    """What two captures recorded makes an equal tree of a copy, and going back is the identity."""
    after = other or moved(before, moves)
    with tempfile.TemporaryDirectory() as directory:
        above = Path(directory)
        workshop, copy = build(above / "workshop", before), build(above / "copy", before)
        context = executing(client)
        for tree in (middle, after):
            with context.capture(workshop):
                change_into(workshop, tree)
        client.plans.complete_execute(context.plan_id)
        assert context.apply(copy).applied is not None
        assert (read(copy), kept(copy)) == (after, set())
        assert context.rollback(copy).rolled_back is not None
        assert (read(copy), kept(copy)) == (before, set())
