"""Transactions at one root take turns, whoever's they are and however they end."""

import os
import signal
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.trees.lock import LOCK, RootLock
from stepwell.trees.transaction import TreeTransaction
from tests.support.trees import Tree, bodies, build, change, deltas, file, forked, outcome, read


def hold(root: Path) -> tuple[int, int]:
    """A process that holds the lock until the descriptor is closed."""
    ready, told = os.pipe()
    wait, release = os.pipe()

    def work() -> None:
        os.close(release)
        with RootLock(root, wait_s=0):
            os.write(told, b"x")
            os.read(wait, 1)

    pid = forked(work)
    assert os.read(ready, 1) == b"x"
    for descriptor in (ready, told, wait):
        os.close(descriptor)
    return pid, release


def test_busy_names_who_is_at_it(root: Path) -> None:
    build(root, {})
    pid, release = hold(root)
    with (
        pytest.raises(sw.Busy, match=f"process {pid}") as raised,
        TreeTransaction(root, "t", [], bodies(), wait_s=0.05),
    ):
        pass
    assert raised.value.details["pid"] == pid
    os.close(release)
    assert outcome(pid) == 0


def test_busy_without_a_name(root: Path) -> None:
    """The lock holds, whatever its file says."""
    build(root, {})
    pid, release = hold(root)
    for text in ("", '{"pid": "x"}'):
        (root / ".stepwell" / LOCK).write_text(text)
        with pytest.raises(sw.Busy, match="process None"), TreeTransaction(root, "t", [], bodies(), wait_s=0):
            pass
    os.close(release)
    assert outcome(pid) == 0


def test_the_dead_hold_nothing(root: Path) -> None:
    build(root, {})
    pid, release = hold(root)
    os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == -signal.SIGKILL
    os.close(release)
    change(root, {}, {"a": file(b"x")})
    assert read(root) == {"a": file(b"x")}


def test_processes_take_turns(root: Path) -> None:
    """Each adds one to a number, by a change of its own: none is lost, because none is between two others' halves."""
    build(root, {"n": file(b"0")})

    def add_one() -> None:
        for turn in range(5):
            while True:
                found: Tree = {"n": file((root / "n").read_bytes())}
                more: Tree = {"n": file(str(int(found["n"][1]) + 1).encode())}
                try:
                    with TreeTransaction(
                        root, f"{os.getpid()}-{turn}", deltas(found, more), bodies(found, more)
                    ) as transaction:
                        assert not transaction.is_already_applied
                        transaction.apply()
                        transaction.commit()
                        transaction.finalize()
                    break
                except (sw.TreeConflict, AssertionError):
                    continue

    for pid in [forked(add_one) for _ in range(3)]:
        assert outcome(pid) == 0
    assert read(root) == {"n": file(b"15")}


def test_it_ignores_itself(root: Path) -> None:
    build(root, {})
    change(root, {}, {"a": file()})
    assert (root / ".stepwell/.gitignore").read_text() == "*\n"
    (root / ".stepwell/.gitignore").unlink()
    (root / ".stepwell/.gitignore.draft").touch()
    change(root, {"a": file()}, {})
    assert (root / ".stepwell/.gitignore").read_text() == "*\n"


def test_a_root_that_cannot_be_written() -> None:
    """A typed error, at once."""
    with pytest.raises(sw.TreeFailed), TreeTransaction("/proc", "t", deltas({}, {"a": file()}), bodies()):
        pass
