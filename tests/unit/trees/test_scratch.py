"""Scratch copies: what a capture would see of a tree, in a private place, and never left behind."""

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.trees import scratch
from stepwell.trees.capture import TreeCapture
from stepwell.trees.key import state_directory
from stepwell.trees.lock import RootLock
from stepwell.trees.scratch import scratch_copy
from tests.support.trees import EMPTY_DIRECTORY, Tree, build, discard, file, forked, link, outcome, read

TREE: Tree = {
    "file": file(b"text"),
    "script": file(b"#!/bin/sh", 0o755),
    "secret": file(b"mine", 0o400),
    "empty": EMPTY_DIRECTORY,
    "deep/er/file": file(b"x" * 100_000),
    "link": link(b"/etc/passwd"),
    "dangling": link(b"nowhere"),
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "shop", TREE)
    discard(tmp_path / "shop")


@pytest.fixture(autouse=True)
def place() -> Iterator[Path]:
    """The directory of all copies. No test leaves one there."""
    place = Path(state_directory(), "scratch")
    yield place
    assert [*place.glob("[0-9a-f]*")] == []


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "init.defaultBranch=m", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def changed(root: Path, files: dict[str, bytes]) -> list[str]:
    """What a capture in a copy of a tree finds after these files were written in it."""
    with scratch_copy(root) as copy, TreeCapture(copy.path, repositories=copy.repositories) as capture:
        for path, body in files.items():
            (target := Path(copy.path, path)).parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
        return [each.path for each in capture.differences()]


def changed_in_place(root: Path, files: dict[str, bytes]) -> list[str]:
    """The same in the tree itself."""
    with TreeCapture(root) as capture:
        for path, body in files.items():
            (target := root / path).parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(body)
        return [each.path for each in capture.differences()]


def test_what_is_copied(root: Path, place: Path) -> None:
    """Files with modes and times, links as they are, empty directories; below a directory that is closed to others."""
    with scratch_copy(root) as copy:
        path = Path(copy.path)
        assert read(path) == TREE
        assert path.name == "shop"
        assert path.is_relative_to(place)
        assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, place, place.parent)] == [0o700] * 3
        assert (path / "file").stat().st_mtime_ns == (root / "file").stat().st_mtime_ns
        (path / "file").write_bytes(b"changed")
        (path / "link").unlink()
    assert not path.exists()
    assert read(root) == TREE


