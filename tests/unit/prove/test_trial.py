"""A trial with real worker processes; what goes wrong in one of them is an error and not a verdict."""

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.errors import StartFailed
from stepwell.prove import trial
from stepwell.prove.trial import TrialSettings, run_trial
from stepwell.prove.verdict import judge
from stepwell.prove.worker import TrialReport
from stepwell.testing import LocalRuntime

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


def test_running_manager() -> None:
    """A manager that goes on has no fragment and no open plan of the trial afterwards."""
    elapsed: list[float] = []
    with LocalRuntime() as runtime:
        settings = TrialSettings(seconds=0.2, processes=2, threads=1, seed=1, address=runtime.address)
        history = run_trial(settings, elapsed.append)
        with runtime.client() as client:
            assert client.tiers.projects().projects == ()
            assert {plan.state for plan in client.plans.list_plans(limit=1_000).plans} == {sw.PlanState.CANCELLED}
    assert judge(history).result == "legal"
    assert [each.is_complete for each in history.watches] == [True, True]
    assert elapsed[-1] == 0.2
    assert (history.header.processes, history.header.kills) == (2, 0)


def test_worker_that_fails() -> None:
    """The error of a worker process is raised in its own words."""
    report = msgspec.json.encode(TrialReport(error="no room")).decode()
    with pytest.raises(sw.StepwellError, match="no room"), trial._Workers([lambda fd: f"{fd} {report}"]) as workers:
        workers.wait_for("ready", 60)


@pytest.fixture(autouse=True)
def reporting_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all tests but the first, a process that sends the report that it is given."""
    if request.function is not test_running_manager:
        monkeypatch.setattr(trial, "_WORKER", "tests.support.prove.reporting_process")


def test_worker_that_dies() -> None:
    """A worker process that ends without a report is an error, with its exit code."""
    with trial._Workers([lambda fd: f"{fd} "]) as workers, pytest.raises(sw.StepwellError, match="exit code 7"):
        workers.wait_for("ready", 60)
    with trial._Workers([lambda fd: f"{fd} "]) as workers, pytest.raises(sw.StepwellError, match="exit code 7"):
        workers.wait_for_end()


def test_worker_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process that says nothing is killed in the end."""
    monkeypatch.setattr(limits, "PROVE_POLL_SECONDS", 0.001)
    with trial._Workers([lambda fd: f"{fd} wait"]) as workers, pytest.raises(StartFailed, match="was not ready"):
        workers.wait_for("ready", 0.01)


def test_process_that_cannot_be_started() -> None:
    """If one process cannot be started, the others are ended."""

    def fail(_fd: int) -> str:
        raise OSError("no more processes")

    with pytest.raises(OSError, match="no more processes"):
        trial._Workers([lambda fd: f"{fd} wait", fail])


def test_killer() -> None:
    """A manager is killed at the moments that the seed chooses, and none is killed if there is none."""
    kills: list[str] = []
    killer = trial._Killer(1, lambda: kills.append("killed"), 100.0)
    killer.kill_if_due(100.0)
    assert kills == []
    killer.kill_if_due(100.0 + limits.PROVE_KILL_SECONDS_MAX)
    assert kills == ["killed"]
    trial._Killer(1, None, 0.0).kill_if_due(1_000.0)
