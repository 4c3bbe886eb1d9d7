"""With a data directory the manager is kept: it dies, comes back at the same address, and its clients carry on."""

import gc
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from multiprocess import spawn

import stepwell as sw
from stepwell import limits
from stepwell import process as process_module
from stepwell import runtime as runtime_module
from stepwell.manager.process import Settings
from stepwell.process import ChildProcess
from stepwell.protocol.messages import ManagerMessage
from stepwell.storage.files.directory import DATABASE
from stepwell.transport.connection import Connection
from tests.support.processes import fork, is_alive, kill
from tests.support.wait import eventually, promptly

KEEPER = "stepwell-manager-restarts"
ORPHAN_SECONDS = 2.0


@pytest.fixture(autouse=True)
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """All deaths of a test count as recent, however long a busy machine takes for a restart."""
    monkeypatch.setattr(limits, "RESTARTS_SECONDS", 3_600.0)


@contextmanager
def keeping(data_dir: Path, log_level: str = "error") -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, data_dir=data_dir, durability="process", log_level=log_level) as runtime:
        yield runtime


def fragment(fragment_id: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, body=f"the body of {fragment_id}", tokens=3)


def restart(runtime: sw.Runtime) -> None:
    """Kill the manager, and wait until there is another one."""
    restarts = runtime.restarts
    kill(runtime.pid)
    eventually(lambda: runtime.restarts == restarts + 1, 60)


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == KEEPER]


# It comes back.


def test_killed_manager_comes_back(tmp_path: Path) -> None:
    """Another process at the same address, with the same state and epoch, in the same session."""
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:
        before, address, epoch, session_id = runtime.pid, runtime.address, client.epoch, client.session_id
        client.tiers.store(fragment("a"))
        restart(runtime)
        assert client.tiers.store(fragment("b")).revision == 2
        assert client.tiers.get("a").text == "the body of a"
        assert runtime.pid != before
        assert (runtime.address, client.epoch, client.session_id) == (address, epoch, session_id)
        assert runtime.is_alive()


def test_calls_during_the_restart_wait_for_it(tmp_path: Path) -> None:
    """Nobody is told that the manager died: writes, streams, batches and new clients all get through."""
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:
        kill(runtime.pid)
        assert client.tiers.store(fragment("a")).revision == 1
        eventually(lambda: runtime.restarts == 1)  # so that its process is the one that serves
        kill(runtime.pid)
        assert [each.revision for each in client.tiers.store_many([fragment("b"), fragment("c")])] == [2, 3]
        eventually(lambda: runtime.restarts == 2)
        kill(runtime.pid)
        with client.batch() as batch:
            pending = batch.tiers.store(fragment("d"))
        assert pending.result().revision == 4
        eventually(lambda: runtime.restarts == 3)
        kill(runtime.pid)
        with runtime.client(projects=["p"]) as another:
            assert another.tiers.metrics().hot.entries == 4


