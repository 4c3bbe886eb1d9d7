"""Addresses: a socket that only its user can reach, in a directory that only its user can enter."""

import fcntl
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.errors import InvalidArgument, RuntimeLost, StartFailed, StoreFailed
from stepwell.transport import address as address_module
from stepwell.transport.address import (
    ADDRESS_VARIABLE,
    Credentials,
    credentials,
    default_address,
    dial,
    listen,
    private_directory,
    remove_dead_directories,
)
from stepwell.transport.restart_lock import RestartLock
from tests.support.wait import eventually


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private directory with a short name, emptied afterwards."""
    made = private_directory()
    yield made
    for file in made.iterdir():
        file.unlink()
    made.rmdir()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_socket_is_for_its_user_alone(directory: Path) -> None:
    """0600 in 0700, whatever the umask says."""
    before = os.umask(0)
    try:
        with listen(str(directory / "s")):
            assert mode(directory / "s") == 0o600
            assert mode(directory) == 0o700
    finally:
        os.umask(before)


def test_missing_directory_is_made_private(directory: Path) -> None:
    """Made on the way, it is nobody else's either."""
    inner = directory / "inner"
    with listen(str(inner / "s")):
        assert mode(inner) == 0o700
    (inner / "s").unlink()
    inner.rmdir()


@pytest.mark.parametrize("open_to", [0o770, 0o707, 0o755, 0o701])
def test_open_directory_is_refused(directory: Path, open_to: int) -> None:
    """A directory that others can enter gets no socket, and the error says how to make one."""
    directory.chmod(open_to)
    with pytest.raises(StartFailed, match="mkdir -m 700"):
        listen(str(directory / "s"))
    assert not (directory / "s").exists()


