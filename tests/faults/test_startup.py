"""Kills in the moment in which a database is made, and what becomes of a manager whose directory vanishes."""

import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec

from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.storage.files.directory import DATABASE, DataDirectory
from stepwell.storage.files.store_files import StoreFiles
from stepwell.storage.sqlite import SqliteStore
from stepwell.storage.store import Durability
from tests.support import killable_manager
from tests.support.processes import fork
from tests.support.wait import promptly

JOURNAL = f"{DATABASE}-journal"
PAGE_BYTES = 4_096
NOTICED_SECONDS = 5.0
MAIN = "import sys; from stepwell.manager.process import main; sys.exit(main(sys.argv[1]))"


def begin(directory: Path) -> None:
    """A manager's first steps."""
    with closing(SqliteStore(StoreFiles(DataDirectory(directory, "test")), Durability.DISK, "estimate")) as store:
        store.load()
        store.start_writing()


def kill_at(size: int, directory: Path) -> None:
    """Begin, in a process that the kernel kills when a file grows past that size."""

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        begin(directory)

    assert os.waitstatus_to_exitcode(os.waitpid(fork(child), 0)[1]) == -signal.SIGXFSZ


class TestFirstStart:
    def test_kill_at_any_size(self, tmp_path: Path) -> None:
        """Whatever was written by then: the next start works, and the one after it."""
        sizes = [0, 1, 100, 511, 512, 600, 1_000, PAGE_BYTES - 1, PAGE_BYTES, 5_000, 20_000, 50_000]
        met_journals = 0
        for size in sizes:
            directory = tmp_path / str(size)
            kill_at(size, directory)
            met_journals += (directory / JOURNAL).exists()
            for _ in range(2):
                begin(directory)
        assert met_journals

    def test_kill_before_the_journal_is_removed(self, tmp_path: Path) -> None:
        """The first page is whole, and so is the journal that would undo it."""
        kill_at(1_000, tmp_path / "early")
        kill_at(PAGE_BYTES, tmp_path / "later")
        journal, database = (tmp_path / "early" / JOURNAL).read_bytes(), (tmp_path / "later" / DATABASE).read_bytes()
        assert (any(journal[:8]), len(database)) == (True, PAGE_BYTES)
        data = tmp_path / "data"
        data.mkdir(mode=0o700)
        (data / DATABASE).write_bytes(database)
        (data / JOURNAL).write_bytes(journal)
        for _ in range(2):
            begin(data)
        assert not (data / JOURNAL).exists()


def test_manager_whose_directory_vanishes_stops(settings: Settings, tmp_path: Path) -> None:
    """By itself, though nobody asks anything of it, and with the exit code of a store that failed."""
    process = killable_manager.start(settings)
    try:
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        promptly(lambda: process.poll() is not None, NOTICED_SECONDS)
        assert process.returncode == STORE_FAILED
    finally:
        killable_manager.end(process, signal.SIGKILL)


def test_program_that_is_gone_before_its_manager_is_up(settings: Settings) -> None:
    """There is nobody to be told that it serves: it ends in good order, without a word."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        encoded = msgspec.json.encode(msgspec.structs.replace(settings, lifeline_fd=theirs.fileno())).decode()
        ended = subprocess.run(
            [sys.executable, "-c", MAIN, encoded],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (0, "")