def test_without_help_of_the_kernel(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between file systems that share nothing, bytes are copied."""

    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(limits, "TREE_PART_BYTES", 7)
    with scratch_copy(root) as copy:
        assert read(Path(copy.path)) == TREE


def test_removed_in_every_case(root: Path) -> None:
    """Also if the block fails, and if directories in it are closed to their owner."""
    with pytest.raises(ZeroDivisionError), scratch_copy(root) as copy:
        outside = root / "deep"
        Path(copy.path, "away").symlink_to(outside)
        Path(copy.path, "deep/er").chmod(0o000)
        Path(copy.path, "deep").chmod(0o500)
        mode = outside.stat().st_mode
        raise ZeroDivisionError
    assert not Path(copy.path).exists()
    assert (read(root), outside.stat().st_mode) == (TREE, mode), "links were not followed"


def test_failure_on_the_way(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: nothing is left."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scratch, "_copy_bytes", full)
    with pytest.raises(sw.TreeFailed, match="cannot be copied: no space left"), scratch_copy(root):
        pass


def test_too_large(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TREE_SPOOL_BYTES_MAX", 100_000)
    with pytest.raises(sw.InvalidArgument, match=r"at most 100,000"), scratch_copy(root):
        pass


def test_waits_for_a_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is made while a plan is applied would be half of it."""
    monkeypatch.setattr(limits, "TREE_LOCK_SECONDS", 0.01)
    with RootLock(root), pytest.raises(sw.Busy, match=f"process {os.getpid()}"), scratch_copy(root):
        pass


def test_left_by_a_killed_process(root: Path, place: Path) -> None:
    """The next copy removes it; one whose process lives is left alone."""
    ready, told = os.pipe()

    def work() -> None:
        with scratch_copy(root) as copy:
            os.write(told, copy.path.encode() + b"\n")
            signal.alarm(60)
            signal.pause()

    pid = forked(work)
    try:
        left = Path(os.read(ready, 4096).decode().strip())
        with scratch_copy(root):
            assert left.exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        assert outcome(pid) == -signal.SIGKILL
    assert left.exists()
    with scratch_copy(root):
        assert not left.exists()
        assert len([*place.glob("*.use")]) == 1, "its own"
    os.close(ready)
    os.close(told)


def test_child_that_leaves_the_block(root: Path) -> None:
    """It does not remove the copy of its parent."""
    block = scratch_copy(root)
    copy = block.__enter__()
    assert outcome(forked(lambda: block.__exit__(None, None, None), is_measured=True)) == 0
    assert read(Path(copy.path)) == TREE
    block.__exit__(None, None, None)


RULES = b"build/\n*.log\n!keep.log\n"


class TestIgnored:
    """In a copy, files are ignored by the rules of the original."""

    def test_repository(self, root: Path) -> None:
        """Also by the index: a file that git tracks is not ignored, and what is by its name alone is not, either."""
        git(root, "init")
        (root / ".gitignore").write_bytes(RULES)
        (root / ".git/info/exclude").write_text("private*\n")
        (root / "tracked.log").write_bytes(b"1")
        git(root, "add", "-f", "tracked.log")
        for ignored in ("build/y.o", "old.log", "private.txt"):
            (root / ignored).parent.mkdir(exist_ok=True)
            (root / ignored).write_bytes(b"ignored")
        with scratch_copy(root) as copy:
            names = {each.name for each in Path(copy.path).iterdir()}
        assert not names & {".git", "build", "old.log", "private.txt"}
        assert {".gitignore", "tracked.log", "file"} <= names
        files = dict.fromkeys(
            ["build/x.o", "new.log", "keep.log", "tracked.log", "sub/a~", "sub/b.py", "private2"], b""
        )
        assert changed(root, files) == ["keep.log", "sub/a~", "sub/b.py", "tracked.log"]
        assert changed(root, files) == changed_in_place(root, files)

    def test_part_of_a_repository(self, root: Path) -> None:
        """The rules of the directories above hold, too."""
        top = root.parent
        git(top, "init")
        (top / ".gitignore").write_bytes(RULES)
        (root / "deep/.gitignore").write_text("*.tmp\n")
        (root / "deep/er/tracked.log").write_bytes(b"1")
        git(top, "add", "-f", "shop/deep/er/tracked.log")
        files = {"new.log": b"", "er/a.tmp": b"", "er/tracked.log": b"2", "er/a.py": b"", "build/a": b""}
        assert changed(root / "deep", files) == ["er/a.py", "er/tracked.log"]
        assert changed(root / "deep", files) == changed_in_place(root / "deep", files)

    def test_repository_in_a_repository(self, root: Path) -> None:
        """Each decides about its own files."""
        git(root, "init")
        (root / ".gitignore").write_bytes(b"*.log\n")
        inner = build(root / "inner", {"a.log": file(b"1"), ".gitignore": file(b"*.tmp\n")})
        git(inner, "init")
        files = {"inner/a.log": b"2", "inner/b.log": b"", "inner/c.tmp": b"", "d.log": b"", "e.tmp": b""}
        assert changed(root, files) == ["e.tmp", "inner/a.log", "inner/b.log"]
        assert changed(root, files) == changed_in_place(root, files)

    def test_no_repository(self, root: Path) -> None:
        """By the names of generated files, wherever the copy is: also if that is in some repository."""
        state = Path(state_directory())
        git(state, "init")
        (state / ".gitignore").write_text("*.py\n")
        try:
            files = {"a.py": b"", "a.pyc": b"", "node_modules/x": b"", "venv/pyvenv.cfg": b""}
            assert changed(root, files) == ["a.py"]
        finally:
            (state / ".gitignore").unlink()
            discard(state / ".git")
