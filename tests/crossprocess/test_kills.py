"""The manager is killed under load, again and again: nothing acknowledged is lost, and nothing happens twice."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import stepwell as sw
from stepwell.domain import invariants
from stepwell.manager.process import Settings
from stepwell.manager.recovery import recover
from stepwell.process import SpawnedProcess
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.load import load
from stepwell.telemetry import LogLevel
from stepwell.transport.address import private_directory
from tests.support import killable_manager
from tests.support.programs import crash_clients
from tests.support.programs.crash_clients import SURVIVORS, Progress, project_of
from tests.support.soak import IS_LONG
from tests.support.wait import eventually

KILLS = 200 if IS_LONG else 6
REQUESTS_PER_LIFE = (50, 600)
"""After how many answers a manager is killed: a moment of the work and not of the clock, however busy the machine is.

Each client sends the next request when it has its answer, so that a kill hits what is under way.
"""

BUDGET = sw.TierBudget(hot_tokens=1_000, warm_entries=150)


def test_killed_under_load(tmp_path: Path) -> None:
    """After each restart what was acknowledged is there, once; invariants hold, the budget of hot among them."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    directory = private_directory()
    address, data = directory / "manager.sock", tmp_path / "data"
    settings = Settings(
        address=str(address), budget=BUDGET, encoding="estimate", data_dir=str(data), log_level=LogLevel.ERROR
    )
    progress = Progress(tmp_path / "progress")
    manager = killable_manager.start(settings)
    try:
        plan_ids = _plans(settings.address)
        with _alive(settings.address, plan_ids, tmp_path):
            eventually(lambda: all(progress.of(number)[0] for number in range(SURVIVORS)), 60)
            for _ in range(KILLS):
                before, requests = progress.requests, generator.randint(*REQUESTS_PER_LIFE)
                eventually(lambda: progress.requests > before + requests)  # noqa: B023 - called at once
                acknowledged = [progress.of(number) for number in range(SURVIVORS)]
                killable_manager.end(manager, signal.SIGKILL)
                _check(data, plan_ids, acknowledged)
                manager = killable_manager.start(settings)
        _check(data, plan_ids, [progress.of(number) for number in range(SURVIVORS)])
    finally:
        killable_manager.end(manager, signal.SIGKILL)
        progress.close()
        address.unlink(missing_ok=True)
        directory.rmdir()


def _plans(address: str) -> list[str]:
    with sw.connect(address) as client:
        client.plans.create_action(
            name="survive",
            description="d",
            definition_of_done="d",
            strategy_actor="local/a",
            execution_actor="local/b",
        )
        return [
            client.plans.use_action("survive", projects=[project_of(number)], arguments={}).plan_id
            for number in range(SURVIVORS)
        ]


@contextmanager
def _alive(address: str, plan_ids: list[str], tmp_path: Path) -> Iterator[None]:
    progress, stop = str(tmp_path / "progress"), tmp_path / "stop"
    processes = [
        SpawnedProcess(crash_clients.survive, (address, number, plan_id, progress, str(stop)))
        for number, plan_id in enumerate(plan_ids)
    ]
    for process in processes:
        process.start()
    try:
        yield
        stop.touch()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * SURVIVORS
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def _check(data: Path, plan_ids: list[str], acknowledged: list[tuple[int, int]]) -> None:
    """What is on the disk, while no manager has it."""
    kept = load(data / DATABASE)
    assert kept is not None
    state = recover(kept)
    assert invariants.check(state) == []
    assert crash_clients.problems(state, plan_ids, acknowledged) == []
