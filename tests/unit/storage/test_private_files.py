"""A data directory is its user's alone: others may not enter it, and no link in it leads elsewhere."""

from __future__ import annotations

import os
import stat
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.domain.tiers.body_refs import digest_of
from stepwell.errors import InvalidArgument, StartFailed, StoreFailed
from stepwell.manager.check.doctor import examine
from stepwell.storage.backup import back_up
from stepwell.storage.body_reader import BodyFile
from stepwell.storage.files import private_files
from stepwell.storage.files.directory import DATABASE, LOCK, DataDirectory
from stepwell.storage.files.mark import MARK
from stepwell.storage.store import Durability
from tests.support.storage.state import durable_state, fill

FILES = (LOCK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", MARK, f"{MARK}.new")
READ = (LOCK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", MARK)
"""The files that the tools which only read look at."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with durable_state(tmp_path / "data", durability=Durability.DISK) as made:
        fill(made)
    return tmp_path / "data"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user that a link in the directory leads to."""
    path = tmp_path / "victim"
    path.write_bytes(b"precious " * 1_000)
    return path


def start(directory: Path) -> None:
    with durable_state(directory):
        pass


def state_of(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Names, modes, kinds and contents of a directory, and of the directory itself."""
    found = {each.name: each for each in (directory, *directory.iterdir())}
    return {name: (each.lstat().st_mode, each.lstat().st_ino, contents(each)) for name, each in found.items()}


def contents(path: Path) -> bytes:
    return path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else b""


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o750, 0o701, 0o710])
def test_directory_that_others_may_enter(data: Path, mode: int) -> None:
    """It is not used, and not changed: the user is told the command. Reading tools say the same."""
    data.chmod(mode)
    before = state_of(data)
    advice = rf"mode {mode:04o}\): run `chmod 700 {data}`"
    with pytest.raises(StartFailed, match=advice):
        start(data)
    with pytest.raises(InvalidArgument, match=advice):
        examine(data, lambda _encoding: None)
    with pytest.raises(InvalidArgument, match=advice):
        back_up(data, data.with_name("copy"))
    with closing(BodyFile(str(data / DATABASE))) as file, pytest.raises(StoreFailed, match=advice):
        file.read(digest_of(b""), 1)
    assert state_of(data) == before
    data.chmod(0o700)
    start(data)


def test_empty_directory_that_others_may_enter(tmp_path: Path) -> None:
    """Nothing is written there."""
    (tmp_path / "data").mkdir(mode=0o755)
    with pytest.raises(StartFailed, match="chmod 700"):
        start(tmp_path / "data")
    assert not [*(tmp_path / "data").iterdir()]


def test_directory_of_another_user(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not used, whatever its mode is."""
    monkeypatch.setattr(os, "geteuid", lambda: data.stat().st_uid + 1)
    with pytest.raises(StartFailed, match=f"belongs to user {data.stat().st_uid}"):
        start(data)
    with pytest.raises(InvalidArgument, match="belongs to user"):
        examine(data, lambda _encoding: None)


@pytest.mark.parametrize("name", FILES)
def test_planted_link(data: Path, victim: Path, name: str) -> None:
    """It is not followed: what it leads to is as before."""
    (data / name).unlink(missing_ok=True)
    (data / name).symlink_to(victim)
    before = (victim.read_bytes(), victim.stat().st_mode)
    with pytest.raises((StartFailed, StoreFailed), match=f"'{name}' in it is a symbolic link"):
        start(data)
    assert (victim.read_bytes(), victim.stat().st_mode) == before


@pytest.mark.parametrize("name", READ)
def test_planted_link_is_not_read(data: Path, victim: Path, name: str) -> None:
    """Neither by the doctor nor by a backup."""
    target = data.rename(data.with_name("elsewhere")) / DATABASE if name == DATABASE else victim
    data.mkdir(mode=0o700, exist_ok=True)
    if name != DATABASE:
        (data / DATABASE).write_bytes((data / DATABASE).read_bytes())
        (data / name).unlink(missing_ok=True)
    (data / name).symlink_to(target)
    with pytest.raises(InvalidArgument, match=f"'{name}' in it is a symbolic link"):
        examine(data, lambda _encoding: None)
    with pytest.raises(InvalidArgument, match="symbolic link"):
        back_up(data, data.with_name("copy"))
    assert not data.with_name("copy").exists()


def test_hard_link(data: Path, victim: Path) -> None:
    """A second name of another file is not written through."""
    (data / LOCK).unlink()
    (data / LOCK).hardlink_to(victim)
    before = victim.read_bytes()
    with pytest.raises(StartFailed, match="'lock' in it has 2 names"):
        start(data)
    assert victim.read_bytes() == before


def test_file_that_is_exchanged_before_it_is_opened(data: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open file is examined too, not only its name before; and a link is not followed by the kernel either."""
    monkeypatch.setattr(private_files, "require_private_file", lambda _path: None)
    (data / LOCK).unlink()
    (data / LOCK).hardlink_to(victim)
    with pytest.raises(StartFailed, match="'lock' in it has 2 names"):
        start(data)
    (data / LOCK).unlink()
    (data / LOCK).symlink_to(victim)
    with pytest.raises(StartFailed, match="Too many levels of symbolic links"):
        start(data)


def test_pipe_in_the_place_of_the_lock(data: Path) -> None:
    """Opening it would wait for another process."""
    (data / LOCK).unlink()
    os.mkfifo(data / LOCK)
    with pytest.raises(StartFailed, match="'lock' in it is no regular file"):
        start(data)


def test_file_of_another_user(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a directory of this user."""
    found = Path.lstat

    def of_another(path: Path) -> os.stat_result:
        status = found(path)
        return os.stat_result((*status[:4], status.st_uid + 1, *status[5:])) if path.name == DATABASE else status

    monkeypatch.setattr(Path, "lstat", of_another)
    with pytest.raises(StartFailed, match=f"'{DATABASE}' in it belongs to user"):
        start(data)


def test_link_that_the_user_gives(data: Path) -> None:
    """It may lead to a directory of the user: it is the user's own way to name it."""
    link = data.with_name("link")
    link.symlink_to(data)
    start(link)
    assert examine(link, lambda _encoding: None).checks
    data.chmod(0o755)
    with pytest.raises(StartFailed, match="chmod 700"):
        start(link)


def test_mode_of_the_files(data: Path) -> None:
    """They are for their user alone, whatever the umask allows."""
    umask = os.umask(0)
    try:
        with durable_state(data.with_name("open"), durability=Durability.DISK) as made:
            fill(made)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in data.with_name("open").iterdir()}
    finally:
        os.umask(umask)
    assert {LOCK, DATABASE, f"{DATABASE}-wal", MARK} <= {*modes}
    assert {*modes.values()} == {0o600}


def test_mode_of_a_directory_that_is_made(tmp_path: Path) -> None:
    """The umask may take access away from the user itself: then nothing could be written."""
    before = os.umask(0o177)
    try:
        DataDirectory(tmp_path / "above" / "data", "test").close()
    finally:
        os.umask(before)
    for path in (tmp_path / "above", tmp_path / "above" / "data"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
