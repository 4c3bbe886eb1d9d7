"""`stepwell ingest`: a directory as a project, from a shell."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.main import main
from tests.support.ingest import write


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, log_level="error") as started:
        yield started


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "my project", {"a.py": "x = 1\n", "b.bin": b"\0"})
    return tmp_path / "my project"


def test_words(runtime: sw.Runtime, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What came of it on stdout; what was skipped, and why, on stderr."""
    assert main(["ingest", str(root), "--address", runtime.address]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("my-project: 1 file added, 0 changed, 0 deleted, 0 unchanged, 1 skipped; 1 fragment, ")
    assert told.err == "stepwell: skipped b.bin: it is binary\n"


def test_json(runtime: sw.Runtime, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of the report, under the name that was given; one file alone, too."""
    assert main(["ingest", str(root), "--address", runtime.address, "--project", "named", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["project"], facts["added"], facts["skipped"]) == ("named", 1, {"b.bin": "it is binary"})
    assert main(["ingest", str(root / "a.py"), "--address", runtime.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["project"] == "my-project"


def test_many_that_are_skipped(runtime: sw.Runtime, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few are named, the rest counted."""
    write(root, {f"{number}.bin": b"\0" for number in range(30)})
    assert main(["ingest", str(root), "--address", runtime.address, "--project", "many"]) == 0
    complaints = capsys.readouterr().err.splitlines()
    assert len(complaints) == 11
    assert complaints[-1] == "stepwell: skipped 21 more: --json names them"


def test_what_is_not_there(runtime: sw.Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ingest", str(tmp_path / "nothing"), "--address", runtime.address]) == 2
    assert "cannot be read" in capsys.readouterr().err
