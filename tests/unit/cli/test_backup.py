"""`stepwell backup`: a directory that can be served, with a history of its own; or nothing at all."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.cli.main import main
from stepwell.domain.plans.model import PlanState
from stepwell.manager.check.doctor import examine
from stepwell.storage import backup
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.schema import VERSION
from tests.support.data_directories import (
    LARGE,
    PACKED,
    PROJECT,
    alter,
    everything_in,
    killed_manager_directory,
    serving,
)
from tests.support.processes import fork
from tests.support.wait import eventually


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("backup") / "data"
    return directory, killed_manager_directory(directory)


@pytest.fixture
def plan_id(template: tuple[Path, str]) -> str:
    return template[1]


@pytest.fixture
def data_dir(template: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(template[0], tmp_path / "data"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """In a directory of its own, so that it can be seen what is left beside it."""
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / "copy"


def facts(directory: Path) -> tuple[str | None, int | None, dict[str, int]]:
    report = examine(directory, lambda _: None)
    assert report.problems == []
    return report.epoch, report.revision, report.counts


def test_the_copy(data_dir: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything but the sessions and what they remember, ours alone, as another epoch; the original untouched."""
    before = everything_in(data_dir)
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 0
    assert everything_in(data_dir) == before
    assert [path.name for path in target.iterdir()] == [DATABASE]
    assert stat.S_IMODE(target.stat().st_mode) == 0o700
    assert stat.S_IMODE((target / DATABASE).stat().st_mode) == 0o600
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    epoch, revision, counts = facts(data_dir)
    new_epoch, new_revision, new_counts = facts(target)
    assert new_epoch != epoch
    assert new_revision == revision
    assert new_counts == counts | {"sessions": 0, "replies": 0, "reply_parts": 0, "apply_tickets": 0}
    told = capsys.readouterr().out
    assert told.startswith(f"copied revision {revision:,}, {(target / DATABASE).stat().st_size:,} bytes in ")
    assert f"as epoch {new_epoch}" in told


def test_the_copy_can_be_served(data_dir: Path, target: Path, plan_id: str) -> None:
    """Bodies and all; and the plan that somebody was working on goes back at once: nobody can come for it."""
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 0
    with serving(target) as address, sw.connect(address, projects=[PROJECT]) as client:
        assert bytes(client.tiers.get("large").body) == LARGE
        assert bytes(client.tiers.get("packed").body) == PACKED
        assert client.tiers.get("f0").text.startswith("the body of f0")
        eventually(lambda: client.plans.get_plan(plan_id).state is PlanState.QUEUED)
        plan = client.plans.get_plan(plan_id)
        assert (plan.lease, plan.attempt) == (None, 2)


def test_an_empty_directory_makes_way(data_dir: Path, target: Path) -> None:
    target.mkdir(mode=0o755)
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_a_backup_can_be_backed_up(data_dir: Path, target: Path) -> None:
    """A directory that no manager has served yet is one like any other."""
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 0
    assert main(["backup", str(target.with_name("next")), "--data-dir", str(target)]) == 0
    assert facts(target)[1:] == facts(target.with_name("next"))[1:]
    assert facts(target)[0] != facts(target.with_name("next"))[0]


