"""The demonstration: it proves what it says, and would say if it could not."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import multiprocess
import pytest

import stepwell as sw
from examples.demo import command
from examples.demo.command import main
from examples.demo.dicts import run_dicts
from examples.demo.job import Findings, Job, call, prepare
from examples.demo.processes import run_callers
from examples.demo.proof import Proof, verify
from tests.doubles.unsynchronised import Unsynchronised
from tests.support.cli.processes import interrupt, started, wait_until

SMALL = ["--processes", "2", "--threads", "2"]

GOOD = Proof(
    fragments=2,
    fragments_found=2,
    hot_tokens=10,
    hot_highest=10,
    readings=1,
    revisions=2,
    names=1,
    names_won_once=1,
    changes=1,
    changes_right=1,
    broken=(),
    seconds=0.1,
)


@pytest.fixture
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0) as runtime:
        yield runtime


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that loses a fragment, and a caller that sees something odd."""
    bad = msgspec.structs.replace(GOOD, fragments_found=1, broken=("KeyError('[x]')",))
    monkeypatch.setattr(command, "_run_runtime", lambda *_: bad)


@pytest.mark.parametrize("arguments", [["--processes", "0"], ["--threads", "-1"], ["--processes", "1000"]])
def test_misuse_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is answered on stderr, with nothing on stdout."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "--processes and --threads" in told.err


def test_no_manager_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says that there is none, and how to get one."""
    assert main(["--address", str(tmp_path / "no.sock")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no manager at" in line
    assert "stepwell serve" in line


def test_its_own_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that was stored, created and recorded is there, and the budget held at every revision."""
    assert main([*SMALL, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    proof = facts["runtime"]
    assert facts["holds"]
    assert proof["fragments_found"] == proof["fragments"] == proof["revisions"] == 200
    assert proof["hot_highest"] == proof["hot_tokens"] == 1_000, "the budget was reached, and held"
    assert proof["readings"] > 0
    assert (proof["names_won_once"], proof["changes_right"], proof["broken"]) == (10, 40, [])
    assert facts["dicts"]["fragments"] == 200


def test_a_running_manager(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain text where there is no terminal; afterwards nobody trips over what was stored."""
    assert main([*SMALL, "--address", runtime.address]) == 0
    told = capsys.readouterr()
    assert "200 of 200" in told.out
    assert "The runtime lost nothing." in told.out
    assert "\x1b" not in told.out + told.err
    with runtime.client() as client:
        metrics = client.tiers.metrics()
        assert [tier.entries for tier in (metrics.hot, metrics.warm, metrics.cold)] == [0, 0, 0]
        assert {each.state for each in client.plans.list_actions().actions} == {sw.ActionState.ARCHIVED}
        assert {each.state for each in client.plans.list_plans().plans} == {sw.PlanState.CANCELLED}


@pytest.mark.usefixtures("lossy")
def test_a_loss_is_said_and_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SMALL) == 1
    told = capsys.readouterr().out
    assert "1 of 2" in told
    assert "KeyError('[x]')" in told
    assert "LOST" in told


@pytest.mark.usefixtures("lossy")
def test_a_loss_is_1_for_machines_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["holds"] is False


def test_a_proof_holds_only_if_all_of_it_does() -> None:
    """Each thing that can be lost is enough."""
    assert GOOD.holds
    for lost in (
        {"fragments_found": 1},
        {"hot_highest": 11},
        {"names_won_once": 0},
        {"changes_right": 0},
        {"broken": ("KeyError()",)},
    ):
        assert not msgspec.structs.replace(GOOD, **lost).holds, lost


def test_one_caller_of_the_dicts_loses_nothing() -> None:
    """So that what many lose is lost by their number, and not by the dicts being made to fail."""
    told: list[int] = []
    assert run_dicts(Job(project="demo", processes=1, threads=1), told.append).holds
    assert sum(told) > 0


def test_the_check_finds_what_is_missing() -> None:
    """Of a job that nobody did, nothing is found: the check reads, and does not believe the callers."""
    services = Unsynchronised()
    job = Job(project="demo", processes=1, threads=2)
    plan = prepare(services, job)
    claimed = [Findings(caller=0, wins=job.names), Findings(caller=1)]
    for name in job.names:
        services.plans.create_action(
            name, description="of caller 1", definition_of_done="", strategy_actor="a/b", execution_actor="a/b"
        )
    proof = verify(services, job, plan, claimed, seconds=0)
    assert (proof.fragments_found, proof.names_won_once, proof.changes_right) == (0, 0, 0)


def test_a_stranger_in_a_changeset_is_no_success() -> None:
    """Own changes beside somebody else's are not counted as right."""
    services = Unsynchronised()
    job = Job(project="demo", processes=1, threads=2)
    plan = prepare(services, job)
    context = services.execution(plan.plan_id)
    shared = context.start_changeset()
    for path in (*job.paths(0), *job.paths(1)):
        context.record_change(sw.Change(path=path, after=b"x"))
    proof = verify(services, job, plan, [Findings(caller=caller, changeset_id=shared) for caller in (0, 1)], seconds=0)
    assert proof.changes_right == 0


def test_a_dead_process_is_said() -> None:
    """A caller that ends without an answer is a failure, whenever it ends."""
    ours, theirs = multiprocess.Pipe()
    with ours:
        theirs.send([Findings(caller=0)])
        assert [each.caller for each in run_callers([ours], lambda _: None)] == [0]
        theirs.send(3)
        with pytest.raises(sw.RuntimeFault, match="died"):
            next(run_callers([ours], lambda _: theirs.close()))
        with pytest.raises(sw.RuntimeFault, match="died"):
            next(run_callers([ours], lambda _: None))


def test_a_call_that_breaks_is_counted() -> None:
    """Whatever it is that a caller gets, the demonstration goes on and says so."""

    def break_(point: str) -> None:
        if point == "store: inserted, not enforced":
            raise KeyError(point)

    services = Unsynchronised(seam=break_)
    job = Job(project="demo", processes=1, threads=1)
    plan = prepare(services, job)
    findings = call(services, job, plan, 0, lambda: None)
    assert len(findings.broken) == len(job.fragments(0))
    proof = verify(services, job, plan, [findings], seconds=0)
    assert proof.broken[0].startswith("KeyError")
    assert not proof.holds


def test_ctrl_c_leaves_nothing() -> None:
    """Interrupted while its processes start or work: quickly, without a traceback, no directory left."""
    directory = Path(os.environ["XDG_RUNTIME_DIR"])
    with started(command=(sys.executable, "-m", "examples.demo")) as process:
        wait_until(lambda: any(directory.glob("stepwell-*/manager.sock")), process)
        out, told = interrupt(process)
    assert (process.returncode, out) == (130, "")
    assert told == "interrupted\n"
    assert not [*directory.glob("stepwell-*")]


def test_what_was_lost_as_a_whole_counts_as_lost() -> None:
    """An action or a changeset of which there is no trace is a finding, not an end of the demonstration."""
    services, job = Unsynchronised(), Job(project="p", processes=1, threads=1)
    plan = prepare(services, job)
    ghost = Findings(caller=0, wins=[*job.names], changeset_id="gone")
    proof = verify(services, job, plan, [ghost], seconds=0.0)
    assert (proof.fragments_found, proof.names_won_once, proof.changes_right) == (0, 0, 0)
    assert not proof.holds
