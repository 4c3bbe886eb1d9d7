"""No path, however it is written and whatever is done to it meanwhile, leads out of its root."""

import os
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees.entry import Delta, TreeEntry
from stepwell.trees.root import Root
from stepwell.trees.transaction import TreeTransaction
from tests.support.trees import Tree, before_each_step, bodies, build, change, deltas, file, kept, link, read, recover

ESCAPES = [
    "",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/./b",
    "a//b",
    "a/",
    "nul\0",
    "x" * 5_000,
    "\ud800",
    ".git/hooks/x",
    ".GIT/config",
    "sub/.git/hooks/pre-commit",
    ".stepwell/lock",
    "sub/.Stepwell/x",
    ".git",
]


@pytest.mark.parametrize("path", ESCAPES, ids=lambda path: repr(path[:20]))
def test_paths_that_are_none(path: str) -> None:
    """Refused before anybody looks at a disk."""
    with pytest.raises(sw.EscapesRoot, match="relative to the root"):
        Delta(path, None, TreeEntry(None, digest_of(b"")))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return build(tmp_path / "outside", {"secret": file(b"s"), "sub/x": file(b"x")})


@pytest.mark.parametrize("path", ["out/secret", "out/new", "out/sub/x", "out/sub/deep/new"])
def test_behind_a_link(root: Path, outside: Path, path: str) -> None:
    """Neither read, nor made, nor removed, though the link itself may be part of the tree."""
    build(root, {"out": link(os.fsencode(outside))})
    for before, after in ((file(b"s"), None), (None, file(b"n"))):
        listed = deltas({path: before} if before else {}, {path: after} if after else {})
        with pytest.raises(sw.EscapesRoot, match="symbolic link"), TreeTransaction(root, "t", listed, bodies()):
            pass
    assert read(outside) == {"secret": file(b"s"), "sub/x": file(b"x")}
    assert kept(root) == set()


def test_a_link_is_created_and_never_followed(root: Path, outside: Path) -> None:
    """Recorded as what it is, whether what it points at exists or not; and replaced without touching that."""
    target = os.fsencode(outside / "secret")
    build(root, {})
    change(root, {}, {"l": link(target), "dangling": link(b"nowhere")})
    change(root, {"l": link(target)}, {"l": file(b"mine")})
    assert read(root) == {"l": file(b"mine"), "dangling": link(b"nowhere")}
    assert (outside / "secret").read_bytes() == b"s"


def test_a_link_that_makes_way(root: Path, outside: Path) -> None:
    """A change may put a directory in the place of a link, and back, and what the link points at stays."""
    before: Tree = {"out": link(os.fsencode(outside))}
    after: Tree = {"out/secret": file(b"mine"), "out/sub/y": file(b"y")}
    build(root, before)
    change(root, before, after)
    assert read(root) == after
    change(root, after, before)
    assert read(root) == before
    assert read(outside) == {"secret": file(b"s"), "sub/x": file(b"x")}


def test_a_component_swapped_during_the_run(root: Path, outside: Path) -> None:
    """A directory becomes a link between comparing and doing: nothing happens behind it, at any step."""
    before: Tree = {"d/a": file(b"1"), "d/b": file(b"2"), "z": file(b"z")}
    after: Tree = {"d/a": file(b"x"), "d/sub/c": file(b"3"), "z": file(b"y")}
    total = 0
    for number in range(200):
        build(root, before)
        swap = Swap(root / "d", outside, number)
        try:
            with before_each_step(swap):
                change(root, before, after)
        except (sw.EscapesRoot, sw.TreeConflict, sw.TreeFailed):
            total += 1
        assert read(outside) == {"secret": file(b"s"), "sub/x": file(b"x")}
        if not swap.is_done:
            break
    assert total > 10


class Swap:
    """Puts a link in the place of a directory, before the step of a given number."""

    def __init__(self, directory: Path, outside: Path, number: int) -> None:
        self._directory, self._outside, self._left = directory, outside, number
        self.is_done = False

    def __call__(self, _step: str, _what: str) -> None:
        self._left -= 1
        if self._left == -1:
            self._directory.rename(self._directory.with_name("moved"))
            self._directory.symlink_to(self._outside)
            self.is_done = True


def test_a_root_swapped_during_the_run(root: Path, outside: Path) -> None:
    """The root is what was opened: its path may lead elsewhere by now."""
    before: Tree = {"secret": file(b"s")}
    build(root, before)
    with TreeTransaction(root, "t", deltas(before, {}), bodies(before)) as transaction:
        moved = root.rename(root.with_name("moved"))
        root.symlink_to(outside)
        transaction.apply()
        transaction.commit()
        transaction.finalize()
    assert (read(moved), (outside / "secret").read_bytes()) == ({}, b"s")
    root.unlink()


def test_the_area_is_no_link(root: Path, outside: Path) -> None:
    """What transactions keep is kept in the root, or nothing happens."""
    build(root, {".stepwell": link(os.fsencode(outside))})
    with pytest.raises(sw.EscapesRoot, match="no directory"):
        change(root, {}, {"a": file()})
    with pytest.raises(sw.EscapesRoot, match="no directory"):
        recover(root)
    assert read(outside) == {"secret": file(b"s"), "sub/x": file(b"x")}


@pytest.mark.parametrize("path", [path for path in ESCAPES if set(path.split("/")) & {"", ".", ".."} or "\0" in path])
def test_no_component_leads_upwards(root: Path, path: str) -> None:
    """Opening refuses it, too, whatever checked the path before; the empty path is the root itself."""
    build(root, {"a/b": file()})
    with Root(root) as opened:
        for use in (opened.place, *((opened.directory, opened.readable) if path else ())):
            with pytest.raises(sw.EscapesRoot, match="normalised"), use(path):
                pass
        for look in (opened.inspect, opened.kind):
            with pytest.raises(sw.EscapesRoot, match="normalised"):
                look(path)
        with opened.directory("") as descriptor:
            assert os.path.samestat(os.fstat(descriptor), root.stat())


def test_what_is_at_a_path(root: Path) -> None:
    """Files, links, directories, other things and nothing."""
    build(root, {"a": file(b"1"), "d/x": file(), "e": (0o40000, b""), "l": link(b"a")})
    os.mkfifo(root / "p")
    with Root(root) as opened:
        found = {path: str(opened.inspect(path)).split()[:2] for path in ("a", "d", "e", "l", "p", "none", "a/x")}
        assert [opened.inspect("d").is_empty_directory, opened.inspect("e").is_empty_directory] == [False, True]
        assert opened.kind("a/x/y") == 0
    assert found == {
        "a": ["a", "file"],
        "d": ["a", "directory"],
        "e": ["a", "directory"],
        "l": ["a", "symbolic"],
        "p": ["something", "else"],
        "none": ["nothing"],
        "a/x": ["nothing"],
    }
