"""What earlier processes left: undone, thrown away, told, and never guessed at."""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.trees import recovery, undo_log
from stepwell.trees.lock import RootLock
from stepwell.trees.transaction import TreeTransaction
from tests.support.planted import log
from tests.support.trees import (
    Tree,
    before_each_step,
    bodies,
    build,
    change,
    committed,
    deltas,
    directory_of,
    file,
    kept,
    killed_at,
    link,
    read,
    recover,
)
from tests.unit.trees.test_crashes import AFTER, BEFORE
from tests.unit.trees.test_key import into_directory, into_link, into_pipe


def died_before_keeping(root: Path, before: Tree = BEFORE, after: Tree = AFTER) -> None:
    build(root, before)
    assert killed_at(("rename", "t-1.done"), lambda: change(root, before, after))
    assert (read(root), kept(root)) == (after, {"t-1.open"})


def test_somebody_changed_files_since(root: Path) -> None:
    """Theirs are left alone and named; the rest is undone; what could not be put back is kept; and it is told once."""
    died_before_keeping(root)
    (root / "changed").write_bytes(b"theirs")
    (root / "new/empty/theirs").write_bytes(b"t")
    (root / "directory to file").unlink()
    (root / "directory to file").symlink_to("elsewhere")
    with pytest.raises(sw.TreeConflict, match="left alone") as raised:
        change(root, BEFORE, AFTER, "t-2")
    assert raised.value.details["paths"] == [
        "changed",
        "directory to file",
        "directory to file/x",
    ]
    expected = BEFORE | {"changed": file(b"theirs"), "new/empty/theirs": file(b"t")}
    expected["directory to file"] = link(b"elsewhere")
    del expected["directory to file/x"]
    assert read(root) == expected
    assert kept(root) == {"t-1.left"}
    recover(root)


def test_somebody_took_directories_away(root: Path) -> None:
    """What has no place to come back to is named, too."""
    before: Tree = {"d/e/f": file(b"f"), "d/k": file(b"k")}
    after: Tree = {"d/k": file(b"k"), "n/m": file(b"m")}
    died_before_keeping(root, before, after)
    (root / "d/k").unlink()
    (root / "d").rmdir()
    (root / "d").write_bytes(b"theirs")
    with pytest.raises(sw.TreeConflict) as raised:
        recover(root)
    assert raised.value.details["paths"] == ["d/e", "d/e/f"]
    assert read(root) == {"d": file(b"theirs")}


def test_left_twice(root: Path) -> None:
    """What was left under the same name before makes way."""
    before: Tree = {"a": file(b"old")}
    build(root, before)
    for body in (b"first", b"second"):
        (root / "a").write_bytes(b"old")
        assert killed_at(("rename", "t-1.done"), lambda: change(root, before, {"a": file(b"new")}))
        (root / "a").write_bytes(body)
        with pytest.raises(sw.TreeConflict):
            recover(root)
    assert (read(root), kept(root)) == ({"a": file(b"second")}, {"t-1.left"})


def test_backups_that_are_gone(root: Path) -> None:
    """Somebody tidied up: what was there cannot come back, and that is said."""
    died_before_keeping(root)
    for old in directory_of(root, "t-1.open").glob("old-*"):
        old.unlink()
    with pytest.raises(sw.TreeConflict) as raised:
        recover(root)
    paths = raised.value.details["paths"]
    assert isinstance(paths, list)
    assert "changed" in paths


