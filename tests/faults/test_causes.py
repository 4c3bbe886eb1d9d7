"""A manager that ends for a reason tells its clients the reason, and their errors name it."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.manager.process import Settings
from stepwell.telemetry import LogLevel
from stepwell.transport.address import private_directory
from tests.support import killable_manager
from tests.support.processes import kill
from tests.support.programs import full_disk
from tests.support.wait import eventually

FULL = ("database or disk is full", "No space left on device")
"""How the reason reads if SQLite meets the full disk first, and if the mark beside the database does."""


@pytest.mark.parametrize("scenario", full_disk.SCENARIOS)
def test_full_disk_is_named_by_every_error(tmp_path: Path, scenario: str) -> None:
    """Callers of every kind learn that the disk is full, and everything acknowledged is there afterwards."""
    report = full_disk.run(scenario, tmp_path / "disk")
    for caller, met in report.met.items():
        print(caller, met)
    named = {caller for caller, met in report.met.items() if any(reason in met.message for reason in FULL)}
    assert named == set(report.met)
    assert {str(met.details.get("cause")) for met in report.met.values()} == {"StoreFailed"}
    assert {met.cause for met in report.met.values()} == {"StoreFailed"}
    assert {met.kind for met in report.met.values()} <= {"OutcomeUnknown", "RuntimeLost"}
    assert set(report.acknowledged) <= set(report.found)


@pytest.fixture
def settings() -> Iterator[Settings]:
    directory = private_directory()
    yield Settings(address=str(directory / "manager.sock"), budget=None, encoding="estimate", log_level=LogLevel.ERROR)
    (directory / "manager.sock").unlink(missing_ok=True)
    directory.rmdir()


def fatal() -> sw.Fragment:
    return sw.Fragment(fragment_id=killable_manager.FATAL, project="p", body="body", tokens=1)


def ended(settings: Settings, fault: str) -> list[sw.StepwellError]:
    """Return the errors of the client whose request ended the manager, and of one that was idle and then calls."""
    met: list[sw.StepwellError] = []
    with killable_manager.running(settings, fault) as process:
        with sw.connect(settings.address) as client, sw.connect(settings.address) as idle:
            idle.status()
            with pytest.raises(sw.StepwellError) as caught:
                client.tiers.store(fatal())
            met.append(caught.value)
            assert process.wait(60) != -signal.SIGKILL
            with pytest.raises(sw.StepwellError) as caught:
                idle.status()
            met.append(caught.value)
    return met


def test_defect_is_named(settings: Settings) -> None:
    """A state that is half changed ends the manager; its clients learn that a defect did it, and what to do."""
    for error, kind in zip(ended(settings, "defect"), (sw.OutcomeUnknown, sw.RuntimeLost), strict=True):
        assert type(error) is kind
        assert "ZeroDivisionError" in error.message
        assert "report it" in error.message
        assert error.details == {"cause": "ManagerFault"}
        assert isinstance(error.__cause__, sw.ManagerFault)


def test_failed_flush_is_named(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known what is on the disk, so the outcome is unknown; the same client may learn it later."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 0.1)
    durable = msgspec.structs.replace(settings, data_dir=str(tmp_path / "data"))
    for error, kind in zip(ended(durable, "failed flush"), (sw.OutcomeUnknown, sw.RuntimeLost), strict=True):
        assert type(error) is kind
        assert "disk I/O error" in error.message
        assert isinstance(error.__cause__, sw.StoreFailed)


def test_defect_under_a_restart_is_not_noticed(settings: Settings, tmp_path: Path) -> None:
    """The farewell is no answer: the next manager gives one, and nobody is told of the first one's end."""
    durable = msgspec.structs.replace(settings, data_dir=str(tmp_path / "data"))
    with killable_manager.running(durable, "defect") as first, sw.connect(durable.address) as client:
        placed: list[int] = []
        storing = threading.Thread(target=lambda: placed.append(client.tiers.store(fatal()).revision))
        storing.start()
        assert first.wait(60) == 1
        with killable_manager.running(durable):
            storing.join(60)
            assert placed == [1]
            assert client.session.channel.rules.ended_by is None


def test_removed_database_is_named(tmp_path: Path) -> None:
    """The manager notices by itself; a watch and a later call learn why it ended."""
    with sw.Runtime.start(workers=0, data_dir=tmp_path / "data", log_level="error") as runtime:
        with runtime.client() as client, client.watch() as watch:
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            with pytest.raises(sw.RuntimeLost, match="was removed") as caught:
                watch.get()
            assert isinstance(caught.value.__cause__, sw.StoreFailed)
            with pytest.raises(sw.RuntimeLost, match="was removed"):
                client.tiers.metrics()
            with pytest.raises(sw.RuntimeLost, match="was removed"):
                sw.connect(runtime.address)


def test_restart_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that was killed says nothing; the one that could not take its place does."""
    monkeypatch.setattr(limits, "RESTARTS_MAX", 2)
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 0.0)
    with sw.Runtime.start(workers=0, data_dir=tmp_path / "data", log_level="error") as runtime:
        with runtime.client() as client:
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            kill(runtime.pid)
            eventually(lambda: not runtime._supervisor.is_restarting())
            with pytest.raises(sw.RuntimeLost, match="is gone: nothing was put in its place") as caught:
                client.tiers.metrics()
            assert caught.value.details["cause"] == "StartFailed"
