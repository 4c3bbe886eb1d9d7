"""The key of tree transactions: one for all processes of a user, and of no other user, outside every tree."""

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.trees.key import load_key
from stepwell.trees.root import Root
from tests.support.trees import before_each_step, build, change, file, forked, kept, killed_at, outcome, recorded_steps


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory that does not exist yet; its directory is created with the key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "above/state"))
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    return tmp_path / "above/state/stepwell"


def loaded(root: Path) -> bytes:
    with Root(build(root, {})) as opened:
        return load_key(opened)


def names(directory: Path) -> list[str]:
    return [entry.name for entry in directory.iterdir()]


def test_created_once(state: Path, root: Path) -> None:
    """Of 32 bytes, for its user alone, with nothing beside it."""
    key = loaded(root)
    assert len(key) == limits.TREE_KEY_BYTES
    assert loaded(root) == key == (state / "tree.key").read_bytes()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (state, state / "tree.key")] == [0o700, 0o600]
    assert names(state) == ["tree.key"]


def test_two_users_have_two_keys(state: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded(root)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert loaded(root) != first


@pytest.mark.parametrize("given", [None, "", "relative/state"])
def test_default_place(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """The home directory's, as the XDG standard says, also for a value that it says to ignore."""
    monkeypatch.delenv("XDG_STATE_HOME") if given is None else monkeypatch.setenv("XDG_STATE_HOME", given)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    key = loaded(root)
    assert (tmp_path / "home/.local/state/stepwell/tree.key").read_bytes() == key


def test_no_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(sw.TreeFailed, match="set XDG_STATE_HOME"):
        loaded(root)


def test_processes_that_start_at_once_agree(state: Path, root: Path, tmp_path: Path) -> None:
    """Each is held before the step that names its key until all have one; they return the same."""
    build(root, {})
    count = 4
    ready, announce = os.pipe()
    wait, release = os.pipe()

    def work(number: int) -> None:
        os.close(release)

        def hold(step: str, what: str) -> None:
            if (step, what) == ("link", "tree.key"):
                os.write(announce, b"x")
                os.read(wait, 1)

        with before_each_step(hold), Root(root) as opened:
            (tmp_path / f"key-{number}").write_bytes(load_key(opened))

    children = [forked(partial(work, number)) for number in range(count)]
    os.close(announce)
    for _ in children:
        assert os.read(ready, 1) == b"x"
    for descriptor in (ready, wait, release):
        os.close(descriptor)
    assert [outcome(pid) for pid in children] == [0] * count
    assert {(tmp_path / f"key-{number}").read_bytes() for number in range(count)} == {loaded(root)}
    assert names(state) == ["tree.key"]


def test_death_at_every_step_of_its_creation(state: Path, root: Path) -> None:
    """The next process has a key, and never a half-written one."""
    steps = recorded_steps(lambda: loaded(root))
    assert steps.index(("link", "tree.key")) > max(at for at, (step, _) in enumerate(steps[:-2]) if step == "sync")
    assert steps[-2:] == [("sync", str(state)), ("sync", str(state.parent))]
    for at in range(len(steps)):
        build(state, {}).chmod(0o700)
        assert killed_at(at, lambda: loaded(root))
        assert len(loaded(root)) == limits.TREE_KEY_BYTES


def test_removed_while_it_is_created(state: Path, root: Path) -> None:
    def remove(step: str, what: str) -> None:
        if (step, what) == ("sync", str(state)):
            (state / "tree.key").unlink()

    with before_each_step(remove), pytest.raises(sw.TreeFailed, match="cannot be read or created"):
        loaded(root)


def into_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def into_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def into_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("moved")))


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda key: key.write_bytes(b"short"), "has 5 bytes"),
        (lambda key: key.write_bytes(bytes(100)), "has 33 bytes or more"),
        (lambda key: key.chmod(0o640), "chmod 600"),
        (lambda key: key.parent.chmod(0o755), "chmod 700"),
        (into_link, "is a symbolic link"),
        (into_directory, "is no file"),
        (into_pipe, "is no file"),
    ],
    ids=["short", "long", "open", "open directory", "link", "directory", "pipe"],
)
def test_a_key_that_cannot_be_used(state: Path, root: Path, spoil: Callable[[Path], object], message: str) -> None:
    """It is refused with what to do, and nothing is written to the tree."""
    loaded(root)
    spoil(state / "tree.key")
    build(root, {})
    with pytest.raises(sw.TreeFailed, match=message):
        change(root, {}, {"a": file(b"x")})
    assert names(root) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only the superuser gives files away")
@pytest.mark.parametrize("what", ["tree.key", "."])
def test_a_key_of_another_user(state: Path, root: Path, what: str) -> None:
    loaded(root)
    os.chown(state / what, 1234, 1234)
    with pytest.raises(sw.TreeFailed, match="another user's"):
        loaded(root)


def test_a_directory_that_cannot_be_made(state: Path, root: Path) -> None:
    state.parent.parent.write_bytes(b"")
    with pytest.raises(sw.TreeFailed, match="XDG_STATE_HOME"):
        loaded(root)


@pytest.mark.parametrize("below", ["", "deep/er"])
def test_a_key_in_the_tree(root: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    """It would be part of what a plan may change; also when a link leads there. Nothing is created."""
    build(root, {})
    (root.parent / "link").symlink_to(root)
    for given in (root / below, root.parent / "link" / below):
        monkeypatch.setenv("XDG_STATE_HOME", str(given))
        with pytest.raises(sw.TreeFailed, match="outside of it"):
            change(root, {}, {"a": file(b"x")})
    assert (kept(root), names(root)) == (set(), [])
