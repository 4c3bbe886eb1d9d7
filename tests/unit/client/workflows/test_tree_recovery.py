"""What recovery says of directories in `.stepwell` that are not of this user's processes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.testing import LocalRuntime
from tests.support.client.applicable_plans import AFTER, BEFORE, executed_plan
from tests.support.planted import ATTACKS, plant, plant_all, snapshot
from tests.support.trees import build, change, discard, file, killed_at, read


@pytest.fixture
def client(runtime: LocalRuntime) -> Iterator[sw.Client]:
    with runtime.client(projects=["p"]) as connected:
        yield connected


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    yield build(tmp_path / "root", BEFORE)
    discard(tmp_path / "root")


def test_logged_by_default(client: sw.Client, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A program that gives no function for it finds a warning for each in its log, with the reason and what to do."""
    plant_all(root)
    context = executed_plan(client, root.parent)
    for call, tree in ((context.apply, AFTER), (context.rollback, BEFORE)):
        call(root)
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == len(ATTACKS)
        for name, line in zip(ATTACKS, lines, strict=True):
            for text in (
                "transaction.not_recovered",
                f".stepwell/{name}",
                "no seal of this user",
                "remove the directory",
            ):
                assert text in line
        assert read(root) == tree | {"inside": file(b"inside\n")}


def test_the_first_ones_by_name(client: sw.Client, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A tree with thousands of them does not fill a log: the others are counted."""
    for number in range(limits.TREE_NAMED_MAX + 3):
        plant(root, f"evil-{number:02}.open", {})
    context = executed_plan(client, root.parent)
    context.apply(root)
    logged = capfd.readouterr().err.splitlines()
    warnings: list[str] = []
    context.rollback(root, on_warning=warnings.append)
    assert len(logged) == len(warnings) == limits.TREE_NAMED_MAX + 1
    assert "others=3" in logged[-1]
    assert warnings[-1] == "3 more were left alone for the same reasons"


def test_names_that_would_control_a_terminal(client: sw.Client, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They are escaped, in the log and in the sentence."""
    plant(root, "evil\x1b[2J\n\u202e.open", {})
    context = executed_plan(client, root.parent)
    context.apply(root)
    warnings: list[str] = []
    context.rollback(root, on_warning=warnings.append)
    for text in (capfd.readouterr().err.rstrip("\n"), *warnings):
        assert "evil" in text
        assert not {"\x1b", "\u202e", "\n"} & {*text}


def test_told_before_a_conflict_is_raised(client: sw.Client, root: Path) -> None:
    """A recovery that fails has warned, too, and has left the planted directories as they are."""
    assert killed_at(("rename", "t-1.done"), lambda: change(root, {}, {"own": file(b"own")}))
    (root / "own").write_bytes(b"theirs")
    plant_all(root)
    before = snapshot(root / ".stepwell/evil-1.open")
    warnings: list[str] = []
    with pytest.raises(sw.TreeConflict, match="until the next transaction"):
        executed_plan(client, root.parent).apply(root, on_warning=warnings.append)
    assert len(warnings) == len(ATTACKS)
    assert snapshot(root / ".stepwell/evil-1.open") == before
