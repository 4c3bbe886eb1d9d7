"""Sessions: their processes, the bounds on both, and a manager that has no descriptor left to look at a process."""

import errno
import os
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.errors import Busy, OutcomeUnknown
from stepwell.manager.sessions import SessionRecord, SessionTable
from stepwell.storage.store import SessionRow
from stepwell.transport.kernel import Kernel
from tests.support.processes import fork

GONE = 2**30
"""A process id that no process has."""


@pytest.fixture
def table() -> Iterator[SessionTable]:
    with closing(SessionTable()) as made:
        yield made


def pidfds() -> int:
    """The number of pidfds that this process has open."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them is gone
            found += "pidfd" in str(each.readlink())
    return found


def test_sessions_of_one_process_share_a_pidfd(table: SessionTable) -> None:
    """It is closed with the last of them."""
    before = pidfds()
    joined = [table.join(str(number), None, os.getpid()) for number in range(50)]
    assert pidfds() == before + 1
    (pidfd,) = {each.pidfd for each in joined}
    assert pidfd is not None
    assert table.by_pidfd(pidfd) == joined
    for session in joined:
        assert pidfds() == before + 1
        table.remove(session)
    assert pidfds() == before
    assert table.by_pidfd(pidfd) == []


def test_sessions_of_one_process_are_bounded(table: SessionTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process gets Busy; others, and its own known sessions, do not."""
    monkeypatch.setattr(limits, "SESSIONS_PER_PROCESS_MAX", 2)
    for number in range(2):
        table.join(str(number), None, os.getpid())
    with pytest.raises(Busy, match="2 sessions already"):
        table.join("one more", None, os.getpid())
    table.join("0", None, os.getpid())
    table.join("another process", None, os.getppid())
    assert "one more" not in table


def test_processes_are_bounded() -> None:
    """Each costs a descriptor."""
    with closing(SessionTable(processes_max=1)) as table:
        table.join("a", None, os.getpid())
        table.join("b", None, os.getpid())
        with pytest.raises(Busy, match="1 processes"):
            table.join("c", None, os.getppid())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("call", ["open", "pidfd_open"])
def test_shortage_is_not_an_invisible_process(
    table: SessionTable, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """A process that only cannot be looked at now must not get a session that outlives it."""

    def fail(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    if call == "open":
        monkeypatch.setattr(Path, "read_text", fail)
    else:
        monkeypatch.setattr(os, "pidfd_open", fail)
    with pytest.raises(Busy, match="ulimit -n"):
        table.join("a", None, os.getpid())
    assert len(table) == 0


def test_process_that_is_gone_has_no_identity() -> None:
    """And no pidfd; that is no shortage."""
    assert Kernel().process_identity(GONE) == ""
    assert Kernel().open_pidfd(GONE) is None


def test_restored_sessions() -> None:
    """Those of living processes are watched, those of dead ones end at once, and what cannot be known has the grace."""
    child = fork(lambda: None)
    os.waitpid(child, 0)
    mine, parents = Kernel().process_identity(os.getpid()), Kernel().process_identity(os.getppid())
    rows = [
        SessionRow("mine", None, os.getpid(), mine),
        SessionRow("mine too", None, os.getpid(), mine),
        SessionRow("reused", None, os.getpid(), "boot/1"),
        SessionRow("dead", None, child, "boot/2"),
        SessionRow("unseen", None, GONE, ""),
        SessionRow("too many", None, os.getppid(), parents),
    ]
    with closing(SessionTable(processes_max=1)) as table:
        before = pidfds()
        table.restore(rows, [], [], 100.0)
        assert pidfds() == before + 1
        assert {each.session_id for each in table.expired(100.0)} == {"reused", "dead"}
        assert {each.session_id for each in table if each.pidfd is not None} == {"mine", "mine too"}
        assert len(table.expired(100.0 + limits.SESSION_GRACE_SECONDS)) == len(rows)


@pytest.mark.parametrize("soft, bound", [(256, 64), (1_024, 256), (65_536, limits.PEERS_MAX), (-1, limits.PEERS_MAX)])
def test_bounds_follow_from_the_limit(monkeypatch: pytest.MonkeyPatch, soft: int, bound: int) -> None:
    """Half of the descriptors is left for the store, the memory and its passing; -1 is no limit."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, soft))
    assert Kernel().descriptor_bounds() == (bound, bound)


def test_remembered_replies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number: the smallest requests are forgotten, in whatever order they were answered."""
    monkeypatch.setattr(limits, "REPLIES_REMEMBERED_MAX", 3)
    session = SessionRecord(SessionRow("s", None, GONE, ""), None)
    for request_id in (1, 3, 2, 5, 4):
        session.remember(request_id, b"reply")
    assert ({*session.replies}, session.remembered_bytes) == ({3, 4, 5}, 3 * len(b"reply"))
    with pytest.raises(OutcomeUnknown):
        session.recall(2, 0)
    assert session.recall(5, 4) == b"reply"
    assert ({*session.replies}, session.remembered_bytes) == ({4, 5}, 2 * len(b"reply"))


def test_remembered_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest reply stays, however large it is."""
    monkeypatch.setattr(limits, "REPLIES_REMEMBERED_BYTES_MAX", 10)
    session = SessionRecord(SessionRow("s", None, GONE, ""), None)
    session.remember(1, bytes(6))
    session.remember(2, bytes(20))
    assert ({*session.replies}, session.remembered_bytes) == ({2}, 20)
