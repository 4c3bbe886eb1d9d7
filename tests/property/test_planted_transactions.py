"""Any bytes in `.stepwell`: nothing outside the root changes, and no file that our own transaction did not touch."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

import stepwell as sw
from stepwell.trees import undo_log
from tests.support.planted import entry, log, snapshot
from tests.support.trees import Tree, build, change, directory_of, file, kept, killed_at, link, read, recover

BEFORE: Tree = {"a": file(b"old"), "gone/b": file(b"b"), "untouched": file(b"u"), "l": link(b"../outside")}
AFTER: Tree = {"a": file(b"new"), "made/c": file(b"c"), "untouched": file(b"u"), "l": link(b"../outside")}
TOUCHED = ("root/a", "root/gone", "root/made", "root/.stepwell/lock", "root/.stepwell/.gitignore")
"""Paths of our own transactions, below the directory that holds the root."""

STAGES = ("staging", "open", "done", "spent", "left")
TARGETS = ("../outside", "../../outside", "../outside/file", "untouched", "/", "..", "none", "../.stepwell")
PATHS = [
    b"../outside/file", b"../outside/new", b"../new", b"untouched", b"a", b"gone/b", b"made", b"made/c", b"/new", b"..",
    b".", b"", b"l/new", b".git/hooks/pre-commit", b".stepwell/lock", b"a/../../new", b"x" * 300, b"\xff", b"nul\0",
]  # fmt: skip
BODIES = [b"", b"old", b"new", b"u", b"outside", b"planted"]

paths = st.sampled_from(PATHS)
bodies = st.sampled_from(BODIES)
modes = st.sampled_from([0o644, 0o600, 0o777, 0o4755, 0, -1, 2**40])
entries = st.none() | st.builds(entry, bodies, modes) | st.just([stat.S_IFLNK, b"x"])
logs = st.builds(
    log,
    st.lists(st.tuples(paths, entries, entries).map(list), max_size=3),
    made=st.lists(paths, max_size=2),
    removed=st.lists(st.tuples(paths, modes), max_size=2),
    loosened=st.lists(st.tuples(paths, modes), max_size=2),
    version=st.sampled_from([1, undo_log.VERSION]),
)
seals = st.text("0123456789abcdef", min_size=80, max_size=80)
letters = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=20)
names = (
    letters.filter(lambda name: name not in {".", "..", "lock"} and len(name.encode()) < 200)
    | st.builds("{}.{}".format, st.sampled_from(["t-1", "t-2", "evil-1", "", ".."]), st.sampled_from(STAGES))
    | st.builds("{}.{}.{}".format, st.sampled_from(["t-1", "t-2"]), seals, st.sampled_from(STAGES))
    | st.sampled_from([".gitignore", ".gitignore.draft", "log", "draft"])
)


class Link(Struct, frozen=True):
    """A symbolic link to a target."""

    target: str


class Copy(Struct, frozen=True):
    """A copy of a genuine transaction, of this root or another one, with a new name or stage, or another log."""

    is_own: bool
    name: str
    stage: str
    log: bytes | None


files = st.dictionaries(
    st.sampled_from(["log", "old-0", "old-1", "new-0", "new-1", "other"]), bodies | logs | st.binary(max_size=50)
)
planted = st.tuples(
    names,
    st.binary(max_size=50) | st.builds(Link, st.sampled_from(TARGETS)) | files,
) | st.tuples(
    st.just(""),
    st.builds(Copy, st.booleans(), st.sampled_from(["t-1", "t-2", "x"]), st.sampled_from(STAGES), st.none() | logs),
)
Planted = tuple[str, bytes | Link | dict[str, bytes] | Copy]


@contextmanager
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as above, pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _descriptor: None)
        yield Path(above)


def interrupt(root: Path) -> None:
    build(root, BEFORE)
    assert killed_at(("rename", "t-1.done"), lambda: change(root, BEFORE, AFTER))


def plant(area: Path, name: str, what: bytes | Link | dict[str, bytes] | Copy, genuine: dict[bool, Path]) -> None:
    """Write one thing into a staging directory, unless its name is taken, or is that of this root's own transaction.

    The directory of the own transaction with another log is what the second test is about.
    """
    if isinstance(what, Copy):
        source = genuine[what.is_own]
        name = f"{what.name}.{source.name.split('.')[1]}.{what.stage}"
    place = area / name
    if place.exists() or place.is_symlink() or name == genuine[True].name:
        return
    match what:
        case bytes():
            place.write_bytes(what)
        case Link(target):
            place.symlink_to(target)
        case dict():
            place.mkdir()
            for each, body in what.items():
                (place / each).write_bytes(body)
        case Copy():
            shutil.copytree(genuine[what.is_own], place, symlinks=True)
            if what.log is not None:
                (place / "log").write_bytes(what.log)


@given(st.lists(planted, max_size=6), st.booleans())
def test_nothing_else_changes(things: list[Planted], is_interrupted: bool) -> None:  # noqa: FBT001
    """Our own transaction is applied, an interrupted one of ours is recovered first, and the rest is as it was."""
    with directory() as above:
        root = above / "root"
        build(above / "outside", {"file": file(b"outside"), "secret": file(b"s", 0o600)})
        for each in (above / "other", root):
            interrupt(each)
        own = directory_of(root, "t-1.open")
        genuine = {False: directory_of(above / "other", "t-1.open"), True: own}
        if not is_interrupted:
            genuine[True] = Path(shutil.copytree(own, above / own.name))
            recover(root)
        for name, what in things:
            plant(root / ".stepwell", name, what, genuine)
        skipped = (*TOUCHED, f"root/.stepwell/{own.name}")
        before = snapshot(above, *skipped)
        change(root, BEFORE, AFTER, "t-2")
        assert {path: node for path, node in read(root).items() if path in {*BEFORE, *AFTER}} == AFTER
        assert snapshot(above, *skipped) == before


@example(log([[b"untouched", None, entry(b"u", 0o644)]], version=undo_log.VERSION))
@given(logs | st.binary(max_size=80))
def test_a_genuine_transaction_with_another_log(data: bytes) -> None:
    """It is refused, with the tree, the transaction and everything outside as they were."""
    with directory() as above:
        root = above / "root"
        build(above / "outside", {"file": file(b"outside")})
        interrupt(root)
        (directory_of(root, "t-1.open") / "log").write_bytes(data)
        before = snapshot(above)
        with pytest.raises(sw.StoreDamaged):
            change(root, BEFORE, AFTER, "t-2")
        assert kept(root) == {"t-1.open"}
        ignored = "root/.stepwell/lock"
        assert {path: node for path, node in snapshot(above).items() if path != ignored} == {
            path: node for path, node in before.items() if path != ignored
        }
