"""`stepwell prove`: the verdict, its exit code, and histories that are kept and judged again."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.cli import prove
from stepwell.cli.main import main
from stepwell.prove import peers
from stepwell.prove.history import (
    Accepted,
    GetCall,
    History,
    StoreCall,
    TrialHeader,
    write_history,
)
from stepwell.prove.trial import TrialSettings
from tests.support.prove.calls import made, saw
from tests.support.prove.simulated import simulated_history

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

ILLEGAL = History(
    TrialHeader("stepwell", 1, 1, 1, 1.0, kills=2),
    (made(0, 1, StoreCall("x", "1"), Accepted()), made(2, 3, GetCall("x"), saw(None))),
)


def test_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A manager of its own is recorded and judged, and the kept history is judged the same again."""
    kept = tmp_path / "kept.jsonl"
    arguments = ["--seconds", "0.2", "--processes", "1", "--threads", "2", "--seed", "7", "--json"]
    assert main(["prove", *arguments, "--keep", str(kept)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["verdict"], first["seed"], first["processes"], first["threads"]) == ("legal", 7, 1, 2)
    subject, shared_dict, store = first["subjects"]
    assert (subject["subject"], subject["illegal"], subject["undecided"]) == ("stepwell", 0, 0)
    assert subject["illegal_part"] is None
    assert (shared_dict["subject"], shared_dict["watched"]) == (peers.DICT, 0)
    assert store["subject"] == peers.SQLITE
    assert main(["prove", "--judge", str(kept), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**first, "subjects": [subject]}


def test_illegal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An illegal history is exit code 1, and its smallest illegal part is printed."""
    write_history(tmp_path / "kept", ILLEGAL)
    assert main(["prove", "--judge", str(tmp_path / "kept")]) == 1
    shown = capsys.readouterr().out
    assert "1 process, 1 thread each, 2 kills, seed 1" in shown
    assert "the smallest illegal part of stepwell:" in shown
    assert 'store x = "1"' in shown
    assert "returned nothing" in shown


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[TrialSettings]:
    """Trials that return at once: a legal history for stepwell, an illegal one for a peer."""
    tried: list[TrialSettings] = []

    def run_trial(settings: TrialSettings, on_elapsed: object) -> History:
        assert callable(on_elapsed)
        on_elapsed(settings.seconds)
        tried.append(settings)
        return simulated_history(1) if settings.subject == "stepwell" else ILLEGAL

    monkeypatch.setattr(prove, "run_trial", run_trial)
    return tried


def test_peers(simulated: list[TrialSettings], capsys: pytest.CaptureFixture[str]) -> None:
    """Peers run the same workload for a shorter time, and their verdict does not change the exit code."""
    assert main(["prove", "--seconds", "60"]) == 0
    shown = capsys.readouterr().out
    assert "LangGraph SqliteStore" in shown
    assert "the smallest illegal part of" in shown
    assert [(each.subject, each.seconds) for each in simulated][:2] == [("stepwell", 60), (peers.DICT, 5)]


def test_missing_peer(
    simulated: list[TrialSettings], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is not installed has a row that says so."""
    monkeypatch.setattr(peers, "is_installed", lambda peer: peer != peers.SQLITE)
    assert main(["prove", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["subjects"]
    assert found[-1] == {"subject": peers.SQLITE, "verdict": "not installed"}
    assert len(simulated) == 2


def test_options_reach_the_trial(simulated: list[TrialSettings], tmp_path: Path) -> None:
    """Kills, a directory, a seed, the address of a running manager, and whether there is an index of reads."""
    data = tmp_path / "data"
    assert main(["prove", "--kill", "--data-dir", str(data), "--seed", "3", "--no-peers"]) == 0
    assert main(["prove", "--connect", str(tmp_path / "s"), "--threads", "5", "--processes", "6", "--no-peers"]) == 0
    assert main(["prove", "--no-read-index", "--no-peers"]) == 0
    killed, connected, without = simulated
    assert [each.read_index for each in simulated] == [True, True, False]
    assert without.address is None
    assert (killed.kill, killed.data_dir, killed.seed, killed.seconds) == (True, str(data), 3, 30)
    assert (connected.address, connected.threads, connected.processes) == (str(tmp_path / "s"), 5, 6)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--seconds", "0"], "is not a number of seconds"),
        (["--seconds", "nan"], "is not a number of seconds"),
        (["--seconds", "soon"], "is no number"),
        (["--processes", "0"], "is not a number from 1 to"),
        (["--threads", "many"], "is not a number from 1 to"),
        (["--seed", "x"], "is no whole number"),
        (["--kill", "--connect", "s"], "--kill is for a manager of the command's own"),
        (["--data-dir", "d"], "--data-dir is for --kill"),
        (["--no-read-index", "--connect", "s"], "--no-read-index is for a manager of the command's own"),
        (["--judge", "f", "--no-read-index"], "--no-read-index is for a manager of the command's own"),
        (["--judge", "f", "--kill"], "--judge runs nothing"),
        (["--judge", "nowhere"], "nowhere cannot be read: No such file"),
        (["--keep", "no/such/directory/file"], "there is no such directory"),
    ],
)
def test_wrong_arguments(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused before anything is started, with exit code 2."""
    assert main(["prove", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_no_room_for_the_history(simulated: list[TrialSettings], capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be written is an error in one line."""
    assert main(["prove", "--keep", "/dev/full", "--no-peers"]) == 1
    assert "/dev/full cannot be written: No space left" in capsys.readouterr().err
    assert len(simulated) == 1


def test_no_manager(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An address at which no process listens is an error in one line."""
    assert main(["prove", "--connect", str(tmp_path / "nowhere"), "--no-peers"]) == 1
    assert "no manager" in capsys.readouterr().err


def test_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends the command in order, and its handler does not outlive the command."""
    before = signal.getsignal(signal.SIGTERM)
    ended: list[str] = []

    @contextmanager
    def cleaned() -> Iterator[None]:
        try:
            yield
        finally:
            ended.append("in order")

    def run_trial(_settings: TrialSettings, _on_elapsed: object) -> History:
        with cleaned():
            signal.raise_signal(signal.SIGTERM)
        return ILLEGAL

    monkeypatch.setattr(prove, "run_trial", run_trial)
    assert main(["prove", "--no-peers"]) == 128 + signal.SIGTERM
    assert ended == ["in order"]
    assert signal.getsignal(signal.SIGTERM) is before
