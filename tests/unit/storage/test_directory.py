"""A data directory is one manager's, and nobody else's; what cannot be one is said."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.errors import StartFailed
from stepwell.storage.files.directory import DATABASE, LOCK, DataDirectory
from stepwell.storage.files.mark import MARK
from tests.support.storage.state import durable_state, fill

HOLD = """
import sys
from stepwell.storage.files.directory import DataDirectory
directory = DataDirectory(sys.argv[1], "/run/elsewhere.sock")
print("held", flush=True)
input()
directory.close()
"""


@contextmanager
def held(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process has the directory."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def refused(path: str | Path, reason: str) -> None:
    """It cannot be used, and the message names it."""
    with pytest.raises(StartFailed, match=reason) as caught:
        DataDirectory(path, "test")
    assert repr(str(Path(path).absolute())) in caught.value.message


def test_second_opener_is_told_who_has_it(tmp_path: Path) -> None:
    """The process, and where it listens: one can connect to it, or stop it."""
    with held(tmp_path) as process:
        refused(tmp_path, f"in use by process {process.pid}, which listens at '/run/elsewhere.sock'")


def test_lock_goes_with_the_process_however_it_ends(tmp_path: Path) -> None:
    """After kill -9 the next one has it; then it is that one's name that is told."""
    with held(tmp_path) as process:
        process.kill()
        process.wait()
        directory = DataDirectory(tmp_path, "mine")
        try:
            refused(tmp_path, f"in use by process {os.getpid()}, which listens at 'mine'")
        finally:
            directory.close()


def test_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """Two managers in one program would be two writers, too."""
    with durable_state(tmp_path), pytest.raises(StartFailed, match=f"process {os.getpid()}"), durable_state(tmp_path):
        pass
    with durable_state(tmp_path) as made:
        assert made.owner.stored is not None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"pid": 1}', b"\xff\xfe", b"{}" * 5_000])
def test_holder_that_cannot_be_read_is_a_holder_all_the_same(tmp_path: Path, content: bytes) -> None:
    """On a full disk the lock may not say whose it is."""
    directory = DataDirectory(tmp_path, "test")
    try:
        (tmp_path / LOCK).write_bytes(content)
        refused(tmp_path, "in use by another manager")
    finally:
        directory.close()


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_nobody_else_can_read_anything(tmp_path: Path, mask: int) -> None:
    """Whatever the program's umask is: neither the directory, nor the lock, the database, its log and its index."""
    path = tmp_path / "a" / "data"
    before = os.umask(mask)
    try:
        with durable_state(path) as made:
            fill(made)
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.iterdir()}
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert modes == dict.fromkeys((LOCK, MARK, DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"), 0o600)


def test_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    refused(tmp_path / "data", "cannot be used: File exists")


def test_file_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    refused(tmp_path / "data" / "below", "cannot be used: (File exists|Not a directory)")


def test_directory_in_the_place_of_the_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    refused(tmp_path, "cannot be used: 'lock' in it is no regular file")


def test_directory_in_the_place_of_the_database(tmp_path: Path) -> None:
    """The lock is let go of."""
    (tmp_path / DATABASE).mkdir()
    for _ in range(2):
        with pytest.raises(StartFailed, match=DATABASE), durable_state(tmp_path):
            pass


@pytest.mark.parametrize("path", ["/proc/no/such/place", "/dev/null/data"])
def test_place_where_nothing_can_be_made(path: str) -> None:
    refused(path, "cannot be used")


def test_path_that_is_none() -> None:
    """The kernel cannot be asked for it at all."""
    refused("data\0dir", "cannot be used: .*embedded null")


@pytest.mark.parametrize("name", ["notes.txt", ".bashrc", "state.sqlite", "Lock", "stepwell.py"])
def test_directory_with_other_files_is_refused(tmp_path: Path, name: str) -> None:
    """It is somebody's directory and no data directory: the message names what is there, and nothing is put there."""
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / name).write_text("mine")
    directory.chmod(0o755)  # it would be refused for that, too, with an advice that does not help
    refused(directory, rf"has no database of stepwell, but other files \('{name}'\): give a new or an empty directory")
    assert [each.name for each in directory.iterdir()] == [name]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_only_the_first_other_files_are_named(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}\n").touch()
    refused(tmp_path, r"other files \('[0-3]\\n', '[0-3]\\n', '[0-3]\\n' and others\)")


@pytest.mark.parametrize("name", ["lost+found", ".gitignore", ".gitkeep", LOCK, MARK, f"{DATABASE}-wal"])
def test_directory_that_counts_as_empty(tmp_path: Path, name: str) -> None:
    """A new file system, a repository that has the directory, or a first start that was interrupted."""
    tmp_path.chmod(0o700)
    os.close(os.open(tmp_path / name, os.O_CREAT, 0o600))
    DataDirectory(tmp_path, "test").close()


def test_socket_may_be_in_the_data_directory(tmp_path: Path) -> None:
    """That of this manager, which listens before it opens the directory, or one that an earlier manager left."""
    (tmp_path / "m.sock.restarts").touch(0o600)
    for name in ("m.sock", "earlier.sock"):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / name))
    DataDirectory(tmp_path, str(tmp_path / "m.sock")).close()


def test_other_files_beside_a_database_are_left_alone(tmp_path: Path) -> None:
    """A directory that is ours may have notes, or a database of an earlier version."""
    with durable_state(tmp_path) as made:
        fill(made)
    (tmp_path / "notes.txt").write_text("mine")
    with durable_state(tmp_path) as made:
        assert made.owner.stored is not None
    assert (tmp_path / "notes.txt").read_text() == "mine"
