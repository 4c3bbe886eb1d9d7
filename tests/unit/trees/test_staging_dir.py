"""A `.stepwell` that came with a tree: nothing in it is believed, opened through, waited for, changed or removed."""

import errno
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.trees import recovery, staging_dir
from stepwell.trees.lock import RootLock
from stepwell.trees.sealed_name import RootIdentity
from tests.support.planted import ATTACKS, plant_all, snapshot
from tests.support.trees import (
    Tree,
    build,
    change,
    committed,
    directory_of,
    file,
    finalize,
    kept,
    killed_at,
    read,
    recover,
    undo_committed,
)

BEFORE: Tree = {"a": file(b"old")}
AFTER: Tree = {"a": file(b"new"), "b": file(b"b")}
OURS = ("root/a", "root/b", "root/.stepwell/lock", "root/.stepwell/.gitignore")


@pytest.fixture(autouse=True)
def no_reading_of_planted_files(root: Path) -> Iterator[None]:
    """A directory without a seal is not opened, so that no content of it can do harm."""
    assert not root.exists()
    opened = os.open

    def open_unplanted(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        assert not str(path).startswith("evil-"), path
        return opened(path, flags, mode, dir_fd=dir_fd)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "open", open_unplanted)
        yield


def untrusted(root: Path) -> dict[str, str]:
    """The reason for each directory that a recovery leaves alone."""
    with RootLock(root) as lock:
        recovery.recover(lock)
        return {Path(each.path).name: each.reason for each in recovery.untrusted(lock)}


def interrupted(root: Path, at: str = "t-1.done") -> Path:
    """The directory of a transaction whose process was killed before a rename."""
    build(root, BEFORE)
    assert killed_at(("rename", at), lambda: change(root, BEFORE, AFTER))
    [name] = kept(root)
    return directory_of(root, name)


def test_planted_at_every_stage(root: Path) -> None:
    """Recovering, asking, finalizing, undoing and changing leave them and everything outside as they are."""
    build(root, BEFORE)
    plant_all(root)
    before = snapshot(root.parent, *OURS)
    recover(root)
    assert committed(root) == []
    for name in ATTACKS:
        for end in (finalize, undo_committed):
            with pytest.raises(sw.NotFound):
                end(root, name.partition(".")[0])
    change(root, BEFORE, AFTER)
    assert (root / "a").read_bytes() == b"new"
    assert snapshot(root.parent, *OURS) == before
    assert untrusted(root).keys() == ATTACKS.keys()


@pytest.mark.parametrize("stage", ["staging", "open", "done", "spent", "left"])
def test_names_of_our_own_transaction(root: Path, stage: str) -> None:
    """A planted directory with the name of the transaction that is about to begin is not in its way."""
    build(root, BEFORE)
    planted = root / ".stepwell" / f"t-1.{stage}"
    planted.mkdir(parents=True)
    (planted / "log").write_bytes(b"planted")
    change(root, BEFORE, AFTER)
    assert (read(root), kept(root)) == (AFTER, {planted.name})
    assert (planted / "log").read_bytes() == b"planted"


@pytest.mark.parametrize("at", ["t-1.done", "t-1.spent"])
def test_copies_of_a_genuine_transaction(root: Path, at: str) -> None:
    """Neither in another root, nor under another name or stage, nor with another key is it a transaction."""
    genuine = interrupted(root, at)
    name, seal, stage = genuine.name.split(".")
    other = build(root.parent / "other", AFTER)
    copies = [other / ".stepwell" / genuine.name]
    copies += [genuine.with_name(f"t-2.{seal}.{stage}")]
    copies += [genuine.with_name(f"{name}.{seal}.{each}") for each in ("open", "done", "left") if each != stage]
    for copy in copies:
        shutil.copytree(genuine, copy)
    assert untrusted(other).keys() == {genuine.name}
    assert (read(other), committed(other)) == (AFTER, [])
    assert untrusted(root).keys() == {copy.name for copy in copies[1:]}
    assert read(root) == (BEFORE if stage == "open" else AFTER)
    for copy in copies:
        shutil.rmtree(copy)


