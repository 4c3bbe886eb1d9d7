"""A damaged log is noticed: the next manager has everything that was acknowledged, or refuses to start."""

from __future__ import annotations

import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.manager.check.doctor import examine
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.storage.database import open_to_read
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.files.mark import MARK, read_mark
from stepwell.storage.loss import accept_loss
from stepwell.storage.store import Durability
from tests.support import killable_manager
from tests.support.data_directories import everything_in, serving
from tests.support.storage.damage import WAL, attempts, damage_log
from tests.support.storage.state import durable_state, files, latest_store_row

DAMAGES = 120
ACKNOWLEDGED = 40


def fragment(fragment_id: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project="p", body="body", tokens=1)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a manager that was killed after its last reply, with all commits in its log."""
    directory = tmp_path_factory.mktemp("log") / "data"
    with serving(directory) as address:
        client = sw.connect(address)
        revisions = [client.tiers.store(fragment(f"f{number}")).revision for number in range(ACKNOWLEDGED)]
        assert revisions[-1] == ACKNOWLEDGED
    client.close()
    return directory


def served(directory: Path) -> int:
    """The number of fragments that a manager would serve."""
    with durable_state(directory, durability=Durability.DISK) as made:
        return len(made.owner._state.fragments)


def test_damaged_log_is_harmless_or_refused(killed: Path, tmp_path: Path) -> None:
    """120 flips and truncations, and a deletion: all acknowledged writes are there, or an error says that not."""

    def attempt(seed: int) -> str | None:
        copy = Path(shutil.copytree(killed, tmp_path / f"copy-{seed}"))
        what = f"seed {seed}: {damage_log(copy, seed)}"
        report = examine(copy, lambda _encoding: None)
        try:
            found = served(copy)
        except sw.StoreDamaged:
            return None if not report.is_healthy else f"{what}: refused, and the doctor finds nothing"
        finally:
            shutil.rmtree(copy)
        return None if found == ACKNOWLEDGED else f"{what}: {found} of {ACKNOWLEDGED} are served"

    assert attempts(DAMAGES, attempt) == []


def is_refused(directory: Path) -> str:
    """The message of a manager that does not start; nothing is changed by it."""
    before = files(directory)
    with pytest.raises(sw.StoreDamaged) as caught:
        served(directory)
    assert files(directory) == before
    return caught.value.message


@pytest.fixture
def cut(killed: Path, tmp_path: Path) -> Path:
    """A copy whose log has lost its second half."""
    copy = Path(shutil.copytree(killed, tmp_path / "data"))
    log = copy / WAL
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 2)
    return copy


def test_refusal_says_what_and_where(cut: Path) -> None:
    """Both revisions and all three files, and the way out."""
    message = is_refused(cut)
    mark = read_mark(cut)
    assert mark is not None
    assert f"the mark {str(cut / MARK)!r} has revision {mark.revision}" in message
    assert mark.revision == ACKNOWLEDGED
    assert f"the database {str(cut / DATABASE)!r} is at revision " in message
    assert f"the log {str(cut / WAL)!r} is damaged, truncated or was removed" in message
    assert f"stepwell doctor --data-dir {cut} --accept-loss" in message


def test_accepted_loss_begins_another_epoch(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The doctor says 1 until then and 0 from then on; the manager serves what is left."""
    lost = read_mark(cut)
    assert lost is not None
    assert main(["doctor", "--data-dir", str(cut)]) == 1
    assert "acknowledged writes are lost" in capsys.readouterr().out
    assert main(["doctor", "--data-dir", str(cut), "--accept-loss"]) == 0
    told = capsys.readouterr()
    assert "the loss is accepted: epoch" in told.err
    assert "no commit is lost" in told.out
    found = read_mark(cut)
    assert found is not None
    assert found.epoch != lost.epoch
    assert 0 < served(cut) < ACKNOWLEDGED
    with serving(cut) as address, sw.connect(address) as client:
        assert client.epoch == found.epoch


def test_nothing_to_accept(killed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole directory is left as it is, byte for byte."""
    copy = Path(shutil.copytree(killed, tmp_path / "data"))
    before = everything_in(copy)
    assert main(["doctor", "--data-dir", str(copy), "--accept-loss"]) == 0
    assert "there is no loss of commits to accept: nothing was changed" in capsys.readouterr().err
    assert everything_in(copy) == before


def test_running_manager_loses_nothing(tmp_path: Path) -> None:
    """While it commits, the doctor finds no loss; and nobody accepts one in its place."""
    with serving(tmp_path / "data") as address, sw.connect(address) as client:
        stop = threading.Event()

        def store() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                client.tiers.store(fragment(f"f{number}"))

        with ThreadPoolExecutor(1) as pool:
            storing = pool.submit(store)
            try:
                for _ in range(30):
                    assert examine(tmp_path / "data", lambda _encoding: None).problems == []
            finally:
                stop.set()
                storing.result(60)
        with pytest.raises(sw.StartFailed, match="in use by process"):
            accept_loss(tmp_path / "data")


def test_log_that_was_deleted_with_everything_in_it(killed: Path, tmp_path: Path) -> None:
    """A young database is nearly empty without its log: it is not taken for a new one."""
    copy = Path(shutil.copytree(killed, tmp_path / "data"))
    (copy / WAL).unlink()
    assert "is empty, and the mark" in is_refused(copy)
    assert accept_loss(copy) is None
    assert read_mark(copy) is None
    with durable_state(copy) as made:
        assert made.owner.stored is None


@pytest.mark.parametrize("point", killable_manager.POINTS)
def test_mark_after_a_kill(settings: Settings, point: str) -> None:
    """Wherever the manager dies: the mark has every reply, and is at most one commit behind the database."""
    process = killable_manager.start(settings, point)
    client = sw.connect(settings.address)
    acknowledged = [client.tiers.store(fragment(f"f{number}")).revision for number in range(5)][-1]
    with ThreadPoolExecutor(1) as pool:
        fatal = pool.submit(client.tiers.store, fragment(killable_manager.FATAL))
        assert process.wait(60) == -signal.SIGKILL
        client.close()
        with suppress(sw.StepwellError):
            fatal.result(60)
    assert process.stdout is not None
    process.stdout.close()
    directory = Path(settings.data_dir or "")
    mark = read_mark(directory)
    assert mark is not None
    with closing(open_to_read(directory / DATABASE)) as db:
        row = latest_store_row(db)
    assert acknowledged <= mark.revision <= row.revision
    assert row.commits - mark.commits == (1 if point == "before mark" else 0)
    assert served(directory) in {5, 6}


def test_disk_that_refuses_the_mark(settings: Settings) -> None:
    """The commit has failed then: the manager stops with its own exit code, and does not reply."""
    process = killable_manager.start(settings, "full at mark")
    client = sw.connect(settings.address)
    client.tiers.store(fragment("f"))
    with ThreadPoolExecutor(1) as pool:
        fatal = pool.submit(client.tiers.store, fragment(killable_manager.FATAL))
        assert process.wait(60) == STORE_FAILED
        client.close()
        with pytest.raises(sw.OutcomeUnknown):
            fatal.result(60)
    assert process.stdout is not None
    process.stdout.close()
    assert served(Path(settings.data_dir or "")) == 2