OUTSIDE = log([[b"../x", [stat.S_IFREG | 0o644, digest_of(b"x")], None]], version=undo_log.VERSION)
ANOTHER = log([[b"same", None, [stat.S_IFREG | 0o644, digest_of(b"same")]]], version=undo_log.VERSION)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "flipped": lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
    "a path outside": lambda path: path.write_bytes(OUTSIDE),
    "another path": lambda path: path.write_bytes(ANOTHER),
    "huge": lambda path: os.truncate(path, limits.TREE_LOG_BYTES_MAX + 1),
    "missing": Path.unlink,
    "pipe": into_pipe,
    "directory": into_directory,
    "link": into_link,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_log(root: Path, damage: Callable[[Path], object]) -> None:
    """Nothing is changed, at once, until a person has looked. Other transactions are recovered all the same."""
    died_before_keeping(root)
    damage(directory_of(root, "t-1.open") / "log")
    for attempt in (recover, lambda root: change(root, BEFORE, AFTER, "t-2")):
        with pytest.raises(sw.StoreDamaged, match="compare the tree"):
            attempt(root)
    assert read(root) == AFTER
    assert not (root.parent / "x").exists()


def test_what_is_of_no_use(root: Path) -> None:
    """A transaction that was only staged, or is spent, is removed; other entries of the directory stay."""
    for at, stage in ((("rename", "t-1.open"), "staging"), (("unlink", "log"), "spent")):
        build(root, BEFORE)
        assert killed_at(at, lambda: change(root, BEFORE, AFTER))
        assert kept(root) == {f"t-1.{stage}"}
        (root / ".stepwell/z.else").mkdir()
        (root / ".stepwell/z.else/new-0").touch()
        recover(root)
        assert kept(root) == {"z.else"}
        assert committed(root) == []


def test_old_contents_stay_until_the_next_transaction(root: Path) -> None:
    """The error says so. A recovery, or a transaction that the tree refuses, is none: only one that begins."""
    died_before_keeping(root)
    (root / "changed").write_bytes(b"theirs")
    with pytest.raises(sw.TreeConflict, match="until the next transaction at this root begins"):
        recover(root)
    recover(root)
    with pytest.raises(sw.TreeConflict, match="left as it is"):
        change(root, BEFORE, AFTER, "t-2")
    assert kept(root) == {"t-1.left"}
    change(root, {}, {"another": file(b"x")}, "t-3")
    assert kept(root) == set()
    assert (root / "changed").read_bytes() == b"theirs"


def test_foreign_files_in_a_transaction(root: Path) -> None:
    """What another program put into the directory of a transaction stays when the transaction is removed."""
    died_before_keeping(root)
    directory = directory_of(root, "t-1.open")
    (directory / "precious").write_bytes(b"p")
    (directory / "old-99").mkdir()
    recover(root)
    assert (read(root), kept(root)) == (BEFORE, {"t-1.spent"})
    with RootLock(root) as lock:
        recovery.recover(lock)
        [found] = recovery.untrusted(lock)
    assert found.reason == "it has files that no transaction wrote"
    assert {entry.name for entry in directory_of(root, "t-1.spent").iterdir()} == {"precious", "old-99"}
    change(root, BEFORE, AFTER)
    assert (read(root), kept(root)) == (AFTER, {"t-1.spent"})


