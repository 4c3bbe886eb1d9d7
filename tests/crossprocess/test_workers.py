"""Workers end with whoever they work for, however that ends; and no task is lost while they die at random."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from tests.support import strategies
from tests.support.entry_points import BROKEN, REASONS, install
from tests.support.processes import is_alive, kill
from tests.support.soak import IS_LONG
from tests.support.wait import eventually, promptly

ROOT = Path(__file__).parent.parent.parent
LAUNCH = ROOT / "workers" / "launch.py"
ASKED = ContextRequest(projects=("p",))
GONE_SECONDS = 2.0


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program of its own group, which is gone in the end."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def held(process: subprocess.Popen[str]) -> tuple[Path, int, list[int]]:
    """The address, the manager and the workers of a program that says so."""
    assert process.stdout is not None
    address, manager, *workers = process.stdout.readline().split()
    return Path(address), int(manager), [int(each) for each in workers]


@pytest.mark.parametrize("victims", ["manager", "program", "all"])
@pytest.mark.parametrize("busy_with", ["hanging", "busy-in-c"])
def test_no_worker_outlives_what_it_works_for(victims: str, busy_with: str) -> None:
    """Not even one that is in a long call of C."""
    with started("-m", "tests.support.programs.worker_program", busy_with) as program:
        address, manager, workers = held(program)
        for pid in {"manager": [manager], "program": [program.pid], "all": [manager, program.pid]}[victims]:
            kill(pid)
        promptly(lambda: not any(map(is_alive, workers)), GONE_SECONDS)
        promptly(lambda: not is_alive(manager), GONE_SECONDS)
    shutil.rmtree(address.parent, ignore_errors=True)  # a socket has a name, which outlives whoever is killed


def test_interrupted_program_ends_quietly() -> None:
    """Ctrl-C is the program's: it ends within two seconds, with one traceback, and nothing is left."""
    with started("-m", "tests.support.programs.worker_program", "hanging") as program:
        _, manager, workers = held(program)
        os.killpg(program.pid, signal.SIGINT)
        promptly(lambda: program.poll() is not None, GONE_SECONDS)
        promptly(lambda: not any(map(is_alive, [manager, *workers])), GONE_SECONDS)
        assert program.stderr is not None
        assert program.stderr.read().count("Traceback") == 1


