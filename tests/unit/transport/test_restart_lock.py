"""The lock beside a socket: it says that a program restarts the manager there, and why it does not any more."""

import os
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.errors import Busy, StartFailed, StoreFailed
from stepwell.transport import restart_lock
from stepwell.transport.address import listen
from stepwell.transport.restart_lock import RestartLock, is_restarting, read_cause
from tests.support.processes import fork, in_forked_child
from tests.support.wait import eventually


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "private" / "manager.sock")


def test_held_until_released(address: str) -> None:
    """Clients wait while the lock is held, and not before or afterwards, although the file stays."""
    assert not is_restarting(address)
    lock = RestartLock(address)
    assert [is_restarting(address) for _ in range(2)] == [True, True]
    lock.release()
    lock.release()
    assert not is_restarting(address)
    assert Path(f"{address}.restarts").exists()
    restart_lock.remove(address)
    restart_lock.remove(address)
    assert not Path(f"{address}.restarts").exists()


def test_only_its_user_can_read_it(address: str) -> None:
    """The file and the directory that was made for it are closed to others."""
    RestartLock(address).release()
    path = Path(f"{address}.restarts")
    assert [path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777] == [0o600, 0o700]


def test_one_program_at_a_time(address: str) -> None:
    """The second one is told that it cannot have the address, and takes nothing from the first."""
    lock = RestartLock(address)
    with pytest.raises(StartFailed, match="another program restarts the manager"):
        RestartLock(address)
    assert is_restarting(address)
    lock.release()
    RestartLock(address).release()


def test_killed_holder_leaves_no_lock(address: str) -> None:
    """The kernel releases the lock, so that no client waits for a program that is gone."""

    def hold_and_die() -> None:
        RestartLock(address)
        os._exit(0)

    in_forked_child(hold_and_die, is_measured=True)
    assert Path(f"{address}.restarts").exists()
    assert not is_restarting(address)


def test_forked_child_does_not_hold_it(address: str) -> None:
    """A child that outlives its parent's lock makes no client wait."""
    lock = RestartLock(address)
    reader, writer = os.pipe()

    def wait_for_the_end() -> None:
        os.close(writer)
        assert os.read(reader, 1) == b""

    child = fork(wait_for_the_end, is_measured=True)
    assert is_restarting(address)
    lock.release()
    eventually(lambda: not is_restarting(address))
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(reader)


def test_cause_is_read_until_it_is_over(address: str) -> None:
    """The error comes back as it was, from whichever process, and a restart takes it away."""
    lock = RestartLock(address)
    assert read_cause(address) is None
    lock.write_cause(StoreFailed("the disk is full", path="data"))
    lock.write_cause(Busy("no"))
    lock.write_cause(StoreFailed("the disk is full", path="data"))
    lock.release()
    found = read_cause(address)
    assert isinstance(found, StoreFailed)
    assert (found.message, found.details) == ("the disk is full", {"path": "data"})
    RestartLock(address).release()
    assert read_cause(address) is None


def test_long_cause_is_cut(address: str) -> None:
    """What does not fit into the file is left out, the details first: the file never grows."""
    lock = RestartLock(address)
    size = Path(f"{address}.restarts").stat().st_size
    lock.write_cause(StoreFailed("\0" * 10_000, paths=["x" * 1_000] * 100))
    found = read_cause(address)
    assert found is not None
    assert (found.message, found.details) == ("\0" * limits.ERROR_CHARS_MAX, {})
    assert Path(f"{address}.restarts").stat().st_size == size == limits.RESTART_LOCK_BYTES
    lock.release()


@pytest.mark.parametrize("content", [b"", b"no JSON", b"[1]", b"\xff" * 100, b" " * 100])
def test_file_of_another_kind_is_no_cause(address: str, content: bytes) -> None:
    """Only an error that was written there completely is one."""
    Path(address).parent.mkdir()
    Path(f"{address}.restarts").write_bytes(content)
    assert read_cause(address) is None
    assert not is_restarting(address)


def test_link_is_not_followed(address: str, tmp_path: Path) -> None:
    """Neither to lock nor to read: the file that it leads to stays as it is."""
    Path(address).parent.mkdir()
    (tmp_path / "other").write_text("precious")
    Path(f"{address}.restarts").symlink_to(tmp_path / "other")
    with pytest.raises(StartFailed, match="cannot be made"):
        RestartLock(address)
    assert (read_cause(address), is_restarting(address)) == (None, False)
    assert (tmp_path / "other").read_text() == "precious"


def test_manager_removes_a_lock_that_was_left(address: str) -> None:
    """The reason for the end of an earlier manager is not that of the next one; a lock that is held stays."""
    lock = RestartLock(address)
    lock.write_cause(StoreFailed("the disk was full"))
    listen(address).close()
    assert read_cause(address) is not None
    lock.release()
    listen(address).close()
    assert read_cause(address) is None
    assert not Path(f"{address}.restarts").exists()