def test_refusals_are_2(data_dir: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each says what to give instead, and nothing is made anywhere."""
    full = target.with_name("full")
    full.mkdir(mode=0o700)
    (full / "file").touch()
    (empty := target.with_name("empty")).mkdir(mode=0o700)
    (empty / DATABASE).touch()
    (data_dir.parent / "link").symlink_to(data_dir)
    before = everything_in(data_dir)
    for source, place, said in (
        (data_dir, data_dir, "is in the data directory itself"),
        (data_dir, data_dir / "copy", "is in the data directory itself"),
        (data_dir, data_dir.parent / "link" / "copy", "is in the data directory itself"),
        (data_dir, full, "not empty: give a new directory"),
        (data_dir, full / "file", "not empty: give a new directory"),
        (data_dir, target / "deeper", "make it first"),
        (data_dir.parent / "missing", target, "there is no directory"),
        (full, target, f"there is no {DATABASE}"),
        (empty, target, "there is nothing in the data directory yet"),
    ):
        assert main(["backup", str(place), "--data-dir", str(source)]) == 2, (source, place)
        assert said in capsys.readouterr().err
    assert everything_in(data_dir) == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["empty", "full"]


def test_no_default(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", str(target)]) == 2
    assert "Missing option '--data-dir'" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["a later schema", "pages"])
def test_what_cannot_be_copied_is_1(
    data_dir: Path, target: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left that looks like a backup."""
    alter(data_dir, f"PRAGMA user_version = {VERSION + (damage != 'pages')}")
    if damage == "pages":
        content = bytearray((data_dir / DATABASE).read_bytes())
        content[4096:] = bytes(len(content) - 4096)
        (data_dir / DATABASE).write_bytes(content)
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 1
    said = capsys.readouterr().err
    assert ("see `stepwell doctor`" if damage == "pages" else "use the one that serves it") in said
    assert list(target.parent.iterdir()) == []


def test_a_place_that_cannot_be_written(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", "/proc/copy", "--data-dir", str(data_dir)]) == 2
    assert "nothing can be written in '/proc'" in capsys.readouterr().err


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("limit", [0, 100_000], ids=["at once", "midway"])
def test_a_full_disk_is_1(data_dir: Path, target: Path, limit: int) -> None:
    """The kernel refuses more: it is said, and nothing is left."""
    code = (
        "import resource, sys; from stepwell.cli.command_line import run; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); sys.exit(run(sys.argv[1:]))"
    )
    done = run_python(code, "backup", str(target), "--data-dir", str(data_dir))
    assert done.returncode == 1, done
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(target.parent.iterdir()) == []


def test_a_copy_that_is_not_whole(
    data_dir: Path, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is looked at before anybody can take it for a backup."""
    copy = backup._copy

    def spoil(db: sqlite3.Connection, partial: Path) -> None:
        copy(db, partial)
        with partial.open("r+b") as file:
            file.truncate(partial.stat().st_size - 40_960)

    monkeypatch.setattr(backup, "_copy", spoil)
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 1
    assert "see `stepwell doctor`" in capsys.readouterr().err
    assert list(target.parent.iterdir()) == []


def test_a_target_that_somebody_else_made_meanwhile(
    data_dir: Path, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of theirs is replaced."""
    start_new_epoch = backup._start_new_epoch

    def race(partial: Path) -> backup.BackupResult:
        target.mkdir()
        (target / "theirs").touch()
        return start_new_epoch(partial)

    monkeypatch.setattr(backup, "_start_new_epoch", race)
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 2
    assert "cannot be made" in capsys.readouterr().err
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert [path.name for path in target.parent.iterdir()] == [target.name]


# It ends in between.


@pytest.mark.parametrize("step", range(1, 8))
def test_killed_at_each_step(data_dir: Path, target: Path, step: int) -> None:
    """Where there is no backup yet, nothing looks like one; where there is, it is whole."""

    def deed() -> None:
        steps = 0

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object) -> object:
                nonlocal steps
                steps += 1
                if steps == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments)

            return call

        for owner, name in ((os, "fsync"), (Path, "rename"), (backup, "_copy"), (backup, "_start_new_epoch")):
            setattr(owner, name, counted(getattr(owner, name)))
        backup.back_up(data_dir, target)

    _, status = os.waitpid(fork(deed), 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "there are fewer steps"
    if target.exists():
        assert step == 7
        assert facts(target)[1] == facts(data_dir)[1]
    elif step < 5:  # later it is whole already, under a name that nobody has asked for
        assert list(target.parent.rglob(DATABASE)) == []


def test_an_interrupt_leaves_nothing(
    data_dir: Path, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C is seen while SQLite copies."""
    monkeypatch.setattr(limits, "BACKUP_STEPS_PER_CHECK", 100)
    monkeypatch.setattr(backup, "_continue", lambda: signal.raise_signal(signal.SIGINT))
    assert main(["backup", str(target), "--data-dir", str(data_dir)]) == 130
    assert capsys.readouterr().err == "stepwell: interrupted\n"
    assert list(target.parent.iterdir()) == []


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