@contextmanager
def launched(address: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with started(str(LAUNCH), "--connect", address, *arguments) as launcher:
        yield launcher


def joined(client: sw.Client, count: int) -> list[int]:
    """The workers, once there are so many."""
    eventually(lambda: len(client.strategies.list().workers) == count, 60)
    return [worker.pid for worker in client.strategies.list().workers]


NAMED = ["--workers", "2", "--strategies", "tests.support.strategies:everything", "tests.support.strategies:busy_in_c"]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_launched_workers_end_with_their_launcher(ending: int) -> None:
    """Stopped in good order, even while busy, or killed: they are gone within two seconds."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
        with launched(runtime.address, *NAMED) as launcher:
            workers = joined(client, 2)
            assert client.strategies.submit("everything", ASKED).result(60).fragments
            client.strategies.submit("busy-in-c", ASKED)
            eventually(lambda: client.strategies.list().leased == 1)
            os.killpg(launcher.pid, ending)
            promptly(lambda: launcher.poll() is not None, GONE_SECONDS)
            assert launcher.returncode == (-ending if ending == signal.SIGKILL else 0)
            promptly(lambda: not any(map(is_alive, workers)), GONE_SECONDS)
            assert launcher.stderr is not None
            told = launcher.stderr.read()
            assert "Traceback" not in told
            assert "2 of 2 workers ready" in told


@pytest.mark.parametrize("then", [signal.SIGINT, signal.SIGKILL])
def test_manager_that_is_stopped_holds_nobody_up(tmp_path: Path, then: int) -> None:
    """A worker has died, which nobody can be told: Ctrl-C, or the end of the manager, ends the rest in two seconds."""
    with sw.Runtime.start(workers=0, data_dir=tmp_path / "data") as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
        with launched(runtime.address, *NAMED) as launcher:
            workers = joined(client, 2)
            client.strategies.submit("busy-in-c", ASKED)
            eventually(lambda: client.strategies.list().leased == 1)
            manager = runtime.pid
            os.kill(manager, signal.SIGSTOP)
            os.kill(workers[0], signal.SIGKILL)
            eventually(lambda: not is_alive(workers[0]))
            if then == signal.SIGKILL:
                kill(manager)
            else:
                os.kill(launcher.pid, then)
                promptly(lambda: launcher.poll() is not None, GONE_SECONDS)
                assert launcher.returncode == 0
                os.kill(manager, signal.SIGCONT)
            promptly(lambda: not any(map(is_alive, workers)), GONE_SECONDS)


def test_launcher_ends_with_a_manager_that_does_not_come_back() -> None:
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client:
        with launched(runtime.address, "--workers", "1") as launcher:
            workers = joined(client, 1)
            kill(runtime.pid)
            promptly(lambda: not any(map(is_alive, workers)), GONE_SECONDS)
            assert launcher.wait(60) == 1
            assert launcher.stderr is not None
            assert "the manager is gone" in launcher.stderr.read()


@pytest.mark.parametrize(
    "arguments, told",
    [
        (["--strategies", "nonesuch:at_all"], "nonesuch"),
        (["--max-memory", "lots"], "no size"),
        (["--workers", "0"], "not a number from 1"),
    ],
)
def test_launcher_that_cannot_do_it_says_why(arguments: list[str], told: str) -> None:
    with sw.Runtime.start(workers=0) as runtime, launched(runtime.address, *arguments) as launcher:
        assert launcher.wait(60) in {1, 2}
        assert launcher.stderr is not None
        assert told in launcher.stderr.read()


def test_tasks_survive_the_manager(tmp_path: Path) -> None:
    """Where it comes back: what was waiting and what was under way is done by the workers of the next."""
    with sw.Runtime.start(workers=2, strategies=strategies.ALL, data_dir=tmp_path / "data") as runtime:
        with runtime.client(projects=["p"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
            before = runtime.workers
            for worker in before:  # so that nothing is done before the kill
                os.kill(worker, signal.SIGSTOP)
            futures = [client.strategies.submit("everything", ASKED) for _ in range(200)]
            eventually(lambda: client.strategies.list().leased >= len(before))
            kill(runtime.pid)
            results = [future.result(60) for future in futures]
            assert all(len(each.fragments) == 1 for each in results)
            assert not any(map(is_alive, before))


TASKS = 10_000 if IS_LONG else 150


DEEDS = {
    "exit": strategies.exiting,
    "crash": strategies.crashing,
    "stop": strategies.stopping,
    "raise": strategies.raising,
}
OUTCOMES: dict[str, type[BaseException] | None] = {
    "raise": sw.TaskFailed,
    "exit": sw.TaskQuarantined,
    "crash": sw.TaskQuarantined,
    "stop": sw.DeadlineExceeded,
    "work": None,
}
"""Of each kind, if nobody else interferes."""


def mixed(request: ContextRequest, view: StrategyView, budget: int) -> list[ScoredFragment]:
    """Does what its query says, mostly its work, and writes down that it was done."""
    kind, number = request.query.split()
    with Path(request.focus[0]).open("a") as file:
        file.write(f"{number}\n")
    deed = DEEDS.get(kind)
    return [*deed(request, view, budget)] if deed else strategies.scored(view, request.query)


def count(ended: Counter[int], number: int, _future: Future[StrategyResult]) -> None:
    ended[number] += 1


def test_storm_of_deaths(tmp_path: Path) -> None:
    """Workers are killed at random: every task has one outcome, and the right one; poison is found after three."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    weights = {"work": 970, "raise": 20, "exit": 2, "crash": 2, "stop": 6}
    kinds = generator.choices([*weights], [*weights.values()], k=TASKS)
    ended: Counter[int] = Counter()
    killed = 0
    with sw.Runtime.start(workers=2, strategies=[mixed], log_level="error") as runtime:
        with runtime.client(projects=["p"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
            futures: list[Future[StrategyResult]] = []
            for number, kind in enumerate(kinds):
                asked = ContextRequest(projects=("p",), query=f"{kind} {number}", focus=(str(tmp_path / "done"),))
                # Only those that stop their worker exceed a deadline, however long a busy machine takes for the others.
                future = client.strategies.submit("mixed", asked, deadline_s=2.0 if kind == "stop" else None)
                future.add_done_callback(partial(count, ended, number))
                futures.append(future)
            while wait(futures, generator.uniform(0.2, 1.0)).not_done:
                for pid in runtime.workers[: generator.randrange(2)]:  # there may be none at this moment
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, generator.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP]))
                        killed += 1
            print(f"{killed} killed")
            eventually(lambda: len(ended) == TASKS)
    assert set(ended.values()) == {1}
    runs = Counter(map(int, (tmp_path / "done").read_text().split()))
    hit = [number for number, kind in enumerate(kinds) if not is_as_expected(kind, number, futures[number])]
    assert len(hit) <= killed
    again = sum(max(0, runs[number] - 1) for number, kind in enumerate(kinds) if kind in {"work", "raise", "stop"})
    assert again <= killed
    poison = [number for number, kind in enumerate(kinds) if kind in {"exit", "crash"} and number not in hit]
    lost = sum(limits.TASK_DEATHS_MAX - runs[number] for number in poison)
    assert 0 <= lost <= killed  # a worker that was killed before it had begun