def test_another_users_key(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported under one key, and recovered under the right one."""
    genuine = interrupted(root)
    with monkeypatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        assert untrusted(root).keys() == {genuine.name}
        assert read(root) == AFTER
    assert untrusted(root) == {}
    assert read(root) == BEFORE


@pytest.mark.parametrize("file_system, is_recovered", [(5, True), (6, False)])
def test_after_a_start_of_the_machine(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_system: int,
    is_recovered: bool,  # noqa: FBT001
) -> None:
    """The number of the device may be another one then, and the id of the file system says that it is the same."""

    def start_with(device: int, file_system: int) -> None:
        monkeypatch.setattr(RootIdentity, "of", lambda root: RootIdentity(os.fstat(root).st_ino, device, file_system))

    start_with(1, 5)
    genuine = interrupted(root)
    start_with(2, file_system)
    assert untrusted(root).keys() == (set() if is_recovered else {genuine.name})
    assert read(root) == (BEFORE if is_recovered else AFTER)


def test_a_link_with_a_genuine_name(root: Path) -> None:
    """A transaction's directory that was moved and replaced by a link, or a file, is not followed or opened."""
    genuine = interrupted(root)
    moved = genuine.rename(root.parent / "moved")
    before = snapshot(moved)
    for replace in (lambda: genuine.symlink_to(moved), lambda: genuine.write_bytes(b"")):
        replace()
        assert untrusted(root) == {genuine.name: "it is no directory"}
        assert (read(root), snapshot(moved)) == (AFTER, before)
        genuine.unlink()
    moved.rename(genuine)
    assert untrusted(root) == {}
    assert read(root) == BEFORE


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        descriptor = os.open(path.parent, os.O_PATH)
        listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
        os.close(descriptor)


PLANTED_FILES: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, outside: path.symlink_to(outside),
    "dangling link": lambda path, outside: path.symlink_to(outside.with_name("none")),
    "second name": lambda path, outside: path.hardlink_to(outside),
    "directory": lambda path, _: path.mkdir(),
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": lambda path, _: socket_at(path),
}


@pytest.mark.parametrize("plant_file", PLANTED_FILES.values(), ids=PLANTED_FILES)
def test_a_planted_lock(root: Path, plant_file: Callable[[Path, Path], object]) -> None:
    """It is refused at once, with what to do, and the file that it leads to stays as it is."""
    build(root, BEFORE)
    outside = root.parent / "outside"
    outside.write_bytes(b"outside")
    (root / ".stepwell").mkdir()
    plant_file(root / ".stepwell/lock", outside)
    with pytest.raises(sw.EscapesRoot, match="move it away"):
        change(root, BEFORE, AFTER)
    assert (read(root), outside.read_bytes(), kept(root)) == (BEFORE, b"outside", set())
    assert not outside.with_name("none").exists()


def test_a_lock_that_cannot_be_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error of the file system is reported as one."""
    build(root, BEFORE)
    opened = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "lock":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, mode, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(sw.TreeFailed, match="cannot be locked: permission denied"):
            change(root, BEFORE, AFTER)


@pytest.mark.parametrize("name", [".gitignore", ".gitignore.draft"])
@pytest.mark.parametrize("plant_file", PLANTED_FILES.values(), ids=PLANTED_FILES)
def test_a_planted_ignore_file(root: Path, name: str, plant_file: Callable[[Path, Path], object]) -> None:
    """It is not in the way, and not written through."""
    build(root, BEFORE)
    outside = root.parent / "outside"
    outside.write_bytes(b"outside")
    (root / ".stepwell").mkdir()
    plant_file(root / ".stepwell" / name, outside)
    before = snapshot(root / ".stepwell", ".gitignore" if name.endswith("draft") else "lock")
    change(root, BEFORE, AFTER)
    assert (read(root), outside.read_bytes()) == (AFTER, b"outside")
    after = snapshot(root / ".stepwell")
    assert before.items() <= after.items()


def test_a_planted_staging_directory_that_is_a_file(root: Path) -> None:
    build(root, BEFORE | {".stepwell": file(b"x")})
    with pytest.raises(sw.EscapesRoot, match="move it away"):
        change(root, BEFORE, AFTER)
    assert staging_dir.has_staging_dir(root) is False
