"""A process killed before any of its steps: what is there afterwards is entirely before or entirely after."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.trees.transaction import TreeTransaction
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG
from tests.support.trees import (
    EMPTY_DIRECTORY,
    Tree,
    bodies,
    build,
    change,
    committed,
    deltas,
    file,
    finalize,
    finalize_all,
    kept,
    killed_at,
    link,
    random_pair,
    read,
    recorded_steps,
    recover,
    undo_committed,
)

BEFORE: Tree = {
    "same": file(b"same"),
    "changed": file(b"old"),
    "mode": file(b"x", 0o644),
    "gone/deep/file": file(b"gone", 0o400),
    "file to directory": file(b"f"),
    "directory to file/x": file(b"x"),
    "link": link(b"/etc/passwd"),
    "empty": EMPTY_DIRECTORY,
}
AFTER: Tree = {
    "same": file(b"same"),
    "changed": file(b"new"),
    "mode": file(b"x", 0o755),
    "file to directory/a/b": file(b"b"),
    "directory to file": file(b"y"),
    "link": file(b"no link"),
    "new/empty": EMPTY_DIRECTORY,
    "empty/no more": link(b"anywhere"),
}

TREES = 1_000 if IS_LONG else 4
STRIDE = 1 if IS_LONG else 3
"""Of what is tried: each step, or one in three of those that are much like the ones beside them."""


def is_whole(root: Path, before: Tree, after: Tree) -> bool:
    """Whether the tree is after; it is nothing between."""
    found = read(root)
    assert found in (before, after)
    return found == after


@pytest.mark.parametrize("can_link", [True, False])
def test_death_at_every_step(root: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool) -> None:  # noqa: FBT001
    """Before `keep` it is undone by the next who comes; after it, it waits to be settled; and both are seen."""
    if not can_link:
        monkeypatch.setattr(os, "link", unlinkable)
    total = len(recorded_steps(lambda: change(build(root, BEFORE), BEFORE, AFTER)))
    assert read(root) == AFTER
    outcomes: list[tuple[bool, bool]] = []
    for number in range(0, total, 1 if can_link else STRIDE):
        build(root, BEFORE)
        assert killed_at(number, lambda: change(root, BEFORE, AFTER))
        was_done = finalize_all(root)
        outcomes.append((was_done, is_whole(root, BEFORE, AFTER)))
    assert outcomes == sorted(outcomes, key=lambda each: each[1]), "once after, never before again"
    assert {(False, False), (True, True), (False, True)} == {*outcomes}


def unlinkable(*_: object, **__: object) -> None:
    """As a file system that gives no file a second name."""
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_death_among_read_only_directories(root: Path) -> None:
    """They are as they were, whoever was killed while they were not."""
    before: Tree = {"d/e/a": file(b"1"), "d/b": file(b"2"), "gone/x": file(b"x")}
    after: Tree = {"d/e/a": file(b"3"), "d/new": file(b"4")}
    modes = {"d/e": 0o500, "d": 0o555, "gone": 0o555}

    def fresh() -> Path:
        build(root, before)
        for path, mode in modes.items():
            (root / path).chmod(mode)
        return root

    steps = recorded_steps(lambda: change(fresh(), before, after))
    assert [what for step, what in steps if step == "chmod" and what in modes] == ["d", "d/e", "gone", "d/e", "d"]
    for number in range(len(steps)):
        fresh()
        assert killed_at(number, lambda: change(root, before, after))
        finalize_all(root)
        here = {path: mode for path, mode in modes.items() if (root / path).exists()}
        assert {path: stat.S_IMODE((root / path).stat().st_mode) for path in here} == here
        assert len(here) == (2 if is_whole(root, before, after) else 3)


def test_death_during_recovery(root: Path) -> None:
    """Recovering is interrupted at each of its steps, again and again on the same tree, and comes to its end."""
    steps = recorded_steps(lambda: change(build(root, BEFORE), BEFORE, AFTER))
    kept_at = next(number for number, (step, what) in enumerate(steps) if (step, what) == ("rename", "t-1.done"))
    for number in (kept_at, kept_at // 2):
        build(root, BEFORE)
        killed_at(number, lambda: change(root, BEFORE, AFTER))
        at = 0
        while killed_at(at, lambda: recover(root)):
            at += 1
        assert at
        assert read(root) == BEFORE
        assert kept(root) == set()


def test_death_at_each_step_of_recovery(root: Path) -> None:
    """Interrupted once at any step, the next recovery makes it whole."""
    steps = recorded_steps(lambda: change(build(root, BEFORE), BEFORE, AFTER))
    kept_at = steps.index(("rename", "t-1.done"))
    at = 0
    while True:
        build(root, BEFORE)
        killed_at(kept_at, lambda: change(root, BEFORE, AFTER))
        if not killed_at(at, lambda: recover(root)):
            break
        finalize_all(root)
        assert read(root) == BEFORE
        at += STRIDE
    assert at > 10


@pytest.mark.parametrize("end", [finalize, undo_committed])
def test_death_while_a_done_one_is_ended(root: Path, end: Callable[[Path, str], None]) -> None:
    """Settling or undoing a done transaction is begun again by whoever comes next, and never half of it stays."""
    steps = recorded_steps(lambda: change(build(root, BEFORE), BEFORE, AFTER))
    kept_at = steps.index(("rename", "t-1.done"))
    at = 0
    while True:
        build(root, BEFORE)
        killed_at(kept_at + 1, lambda: change(root, BEFORE, AFTER))
        assert committed(root) == ["t-1"]
        if not killed_at(at, lambda: end(root, "t-1")):
            break
        finalize_all(root)
        is_whole(root, BEFORE, AFTER)
        at += STRIDE
    assert read(root) == (BEFORE if end is undo_committed else AFTER)


def test_death_while_a_resumed_one_is_renamed(root: Path) -> None:
    """It has one of its two names at every moment, and either is accepted."""
    build(root, BEFORE)
    assert killed_at(("rename", "t-1.spent"), lambda: change(root, BEFORE, AFTER))

    def rename() -> None:
        with TreeTransaction(root, "t-1", deltas(BEFORE, AFTER), bodies(), resumes=True) as transaction:
            transaction.rename("t-2")

    names: list[list[str]] = []
    at = 0
    while killed_at(at, rename):
        names.append(committed(root))
        at += 1
        if names[-1] == ["t-2"]:
            break
    assert (names[0], names[-1]) == (["t-1"], ["t-2"])
    undo_committed(root, "t-2")
    assert (read(root), kept(root)) == (BEFORE, set())


@pytest.mark.parametrize("seed", range(TREES))
def test_death_in_random_trees(root: Path, seed: int) -> None:
    """The same for trees and changes of every kind: killed anywhere, and once more while recovering."""
    generator = seeded(seed)
    before, after = random_pair(generator)
    total = len(recorded_steps(lambda: change(build(root, before), before, after)))
    assert read(root) == after
    for number in sorted(generator.sample(range(total), min(total, 6))):
        build(root, before)
        killed_at(number, lambda: change(root, before, after))
        killed_at(generator.randrange(20), lambda: recover(root))
        finalize_all(root)
        is_whole(root, before, after)
