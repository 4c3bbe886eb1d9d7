"""Standard error is for problems that no caller is told of: an exception that a caller catches is not logged, too."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.storage.files.directory import DATABASE
from tests.support import strategies

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

REQUEST = sw.ContextRequest(projects=["p"], query="q")


def submitted(client: sw.Client, strategy: str, deadline_s: float = 60.0) -> None:
    client.strategies.submit(strategy, REQUEST, deadline_s=deadline_s).result()


CAUGHT: dict[str, tuple[type[sw.StepwellError], Callable[[sw.Client], object]]] = {
    "a read out of scope": (sw.OutOfScope, lambda client: client.tiers.get("a", project="another")),
    "a view out of scope": (sw.OutOfScope, lambda client: client.view(["another"])),
    "a watch out of scope": (sw.OutOfScope, lambda client: client.watch(projects=["another"])),
    "a budget out of scope": (sw.OutOfScope, lambda client: client.tiers.set_budget(sw.TierBudget())),
    "a fragment that is not there": (sw.NotFound, lambda client: client.tiers.get("absent")),
    "a strategy that raises": (sw.TaskFailed, lambda client: submitted(client, "raising")),
    "a strategy that is too late": (sw.DeadlineExceeded, lambda client: submitted(client, "hanging", 0.1)),
    "a strategy that kills its workers": (sw.TaskQuarantined, lambda client: submitted(client, "exiting")),
}


def test_caught_exceptions_are_not_logged(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither by the manager nor by the pool, at the level that a program gets by default."""
    with (
        sw.Runtime.start(workers=1, strategies=[strategies.raising, strategies.hanging, strategies.exiting]) as runtime,
        runtime.client(projects=["p"]) as client,
    ):
        client.tiers.store(sw.Fragment(fragment_id="a", body="b"))
        for kind, deed in CAUGHT.values():
            with pytest.raises(kind):
                deed(client)
    assert logged(capfd) == []


def test_failed_start_is_not_logged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The caller has the reason."""
    (tmp_path / DATABASE).write_bytes(b"no database" * 1_000)
    tmp_path.chmod(0o700)
    with pytest.raises(sw.StoreDamaged):
        sw.Runtime.start(workers=0, data_dir=tmp_path)
    with pytest.raises(sw.StartFailed):
        sw.Runtime.start(workers=0, data_dir="/dev/null/data")
    assert logged(capfd) == []


def logged(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the events that were logged, and the lines that Python writes about an error that nobody caught."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if re.search(r"\[(warning|error) |Warning|Traceback|never retrieved", line)]
