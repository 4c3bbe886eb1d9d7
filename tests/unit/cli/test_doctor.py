"""`stepwell doctor`: what is wrong, in words and for machines, and an exit code that says whether anything is."""

import json
import shutil
from pathlib import Path

import pytest

from stepwell.cli import doctor
from stepwell.cli.main import main
from stepwell.client.session.tokens import counter
from stepwell.manager.check.doctor import Check
from stepwell.storage.files.directory import DATABASE
from tests.support.cli.processes import run
from tests.support.data_directories import alter, everything_in, killed_manager_directory, serving


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("doctor") / "data"
    killed_manager_directory(directory)
    return directory


@pytest.fixture
def data_dir(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "data"))


def test_a_healthy_directory(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each check, without escape codes where there is no terminal, the path in one piece."""
    before = everything_in(data_dir)
    assert main(["doctor", "--data-dir", str(data_dir)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    rows = {words[0]: words[1:] for line in told.splitlines() if (words := line.split())}
    assert rows["directory"] == [str(data_dir)]
    assert rows["tables"][:2] == ["fragments:", "14,"]
    assert all(rows[check][0] == "✓" for check in Check)
    assert everything_in(data_dir) == before


def test_json(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the same facts."""
    assert main(["doctor", "--data-dir", str(data_dir), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [*facts] == ["directory", "schema", "epoch", "revision", "counts", "problems", "notes"]
    assert (facts["directory"], facts["problems"]) == (str(data_dir), [])
    assert facts["revision"] > 14
    assert facts["counts"]["fragments"] == 14


def test_problems_are_1(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At most twenty lines of each check, then how many there are besides; for machines all of them."""
    alter(
        data_dir,
        "WITH RECURSIVE numbers(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM numbers LIMIT 30) "
        "INSERT INTO events SELECT n, 0, 9000000000000, 'Noise', '[bold]', 0 FROM numbers",
    )
    assert main(["doctor", "--data-dir", str(data_dir)]) == 1
    told = capsys.readouterr().out.splitlines()
    (at,) = [number for number, line in enumerate(told) if line.startswith("events ")]
    assert told[at + 20].split() == ["and", "40", "more"]
    assert told[at].startswith("events      event 0 of revision 1000")
    assert main(["doctor", "--data-dir", str(data_dir), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 60


def test_misuse_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no default, and what is no data directory is said to be none."""
    (tmp_path / "diary").mkdir(mode=0o700)
    (tmp_path / "diary" / DATABASE).write_text("Dear diary, " * 100)
    for given, said in (
        ([], "Missing option '--data-dir'"),
        (["--data-dir", ""], "name a directory"),
        (["--data-dir", str(tmp_path / "missing")], "there is no directory"),
        (["--data-dir", str(tmp_path)], f"there is no {DATABASE}"),
        (["--data-dir", str(tmp_path / "diary")], "is no database"),
    ):
        assert main(["doctor", *given]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert said in told.err


def test_beyond_repair_is_1(data_dir: Path) -> None:
    """What cannot be read at all is a problem with what and where."""
    alter(data_dir)
    (data_dir / DATABASE).write_bytes(bytes(100_000))
    done = run("doctor", "--data-dir", str(data_dir))
    assert (done.returncode, done.stderr) == (1, "")
    assert "does not begin as a database does" in done.stdout


def test_while_a_manager_serves(data_dir: Path) -> None:
    """In a process of its own, as anybody would run it."""
    with serving(data_dir):
        done = run("doctor", "--data-dir", str(data_dir))
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_encoding(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A vocabulary that is unknown here, or replaced by an estimate, counts nothing."""
    alter(data_dir, "UPDATE store SET encoding = 'runes'")
    assert main(["doctor", "--data-dir", str(data_dir)]) == 0
    assert "note: tokens were not counted: encoding 'runes' is not available here" in capsys.readouterr().out
    estimate = counter("estimate")
    monkeypatch.setattr(doctor, "counter", lambda _: estimate)
    assert main(["doctor", "--data-dir", str(data_dir)]) == 0
    assert "note: tokens were not counted" in capsys.readouterr().out


def test_where_there_is_no_tick(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that has no such sign gets a word."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = run("doctor", "--data-dir", str(data_dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert "file        ok: the database is whole" in done.stdout
