"""Captures are kept apart from captures and changes of trees that overlap, whoever's they are and however they end."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.trees.key import state_directory
from stepwell.trees.lock import RootLock
from stepwell.trees.root import Root
from stepwell.trees.tree_lock import Purpose, TreeLock
from tests.support.trees import build, discard, file, forked, outcome

CAPTURE, CHANGE, COPY = Purpose.CAPTURE, Purpose.CHANGE, Purpose.COPY


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield build(tmp_path / "root", {"inner/deep/file": file(b"x"), "other/file": file(b"y")})
    discard(tmp_path / "root")


@pytest.fixture(autouse=True)
def table() -> Iterator[Path]:
    """The directory of the table. No test leaves an entry there."""
    table = Path(state_directory(), "trees")
    yield table
    assert [*table.glob("*.use")] == []


@contextmanager
def locked(root: Path, purpose: Purpose, wait_s: float = 0) -> Iterator[None]:
    with Root(root) as opened, TreeLock(opened, purpose, plan_id="plan-1", tool="editor", wait_s=wait_s):
        yield


def is_free(root: Path, purpose: Purpose) -> bool:
    try:
        with locked(root, purpose):
            return True
    except sw.Busy:
        return False


def hold(root: Path, purpose: Purpose, work: Callable[[], object] = lambda: None) -> tuple[int, int]:
    """A process that uses a tree until the descriptor is closed."""
    ready, told = os.pipe()
    wait, release = os.pipe()

    def use() -> None:
        os.close(release)
        with locked(root, purpose):
            work()
            os.write(told, b"x")
            os.read(wait, 1)

    pid = forked(use)
    assert os.read(ready, 1) == b"x"
    for descriptor in (ready, told, wait):
        os.close(descriptor)
    return pid, release


@pytest.mark.parametrize("first, second", [(".", "."), (".", "inner/deep"), ("inner/deep", "."), ("inner", "inner")])
def test_second_capture_names_the_first(root: Path, first: str, second: str) -> None:
    """At the same root, above it and below it, also under another name of it, and in this process, too."""
    alias = root.parent / "alias"
    alias.symlink_to(root)
    pid, release = hold(root / first, CAPTURE)
    for above in (root, alias):
        with pytest.raises(sw.TreeInUse, match=f"process {pid} .*'plan-1', as tool 'editor'") as raised:
            locked(above / second, CAPTURE).__enter__()
        details = {"pid": pid, "plan_id": "plan-1", "tool": "editor", "root": str(root / first)}
        assert (raised.value.details, raised.value.retry) == (details, True)
    os.close(release)
    assert outcome(pid) == 0
    with locked(root / first, CAPTURE):
        assert not is_free(root / second, CAPTURE)
    assert is_free(root / second, CAPTURE)


def test_trees_that_do_not_overlap(root: Path) -> None:
    """Beside each other, though they have the same directories above them."""
    with locked(root / "inner", CAPTURE):
        assert is_free(root / "other", CAPTURE)
        assert not is_free(root, CAPTURE)


@pytest.mark.parametrize(
    "first, second, is_possible",
    [
        (CAPTURE, CAPTURE, False),
        (CAPTURE, CHANGE, False),
        (CAPTURE, COPY, True),
        (CHANGE, CAPTURE, False),
        (CHANGE, CHANGE, True),
        (CHANGE, COPY, False),
        (COPY, CAPTURE, True),
        (COPY, CHANGE, False),
        (COPY, COPY, True),
    ],
)
def test_uses_beside_each_other(root: Path, first: Purpose, second: Purpose, is_possible: bool) -> None:  # noqa: FBT001
    with locked(root, first):
        assert is_free(root / "inner", second) is is_possible


def test_change_is_refused_while_a_capture_runs(root: Path) -> None:
    """At once, however long it may wait: a capture takes as long as an agent works."""
    with locked(root / "inner", CAPTURE), pytest.raises(sw.TreeInUse, match="would be recorded as its change"):
        RootLock(root, wait_s=60).__enter__()
    with RootLock(root):
        assert not is_free(root / "inner", CAPTURE)
    with locked(root, CAPTURE):
        pass


def test_capture_waits_for_a_change(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change takes a moment; past the time, the process that makes it is named."""
    with RootLock(root), pytest.raises(sw.Busy, match=rf"process {os.getpid()} is at work .* \(change\)") as raised:
        locked(root, CAPTURE, wait_s=0.02).__enter__()
    assert (type(raised.value), raised.value.details["pid"]) == (sw.Busy, os.getpid())
    pid, release = hold(root, CHANGE)
    pauses = iter([release])

    def pause(_seconds: float) -> None:
        for descriptor in pauses:  # at the first pause, the other process comes to its end
            os.close(descriptor)
            assert outcome(pid) == 0

    monkeypatch.setattr("stepwell.trees.tree_lock.time.sleep", pause)
    with locked(root, CAPTURE, wait_s=60):
        assert next(pauses, None) is None


def test_the_dead_hold_nothing(root: Path, table: Path) -> None:
    """What a killed process leaves in the table is removed by the next one."""
    pid, release = hold(root, CAPTURE)
    os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == -signal.SIGKILL
    assert len([*table.glob("*.use")]) == 1
    assert is_free(root, CAPTURE)
    os.close(release)


def test_children_do_not_hold_what_their_parent_held(root: Path) -> None:
    """A forked child that lives on, or leaves the block of its parent, neither keeps the lock nor gives it up."""
    wait, end_child = os.pipe()
    begun, begin = os.pipe()

    def live_on() -> None:
        os.close(end_child)
        os.write(begin, b"x")  # only from here on it has closed the lock that it inherited
        os.read(wait, 1)

    def fork() -> None:
        forked(live_on)
        os.close(end_child)
        os.read(begun, 1)

    pid, release = hold(root, CAPTURE, fork)
    os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == -signal.SIGKILL
    assert is_free(root, CAPTURE), "the child is alive"
    for descriptor in (release, end_child, wait, begun, begin):
        os.close(descriptor)
    with Root(root) as opened, TreeLock(opened, CAPTURE) as lock:
        assert outcome(forked(lambda: lock.__exit__(None, None, None), is_measured=True)) == 0
        assert not is_free(root, CAPTURE)


def test_table_that_a_stopped_process_holds(root: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not waited for without end."""
    monkeypatch.setattr(limits, "TREE_TABLE_SECONDS", 0.01)
    assert is_free(root, CAPTURE)
    with (table / "table.lock").open("wb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(sw.Busy, match="table of tree locks"):
            locked(root, CAPTURE).__enter__()


def test_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that cannot be written is not there."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(sw.TreeFailed, match="no space left"):
            locked(root, CAPTURE).__enter__()


def test_state_in_the_tree(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table would be captured, too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state"))
    with pytest.raises(sw.TreeFailed, match="outside of it"):
        locked(root, CAPTURE).__enter__()


def test_names_that_are_no_text(root: Path) -> None:
    odd = root / os.fsdecode(b"\xff")
    odd.mkdir()
    with locked(odd, CAPTURE), pytest.raises(sw.TreeInUse, match="\ufffd"):
        locked(odd, CAPTURE).__enter__()