def test_manager_killed_in_mid_call_answers_after_its_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the first one had done it or not: it happens once."""
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:
        os.kill(runtime.pid, signal.SIGSTOP)
        sent = threading.Event()
        receive = Connection.receive

        def tell_and_receive(connection: Connection) -> ManagerMessage:
            sent.set()
            return receive(connection)

        monkeypatch.setattr(Connection, "receive", tell_and_receive)
        placed: list[int] = []
        thread = threading.Thread(target=lambda: placed.append(client.tiers.store(fragment("a")).revision))
        thread.start()
        assert sent.wait(60)
        kill(runtime.pid)
        thread.join(60)
        assert placed == [1]
        assert client.status().revision == 1


def test_many_threads_and_a_killed_manager(tmp_path: Path) -> None:
    """Killed in the middle of everything, three times: as many revisions as calls, each answered to one of them."""
    revisions: list[int] = []
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:

        def deed(number: int) -> None:
            for count in range(150):
                placed = client.tiers.store(fragment(f"{number} {count}"))
                revisions.append(placed.revision)

        threads = [threading.Thread(target=deed, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for killed_at in (50, 200, 400):
            eventually(lambda: len(revisions) > killed_at, 60)  # noqa: B023 - called at once
            restart(runtime)
        for thread in threads:
            thread.join(60)
        assert sorted(revisions) == [*range(1, 601)]
        assert client.status().revision == 600


def test_lease_outlives_its_manager(tmp_path: Path) -> None:
    """It belongs to the session, which the next manager knows."""
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:
        client.plans.create_action(
            "act", description="", definition_of_done="", strategy_actor="planner", execution_actor="coder"
        )
        plan_id = client.plans.use_action("local/act", projects=["p"]).plan_id
        client.plans.start_strategize(plan_id)
        restart(runtime)
        assert str(client.plans.complete_strategize(plan_id).position) == "strategize/complete"


def test_manager_that_was_told_to_end_comes_back_too(tmp_path: Path) -> None:
    """Its private directory stays, or is made again, for nobody else."""
    with keeping(tmp_path) as runtime, runtime.client() as client:
        directory = Path(runtime.address).parent
        os.kill(runtime.pid, signal.SIGTERM)
        eventually(lambda: runtime.restarts == 1, 60)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        client.status()
    assert not directory.exists()


def test_budget_that_was_chosen_since_is_kept(tmp_path: Path) -> None:
    """A restart is no start: what the program began with does not come back."""
    with sw.Runtime.start(
        workers=0, data_dir=tmp_path, budget=sw.TierBudget(hot_tokens=100), log_level="error"
    ) as runtime:
        with runtime.client() as client:
            client.tiers.set_budget(sw.TierBudget(hot_tokens=50))
            restart(runtime)
            assert client.tiers.metrics().budget.hot_tokens == 50


def test_state_is_there_at_the_next_start(tmp_path: Path) -> None:
    """Another runtime, another address, the same state."""
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(fragment("a"))
    with keeping(tmp_path) as runtime, runtime.client(projects=["p"]) as client:
        assert client.tiers.get("a").text == "the body of a"


def test_restart_is_said_on_standard_error_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One line says that it died, and of what."""
    with keeping(tmp_path, "warning") as runtime:
        restart(runtime)
    told = capfd.readouterr()
    assert told.out == ""
    assert "manager.died" in told.err
    assert "exit_code=-9" in told.err


# It does not.


def test_manager_in_memory_is_not_kept() -> None:
    """There is nothing to come back to: no thread, no restart."""
    with sw.Runtime.start(workers=0) as runtime:
        assert not keepers()
        kill(runtime.pid)
        eventually(lambda: not runtime.is_alive())
        with pytest.raises(sw.RuntimeLost):
            runtime.client()
        assert runtime.restarts == 0


def test_manager_that_dies_too_often_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Then its clients are told that it is lost."""
    monkeypatch.setattr(limits, "RESTARTS_MAX", 2)
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0)
    with keeping(tmp_path) as runtime, runtime.client() as client:
        restart(runtime)
        restart(runtime)
        kill(runtime.pid)
        eventually(lambda: not keepers())
        assert not runtime.is_alive()
        with pytest.raises(sw.RuntimeLost):
            client.tiers.metrics()
        with pytest.raises(sw.RuntimeLost):
            runtime.client()
        assert runtime.restarts == 2
    assert "it dies again and again" in capfd.readouterr().err


def test_deaths_of_long_ago_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those within a minute do."""
    monkeypatch.setattr(limits, "RESTARTS_MAX", 1)
    monkeypatch.setattr(limits, "RESTARTS_SECONDS", 0.0)
    with keeping(tmp_path) as runtime:
        restart(runtime)
        restart(runtime)