def test_somebody_elses_directory_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private, but not ours."""
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    with pytest.raises(StartFailed, match="open to other users"):
        listen(str(directory / "s"))


def test_directory_that_is_a_file_is_refused(directory: Path) -> None:
    """What cannot be a directory is said to be the trouble."""
    (directory / "file").touch()
    with pytest.raises(StartFailed, match="cannot use the directory"):
        listen(str(directory / "file" / "s"))


def test_stale_socket_is_replaced(directory: Path) -> None:
    """A manager that was killed leaves its socket; the next one takes its place."""
    address = str(directory / "s")
    listen(address).close()
    with listen(address), dial(address):
        pass


def test_live_socket_is_refused(directory: Path) -> None:
    """Nobody takes the place of a manager that serves."""
    address = str(directory / "s")
    with listen(address) as first:
        with pytest.raises(StartFailed, match="already serves"):
            listen(address)
        with dial(address):
            first.accept()[0].close()


def test_busy_manager_is_not_taken_for_a_dead_one(directory: Path) -> None:
    """A full backlog refuses nobody: its socket is left alone."""
    address = str(directory / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(0)
        with dial(address), pytest.raises(StartFailed, match="already serves"):
            listen(address)
    assert (directory / "s").exists()


def test_other_files_are_left_alone(directory: Path) -> None:
    """Whatever is there and is no socket is not ours to remove."""
    file = directory / "s"
    file.write_text("precious")
    with pytest.raises(StartFailed, match="no socket"):
        listen(str(file))
    assert file.read_text() == "precious"


def test_what_the_kernel_refuses_is_said(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reason is quoted, and nothing is left open."""

    def refuse(_path: Path, _mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(StartFailed, match=r"cannot listen .*Operation not permitted"):
        listen(str(directory / "s"))


@pytest.mark.parametrize("address", ["", "a\0b", "x" * 108, "\u20ac" * 40])
def test_address_that_cannot_be_one_is_refused(address: str) -> None:
    """Empty, with a NUL, or longer than the kernel takes, in bytes."""
    for use in (listen, dial):
        with pytest.raises(InvalidArgument, match="path"):
            use(address)


def test_longest_address_works(directory: Path) -> None:
    """107 bytes are allowed."""
    address = str(directory / "s").ljust(107, "s")
    with listen(address), dial(address):
        pass


def test_nobody_there_says_what_to_do(directory: Path) -> None:
    """No socket, or nobody behind it: start one."""
    for address in (directory / "absent", directory / "stale"):
        if address.name == "stale":
            listen(str(address)).close()
        with pytest.raises(RuntimeLost, match="stepwell serve") as caught:
            dial(str(address))
        assert caught.value.details == {"address": str(address)}


def test_another_users_manager_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever listens there is not ours to trust."""
    address = str(directory / "s")
    with listen(address):
        monkeypatch.setattr(address_module, "credentials", lambda _: Credentials(1, os.geteuid() + 1, 0))
        with pytest.raises(RuntimeLost, match="another user's"):
            dial(address)


def test_credentials_are_the_kernels(directory: Path) -> None:
    """Who is at the other end is not asked of the other end."""
    address = str(directory / "s")
    with listen(address) as listener, dial(address):
        accepted, _ = listener.accept()
        with accepted:
            assert credentials(accepted) == (os.getpid(), os.getuid(), os.getgid())


def test_private_directory_is_where_runtime_files_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In XDG_RUNTIME_DIR if there is one, else where temporary files go."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    inside = private_directory()
    assert (inside.parent, mode(inside)) == (tmp_path, 0o700)
    inside.rmdir()
    for unusable in ("", str(tmp_path / "absent")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        outside = private_directory()
        assert (outside.parent != tmp_path, mode(outside)) == (True, 0o700)
        outside.rmdir()


# The address of programs that are given none.


def test_default_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment, else in the runtime directory, else in the temporary directory under the user's number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: 4711)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(ADDRESS_VARIABLE, "relative.sock")
    assert default_address() == str(tmp_path / "relative.sock")
    monkeypatch.setenv(ADDRESS_VARIABLE, "")
    assert default_address() == str(tmp_path / "stepwell" / "manager.sock")
    monkeypatch.delenv(ADDRESS_VARIABLE)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert default_address() == str(tmp_path / "stepwell-4711" / "manager.sock")


def test_another_users_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may write to the temporary directory, and may have made this name first. An address helps."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("os.getuid", lambda: 4711)
    (tmp_path / "stepwell-4711").mkdir()
    with pytest.raises(InvalidArgument, match=f"belongs to another user: give an address, or set {ADDRESS_VARIABLE}"):
        default_address()
    with pytest.raises(RuntimeLost, match="no manager"):  # which does not need the default address
        dial(str(tmp_path / "absent"))
    monkeypatch.setenv(ADDRESS_VARIABLE, "/a.sock")
    assert default_address() == "/a.sock"


def test_missing_manager_is_an_error_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command starts a manager at the address that was tried, also if it is not the default one."""
    monkeypatch.setenv(ADDRESS_VARIABLE, str(tmp_path / "m.sock"))
    advice = "or give the address of a running one, as an argument or in STEPWELL_ADDRESS"
    with pytest.raises(RuntimeLost, match=f"start one with `stepwell serve`, {advice}"):
        dial(default_address())
    with pytest.raises(RuntimeLost, match=f"start one with `stepwell serve --address '{tmp_path}/a b'`, {advice}"):
        dial(str(tmp_path / "a b"))


# Directories that managers left behind.

OLD_SECONDS = limits.SOCKET_DIRECTORY_SECONDS + 60


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of private directories, and of temporary files, of this test alone."""
    with tempfile.TemporaryDirectory(prefix="sw-") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def aged(directory: Path) -> Path:
    """A directory in which nothing has happened for long."""
    long_ago_s = time.time() - OLD_SECONDS
    os.utime(directory, (long_ago_s, long_ago_s))
    return directory


def killed(directory: Path) -> Path:
    """A directory as a manager leaves it that is killed."""
    listen(str(directory / "manager.sock")).close()
    return directory


@pytest.mark.usefixtures("base")
def test_dead_directories_are_removed() -> None:
    """Those with a dead socket at once, an empty one when it is old."""
    dead, empty = killed(private_directory()), aged(private_directory())
    assert remove_dead_directories() == 2
    assert not dead.exists()
    assert not empty.exists()


def test_live_directories_stay(base: Path) -> None:
    """A manager listens, is about to listen, or has just made its directory."""
    listening, starting, fresh = (private_directory() for _ in range(3))
    killed(starting)
    with listen(str(listening / "manager.sock")):
        locked = os.open(starting, os.O_RDONLY)
        try:
            fcntl.flock(locked, fcntl.LOCK_EX)
            assert remove_dead_directories() == 0
        finally:
            os.close(locked)
        dial(str(listening / "manager.sock")).close()
    assert {each.name for each in base.iterdir()} == {each.name for each in (listening, starting, fresh)}


@pytest.mark.usefixtures("base")
def test_full_backlog_is_no_dead_socket() -> None:
    """A manager that has not accepted for a while does not refuse: connecting would block."""
    directory = private_directory()
    address = str(directory / "manager.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as waiting:
        listener.bind(address)
        listener.listen(0)
        waiting.connect(address)
        assert remove_dead_directories() == 0
        assert directory.exists()


def restarted(directory: Path) -> RestartLock:
    """The restart lock of a program whose manager was killed."""
    return RestartLock(str(killed(directory) / "manager.sock"))


@pytest.mark.usefixtures("base")
def test_directory_with_a_restart_lock() -> None:
    """It stays while a program holds the lock, and is removed when that program is dead."""
    lock = restarted(directory := private_directory())
    aged(directory)
    assert remove_dead_directories() == 0
    lock.release()
    os.utime(directory)
    assert remove_dead_directories() == 1
    assert not directory.exists()


@pytest.mark.usefixtures("base")
def test_directory_of_a_manager_that_was_given_up() -> None:
    """It stays for as long as clients may ask why."""
    lock = restarted(directory := private_directory())
    lock.write_cause(StoreFailed("the disk is full"))
    lock.release()
    assert remove_dead_directories() == 0
    aged(directory)
    assert remove_dead_directories() == 1
    assert not directory.exists()


def test_everything_else_stays(base: Path) -> None:
    """What no manager can have left: other names, modes, contents and links, and what they point to."""
    target = killed(private_directory()).rename(base / "target")
    other = base / "stepwell-notes"
    other.mkdir(0o700)
    (base / "stepwell-linked__").symlink_to(target)
    (base / "stepwell-afile___").touch()
    open_to_others = killed(private_directory())
    open_to_others.chmod(0o755)
    with_file = private_directory()
    (with_file / "manager.sock").touch()
    with_more = killed(private_directory())
    (with_more / "notes").touch()
    with_link = private_directory()
    (with_link / "manager.sock").symlink_to(target / "manager.sock")
    with_pipe = killed(private_directory())
    os.mkfifo(with_pipe / "manager.sock.restarts")
    with_linked_lock = killed(private_directory())
    (with_linked_lock / "manager.sock.restarts").symlink_to(base / "stepwell-afile___")
    for each in (other, with_file, with_more, with_link, with_pipe, with_linked_lock):
        aged(each)
    before = {path: path.lstat().st_ino for path in base.rglob("*")}
    assert remove_dead_directories() == 0
    assert {path: path.lstat().st_ino for path in base.rglob("*")} == before


@pytest.mark.usefixtures("base")
def test_directory_of_another_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sticky bit of the temporary directory would protect it, too; root is not bound by that."""
    dead, empty = killed(private_directory()), aged(private_directory())
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert remove_dead_directories() == 0
    assert dead.exists()
    assert empty.exists()


@pytest.mark.usefixtures("base")
def test_number_of_removed_directories_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start removes more of them."""
    monkeypatch.setattr(limits, "SOCKET_DIRECTORIES_MAX", 2)
    for _ in range(3):
        killed(private_directory())
    assert [remove_dead_directories() for _ in range(3)] == [2, 1, 0]


def test_missing_base_is_no_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to remove then."""
    monkeypatch.setattr(tempfile, "tempdir", str(base / "missing"))
    assert remove_dead_directories() == 0


def _locks() -> list[str]:
    """The locks of the machine, and those that are waited for."""
    return Path("/proc/locks").read_text().splitlines()


@pytest.mark.usefixtures("base")
def test_directory_that_is_removed_before_it_is_locked_is_made_again() -> None:
    """A manager that waits for the lock of a directory while another one removes it listens all the same."""
    directory = private_directory()
    held = os.open(directory, os.O_RDONLY)
    listening: list[socket.socket] = []
    thread = threading.Thread(target=lambda: listening.append(listen(str(directory / "manager.sock"))))
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        thread.start()
        inode = os.fstat(held).st_ino
        eventually(lambda: any(f":{inode} " in line and "->" in line for line in _locks()))
        directory.rmdir()
    finally:
        os.close(held)
        thread.join(60)
    with listening[0]:
        dial(str(directory / "manager.sock")).close()


def test_directory_that_is_removed_each_time_is_an_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts are bounded, and the error says what to do."""
    monkeypatch.setattr(address_module, "_require_private", lambda _: None)
    with pytest.raises(StartFailed, match="removed again and again"):
        listen(str(base / "missing" / "manager.sock"))