def test_a_directory_that_cannot_be_removed(root: Path) -> None:
    """A failing disk is an error of the recovery, and the next one goes on."""
    died_before_keeping(root)

    def refuse(step: str, what: str) -> None:
        if (step, what) == ("rmdir", "t-1.spent"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with before_each_step(refuse), pytest.raises(sw.TreeFailed):
        recover(root)
    recover(root)
    assert (read(root), kept(root)) == (BEFORE, set())


def test_under_one_lock(root: Path) -> None:
    """What was left is listed, settled and undone without anybody coming in between."""
    build(root, BEFORE)
    killed_at(("rename", "t-1.spent"), lambda: change(root, BEFORE, AFTER))
    with RootLock(root) as lock:
        with pytest.raises(sw.Busy), RootLock(root, wait_s=0):
            pass
        recovery.recover(lock)
        assert recovery.committed(lock) == ["t-1"]
        recovery.undo(lock, "t-1")
        assert (read(root), kept(root)) == (BEFORE, set())
        with TreeTransaction(lock, "t-3", deltas(BEFORE, AFTER), bodies(AFTER)) as transaction:
            transaction.apply()
            transaction.commit()
        recovery.finalize(lock, "t-3")
    assert (read(root), kept(root)) == (AFTER, set())


def test_resumed(root: Path) -> None:
    """One that was done is gone on with, if the tree is still what it left: not touched, settled or undone at will."""
    for end in ("finalize", "undo"):
        build(root, BEFORE)
        killed_at(("rename", "t-1.spent"), lambda: change(root, BEFORE, AFTER))
        with TreeTransaction(root, "t-1", deltas(BEFORE, AFTER), bodies(), resumes=True) as transaction:
            assert not transaction.is_already_applied
            with pytest.raises(sw.InvalidArgument):
                transaction.rename("../t")
            transaction.rename("t-2")
            assert kept(root) == {"t-2.done"}
            transaction.apply()
            transaction.commit()
            getattr(transaction, end)()
        assert (read(root), kept(root)) == (AFTER if end == "finalize" else BEFORE, set())


class FailingSync:
    """Lets the sync after the rename to a given name fail, once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_renamed = False

    def __call__(self, step: str, what: str) -> None:
        if self._is_renamed:
            self._name, self._is_renamed = "", False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._is_renamed = (step, what) == ("rename", self._name)


def test_a_rename_that_is_not_synced(root: Path) -> None:
    """The transaction is undone under the name and in the stage that it has on disk by then."""
    build(root, BEFORE)
    killed_at(("rename", "t-1.spent"), lambda: change(root, BEFORE, AFTER))
    with TreeTransaction(root, "t-1", deltas(BEFORE, AFTER), bodies(), resumes=True) as transaction:
        with before_each_step(FailingSync("t-2.done")), pytest.raises(sw.TreeFailed, match="cannot be renamed"):
            transaction.rename("t-2")
        assert kept(root) == {"t-2.done"}
        transaction.undo()
    assert (read(root), kept(root)) == (BEFORE, set())


def test_spent_before_it_is_undone(root: Path) -> None:
    """Its old contents may be gone already, so that undoing it is refused, and not silently left out."""
    build(root, BEFORE)
    with TreeTransaction(root, "t-1", deltas(BEFORE, AFTER), bodies(AFTER)) as transaction:
        transaction.apply()
        transaction.commit()
        with before_each_step(FailingSync("t-1.spent")), pytest.raises(sw.TreeFailed, match="cannot be finalized"):
            transaction.finalize()
        with pytest.raises(sw.NotFound, match="cannot be undone"):
            transaction.undo()
    recover(root)
    assert (read(root), kept(root)) == (AFTER, set())


def test_a_name_that_is_taken(root: Path) -> None:
    """A transaction does not get the name of another committed one."""
    build(root, {})
    for name in ("t-1", "t-2"):
        assert killed_at(("rename", f"{name}.spent"), partial(change, root, {}, {name: file()}, name))
    added: Tree = {"t-1": file()}
    with TreeTransaction(root, "t-1", deltas({}, added), bodies(), resumes=True) as transaction:
        with pytest.raises(sw.AlreadyExists, match="'t-2' that is done"):
            transaction.rename("t-2")
    assert kept(root) == {"t-1.done", "t-2.done"}


def test_not_resumed(root: Path) -> None:
    """Somebody put things back by hand: it is undone, and begun anew. Left without a word, it stays done."""
    build(root, BEFORE)
    killed_at(("rename", "t-1.spent"), lambda: change(root, BEFORE, AFTER))
    with TreeTransaction(root, "t-1", deltas(BEFORE, AFTER), bodies(), resumes=True):
        pass
    assert kept(root) == {"t-1.done"}
    (root / "changed").write_bytes(b"old")
    with TreeTransaction(root, "t-1", deltas(BEFORE, AFTER), bodies(AFTER), resumes=True) as transaction:
        assert read(root) == BEFORE
        transaction.apply()
        transaction.commit()
        transaction.undo()
        assert read(root) == BEFORE
        transaction.undo()
    assert kept(root) == set()