def test_manager_whose_store_failed_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another one would meet the same disk."""
    monkeypatch.setattr(runtime_module, "STORE_FAILED", -signal.SIGKILL)
    with keeping(tmp_path) as runtime:
        kill(runtime.pid)
        eventually(lambda: not keepers())
        assert (runtime.restarts, runtime.is_alive()) == (0, False)
    assert "cannot be used" in capfd.readouterr().err


@pytest.mark.parametrize(
    "boot",
    ["raise SystemExit(3)", "import signal; signal.pause()"],
    ids=["it ends while starting", "it never comes up"],
)
def test_manager_that_cannot_be_started_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], boot: str
) -> None:
    """Each attempt counts, and none of them is left behind."""
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 0)
    with keeping(tmp_path, "warning") as runtime:
        monkeypatch.setattr(process_module, "_BOOT", boot)
        monkeypatch.setattr(limits, "MANAGER_START_SECONDS_MAX", 0.2)
        monkeypatch.setattr(limits, "MANAGER_END_SECONDS_MAX", 0.2)
        kill(runtime.pid)
        eventually(lambda: not keepers(), 60)
        assert (runtime.restarts, runtime.is_alive()) == (0, False)
    assert capfd.readouterr().err.count("manager.not_restarted") == limits.RESTARTS_MAX


def test_attempts_become_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps a manager from starting may be over in a few seconds: the attempts last longer than that."""
    monkeypatch.setattr(limits, "RESTARTS_MAX", 4)
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 0.05)
    start, started_at_s = runtime_module._start_manager, list[float]()

    def note_and_start(settings: Settings) -> ChildProcess:
        started_at_s.append(time.monotonic())
        return start(settings)

    with keeping(tmp_path) as runtime:
        monkeypatch.setattr(process_module, "_BOOT", "raise SystemExit(3)")
        monkeypatch.setattr(runtime_module, "_start_manager", note_and_start)
        kill(runtime.pid)
        eventually(lambda: not keepers(), 60)
    pauses_s = [later - earlier for earlier, later in pairwise(started_at_s)]
    assert [pause_s >= least_s for pause_s, least_s in zip(pauses_s, (0.1, 0.3, 0.7), strict=True)] == [True] * 3


def test_manager_whose_data_is_damaged_is_given_up_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Another one would find the same bytes."""
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 0.0)
    with keeping(tmp_path, "warning") as runtime:
        os.kill(runtime.pid, signal.SIGSTOP)
        (tmp_path / DATABASE).write_bytes(b"no database" * 1_000)
        (tmp_path / f"{DATABASE}-wal").unlink()
        kill(runtime.pid)
        eventually(lambda: not keepers(), 60)
        assert (runtime.restarts, runtime.is_alive()) == (0, False)
    told = capfd.readouterr().err
    assert told.count("manager.not_restarted") == 1
    assert "its data directory cannot be used" in told


def test_directory_that_is_gone_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would pass for what was there: the manager is lost, and its clients are told so."""
    monkeypatch.setattr(limits, "RESTARTS_MAX", 2)
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 0.0)
    with keeping(tmp_path / "data") as runtime, runtime.client() as client:
        os.kill(runtime.pid, signal.SIGSTOP)
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        kill(runtime.pid)
        eventually(lambda: not keepers(), 60)
        assert (runtime.restarts, runtime.is_alive()) == (0, False)
        with pytest.raises(sw.RuntimeLost):
            client.tiers.metrics()
    assert not (tmp_path / "data").exists()


def test_interpreter_that_cannot_be_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a process is made: it is given up, too."""
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 0)
    with keeping(tmp_path) as runtime:
        monkeypatch.setattr(spawn, "_python_exe", os.fsencode(tmp_path / "nonexistent"))
        kill(runtime.pid)
        eventually(lambda: not keepers())
        assert not runtime.is_alive()


# It ends.


def test_close_ends_the_thread(tmp_path: Path) -> None:
    """At once and twice; and a closed one does not come back."""
    with keeping(tmp_path) as runtime:
        assert len(keepers()) == 1
        runtime.close()
        assert not keepers()
        assert not is_alive(runtime.pid)
        assert not Path(runtime.address).parent.exists()
        runtime.close()
        assert not runtime.is_alive()


def test_close_right_after_a_death(tmp_path: Path) -> None:
    """Whether the thread has noticed it, or is starting the next one, or has done so: nothing stays."""
    moments: list[Callable[[sw.Runtime, int], bool]] = [
        lambda _, __: True,
        lambda _, killed: not is_alive(killed),
        lambda runtime, killed: runtime.pid != killed,
        lambda runtime, _: runtime.restarts == 1,
    ]
    for moment in moments:
        with keeping(tmp_path) as runtime:
            killed = runtime.pid
            kill(killed)
            eventually(lambda: moment(runtime, killed), 60)  # noqa: B023 - called at once
            runtime.close()
            assert not keepers()
            assert not is_alive(runtime.pid)
            assert not Path(runtime.address).parent.exists()


def test_close_while_a_restart_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not come up and does not end either is killed."""
    with keeping(tmp_path) as runtime:
        monkeypatch.setattr(process_module, "_BOOT", "import signal; signal.pause()")
        monkeypatch.setattr(limits, "MANAGER_END_SECONDS_MAX", 0.2)
        killed = runtime.pid
        kill(killed)
        eventually(lambda: runtime.pid != killed)
        runtime.close()
        assert not is_alive(runtime.pid)


