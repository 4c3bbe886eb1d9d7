"""What earlier processes left: undone, thrown away, told, and never guessed at."""

from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell.trees import recovery
from stepwell.trees.lock import RootLock
from stepwell.trees.transaction import TreeTransaction
from stepwell.trees.undo_log import UndoLog
from tests.support.trees import (
    Tree,
    bodies,
    build,
    change,
    committed,
    deltas,
    file,
    kept,
    killed_at,
    link,
    read,
    recover,
)
from tests.unit.trees.test_crashes import AFTER, BEFORE


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
    for old in (root / ".stepwell/t-1.open").glob("old-*"):
        old.unlink()
    with pytest.raises(sw.TreeConflict) as raised:
        recover(root)
    paths = raised.value.details["paths"]
    assert isinstance(paths, list)
    assert "changed" in paths


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(UndoLog(99, (), (), (), ()))])
def test_a_damaged_log(root: Path, data: bytes) -> None:
    """Nothing is touched, by anybody, until somebody has looked."""
    died_before_keeping(root)
    (root / ".stepwell/t-1.open/log").write_bytes(data)
    for attempt in (recover, lambda root: change(root, BEFORE, AFTER, "t-2")):
        with pytest.raises(sw.StoreDamaged):
            attempt(root)
    assert read(root) == AFTER


def test_what_is_of_no_use(root: Path) -> None:
    """What was only staged, or is spent, goes; what is nobody's of ours stays."""
    build(root, {"a": file(b"1")})
    recover(root)
    for name in ("x.staging", "y.spent", "z.else"):
        (root / ".stepwell" / name).mkdir()
        (root / ".stepwell" / name / "new-0").touch()
    recover(root)
    assert kept(root) == {"z.else"}
    assert committed(root) == []


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