def is_as_expected(kind: str, number: int, future: Future[StrategyResult]) -> bool:
    """Whether a task ended as one of its kind does; if not, it was under way in a worker that was killed or stopped."""
    error = future.exception(0)
    if error is None:
        assert [each.reason for each in future.result(0).fragments] == [f"work {number}"]
    if isinstance(error, sw.TaskQuarantined):
        evidence = error.details["evidence"]
        assert isinstance(evidence, list)
        assert len(evidence) == limits.TASK_DEATHS_MAX
    outcome = None if error is None else type(error)
    assert outcome in {OUTCOMES[kind], sw.DeadlineExceeded, sw.TaskQuarantined}
    return outcome is OUTCOMES[kind]


def test_nobody_waits_behind_a_slow_one() -> None:
    """What lies ahead of a worker that hangs goes to the other one; and cancelling what lies ahead kills nobody."""
    with sw.Runtime.start(workers=2, strategies=[strategies.hanging, strategies.sayings], log_level="error") as runtime:
        with runtime.client(projects=["p"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
            before = {*runtime.workers}
            slow = client.strategies.submit("hanging", ASKED, deadline_s=600.0)
            eventually(lambda: client.strategies.list().leased == 1)
            quick = [client.strategies.submit("sayings", ASKED) for _ in range(100)]
            assert not wait(quick, 60).not_done
            both = [slow, client.strategies.submit("hanging", ASKED, deadline_s=600.0)]
            eventually(lambda: client.strategies.list().leased == len(both))
            cancelled = client.strategies.submit("sayings", ASKED)
            eventually(lambda: client.strategies.list().queued == 1)
            assert cancelled.cancel()
            assert {*runtime.workers} == before
            assert not any(each.done() for each in both)
            for each in both:
                each.cancel()


def test_broken_entry_points_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All workers have them, and the one who started the workers is warned once of each; a client sees them listed."""
    install(tmp_path, BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    with sw.Runtime.start(workers=2) as runtime, runtime.client() as client:
        found = client.strategies.list()
        assert [len(each.problems) for each in found.workers] == [len(REASONS)] * 2
        for problem, (name, reason) in zip(found.problems, REASONS.items(), strict=True):
            assert problem.name == name
            assert reason in problem.reason
        assert {"theirs", "with_underscore"} <= {each.name for each in found.offers}
        first = {each.pid for each in found.workers}
        os.kill(min(first), signal.SIGKILL)
        eventually(lambda: len({each.pid for each in client.strategies.list().workers} - first) == 1)
    logged = [line for line in capfd.readouterr().err.splitlines() if "strategy.not_loaded" in line]
    assert len(logged) == len(REASONS)
    assert all("[warning" in line for line in logged)
