"""`stepwell prove` as users run it: the manager is killed under load, and every history is legal."""

import json
import tempfile
from pathlib import Path

import pytest

from tests.support.cli.processes import interrupt, run, started, wait_until


def test_killed() -> None:
    """The verdict is legal although the manager was killed, and the exit code says so."""
    found = {}
    for seconds in ("1", "5", "20"):  # a busy machine may take a second to begin
        done = run("prove", "--seconds", seconds, "--kill", "--processes", "2", "--no-peers", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        if found["kills"] and found["subjects"][0]["watched"]:
            break
    assert found["verdict"] == "legal"
    assert found["kills"] > 0
    assert found["subjects"][0]["watched"] > 0


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends it with one line, and leaves no process and no file."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with started("prove", "--seconds", "600", "--kill") as process:
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("*/history-*.jsonl")), process)
        _, errors = interrupt(process)
    assert (process.returncode, errors) == (130, "stepwell: interrupted\n")
    assert [*tmp_path.iterdir()] == []