def test_close_between_two_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the next one, however far off it is."""
    monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 120.0)
    with keeping(tmp_path) as runtime:
        restart(runtime)
        kill(runtime.pid)
        eventually(lambda: len(runtime._supervisor._died_at_s) == 2)
        before_s = time.monotonic()
        runtime.close()
        assert time.monotonic() - before_s < 60
        assert not keepers()


def test_watch_of_a_closed_runtime_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows as well as any call that nobody starts the manager again."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0)
    with keeping(tmp_path) as runtime, runtime.client() as client, client.watch() as watch:
        runtime.close()
        with pytest.raises(sw.RuntimeLost):
            watch.get(60.0)


def test_manager_that_is_stopped_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot drain, and the thread that waits for it is not waited for."""
    monkeypatch.setattr(limits, "MANAGER_END_SECONDS_MAX", 0.2)
    with keeping(tmp_path) as runtime:
        os.kill(runtime.pid, signal.SIGSTOP)
        runtime.close()
        assert not is_alive(runtime.pid)
        assert not keepers()


def test_nobody_waits_for_a_manager_that_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runtime's clients know that it does not come back."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0)
    with keeping(tmp_path) as runtime, runtime.client() as client:
        runtime.close()
        with pytest.raises(sw.RuntimeLost):
            client.tiers.metrics()


def test_dropped_runtime_ends(tmp_path: Path) -> None:
    """The thread does not keep it: whoever forgets it gets rid of its manager."""
    runtime = sw.Runtime.start(workers=0, data_dir=tmp_path, log_level="error")
    pid = runtime.pid
    del runtime
    gc.collect()
    eventually(lambda: not is_alive(pid))
    eventually(lambda: not keepers())


def test_forked_child_keeps_nothing(tmp_path: Path) -> None:
    """Neither closing nor dropping it there ends the parent's manager, which still comes back."""
    with keeping(tmp_path) as runtime:

        def child() -> None:
            assert not keepers()
            runtime._supervisor.release()
            runtime.close()
            with runtime.client() as client:
                client.status()
                os.write(ready, b"x")
                assert os.read(killed, 1)
                client.status()

        reader, ready = os.pipe()
        killed, writer = os.pipe()
        pid = fork(child)
        assert os.read(reader, 1)
        assert runtime.is_alive()
        kill(runtime.pid)
        os.write(writer, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        for descriptor in (reader, ready, killed, writer):
            os.close(descriptor)
        eventually(lambda: runtime.restarts == 1)


PROGRAM = """
import os, signal, sys, stepwell
runtime = stepwell.Runtime.start(workers=0, data_dir=sys.argv[1])
print(runtime.pid, runtime.address, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["signal.pause()", "", "1 / 0", "os._exit(4)"])
def test_program_that_ends_takes_its_manager_along(tmp_path: Path, ending: str) -> None:
    """Killed or not: it is not started again, and nothing of it stays but its data."""
    program = [sys.executable, "-c", PROGRAM.format(ending=ending), str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        manager, address = running.stdout.readline().split()
        if ending == "signal.pause()":
            running.kill()
        running.wait(60)
        promptly(lambda: not is_alive(int(manager)), ORPHAN_SECONDS)
        promptly(lambda: not Path(address).parent.exists(), ORPHAN_SECONDS)


# What it is told.


def test_bad_durability_is_said_at_once(tmp_path: Path) -> None:
    """And what would be a good one."""
    with pytest.raises(sw.InvalidArgument, match="data_dir="):
        sw.Runtime.start(workers=0, durability="disk")
    for durability in ("none", "tape", ""):
        with pytest.raises(sw.InvalidArgument, match="one of disk, process"):
            sw.Runtime.start(workers=0, data_dir=tmp_path, durability=durability)
    assert not [*tmp_path.iterdir()]


def test_durability_is_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On disk unless said otherwise; a relative directory is the program's."""
    monkeypatch.chdir(tmp_path)
    for given, found in ((None, "disk"), ("disk", "disk"), ("process", "process")):
        with sw.Runtime.start(workers=0, data_dir="data", durability=given) as runtime, runtime.client() as client:
            status = client.status()
            assert status.durability == found
            assert Path(status.database or "").parent == tmp_path / "data"
