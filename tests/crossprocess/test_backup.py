"""A backup is made while processes store: it is one revision, and has what was acknowledged before it began."""

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import stepwell as sw
from stepwell.domain import invariants
from stepwell.manager.check.doctor import examine
from stepwell.manager.recovery import recover
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.load import load
from tests.support.data_directories import serving
from tests.support.processes import spawned
from tests.support.soak import IS_LONG
from tests.support.wait import eventually

WRITERS = 2
PROJECT = "p"
BODY = "the same again, " * 500
COMMAND = (sys.executable, "-m", "stepwell")


def write(address: str, writer: int, directory: str) -> None:
    """Store pairs until told to stop: at every revision there are both of a pair, or none. A byte for each that is
    acknowledged tells how many there are.
    """
    told, stop = Path(directory) / f"{writer}.told", Path(directory) / "stop"
    with sw.connect(address, projects=[PROJECT]) as client, told.open("wb", buffering=0) as file:
        for number in itertools.count():
            if stop.exists():
                return
            with client.transaction() as transaction:
                for half in "ab":
                    name = f"{writer}-{number}-{half}"
                    transaction.tiers.store(sw.Fragment(fragment_id=name, body=f"{name} {BODY}", tokens=1))
            file.write(b".")


def acknowledged(directory: Path) -> list[int]:
    return [(directory / f"{writer}.told").stat().st_size for writer in range(WRITERS)]


@contextmanager
def written(address: str, directory: Path) -> Iterator[None]:
    """While processes store, and have begun to."""
    directory.mkdir()
    with ExitStack() as stack:
        for writer in range(WRITERS):
            stack.enter_context(spawned(write, address, writer, str(directory)))
        try:
            eventually(lambda: all((directory / f"{writer}.told").exists() for writer in range(WRITERS)), 60)
            eventually(lambda: min(acknowledged(directory)) >= 20, 60)
            yield
        finally:
            (directory / "stop").touch()


def test_a_backup_while_others_store(tmp_path: Path) -> None:
    """Several, one after the other: each has everything that was acknowledged before, whole pairs only, and every
    invariant holds; meanwhile the writers go on, and a doctor finds nothing wrong either.
    """
    data_dir, notes = tmp_path / "data", tmp_path / "notes"
    with serving(data_dir) as address, written(address, notes):
        for number in range(3 if IS_LONG else 2):
            before = acknowledged(notes)
            target = tmp_path / f"copy-{number}"
            done = subprocess.run(
                [*COMMAND, "backup", str(target), "--data-dir", str(data_dir)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert examine(target, lambda _: None).problems == []
            kept = load(target / DATABASE)
            assert kept is not None
            state = recover(kept)
            assert invariants.check(state) == []
            found = {fragment_id for _, fragment_id in state.fragments.entries}
            assert found >= {
                f"{writer}-{each}-{half}"
                for writer in range(WRITERS)
                for each in range(before[writer])
                for half in "ab"
            }
            assert {name[:-1] for name in found if name.endswith("a")} == {
                name[:-1] for name in found if name.endswith("b")
            }
            assert kept.revision == len(found) // 2
            assert examine(data_dir, lambda _: None).problems == []
        reached = acknowledged(notes)
        eventually(lambda: all(now > then for now, then in zip(acknowledged(notes), reached, strict=True)))


BACKUPS_MIN, BACKUPS_MAX = 4, 40
"""So many are made until one was killed in time: on a busy machine its killer may be late."""


def killed_backup(data_dir: Path, target: Path) -> int:
    """How a backup ended that was killed as soon as it had begun to write."""
    process = subprocess.Popen([*COMMAND, "backup", str(target), "--data-dir", str(data_dir)])
    eventually(lambda: target.exists() or any(target.parent.glob(f".{target.name}.*/*")), 60)
    process.kill()
    return process.wait(60)


def test_a_killed_backup_leaves_nothing_that_opens(tmp_path: Path) -> None:
    """Killed while it writes, again and again: there is no target, and no database beside it; or, if it was quicker
    than its killer, a whole one.
    """
    data_dir, notes, backups = tmp_path / "data", tmp_path / "notes", tmp_path / "backups"
    backups.mkdir()
    codes: list[int] = []
    with serving(data_dir) as address, written(address, notes):
        while len(codes) < BACKUPS_MIN or (-signal.SIGKILL not in codes and len(codes) < BACKUPS_MAX):
            target = backups / f"copy-{len(codes)}"
            codes.append(killed_backup(data_dir, target))
            assert target.exists() or codes[-1] != 0
    assert -signal.SIGKILL in codes
    for found in backups.rglob(DATABASE):
        assert examine(found.parent, lambda _: None).problems == []
