"""The first connect to a manager that is being restarted waits for it, and no other first connect waits."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell import runtime as runtime_module
from stepwell.manager.process import Settings
from stepwell.process import ChildProcess
from tests.support.processes import is_alive, kill
from tests.support.wait import eventually

WAITS = "waits\n"

CLIENT = """
import asyncio, sys, stepwell
from stepwell.client.session.delivery import Delivery, Retry

decide = Delivery.unreachable
is_told = False

def tell_and_decide(self, unreachable, seen):
    global is_told
    decision = decide(self, unreachable, seen)
    if not is_told and isinstance(decision, Retry):
        is_told = True
        print("waits", flush=True)
    return decision

Delivery.unreachable = tell_and_decide

def blocking(address):
    with stepwell.connect(address) as client:
        return client.status().pid

async def awaited(address):
    from stepwell import aio
    async with await aio.connect(address) as client:
        return (await client.status()).pid

def watching(address):
    with stepwell.connect(address) as client, client.watch(since=0) as watch:
        return client.status().pid if watch.get(60) else None

try:
    deed = {"blocking": blocking, "aio": lambda address: asyncio.run(awaited(address)), "watch": watching}[sys.argv[1]]
    print(deed(sys.argv[2]))
except stepwell.StepwellError as error:
    print(error.kind, error.message)
"""


@contextmanager
def connecting(kind: str, address: str) -> Iterator[subprocess.Popen[str]]:
    """A client of another process, which says when it begins to wait, and then what it got."""
    program = [sys.executable, "-c", CLIENT, kind, address]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


@contextmanager
def held_restart(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[sw.Runtime, threading.Event]]:
    """A runtime whose manager was killed, and whose restart waits for an event."""
    start, is_held, go_on = runtime_module._start_manager, threading.Event(), threading.Event()

    def hold_and_start(settings: Settings) -> ChildProcess:
        is_held.set()
        assert go_on.wait(60)
        return start(settings)

    with sw.Runtime.start(workers=0, data_dir=data_dir, durability="process", log_level="error") as runtime:
        with runtime.client(projects=["p"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body="kept", tokens=1))
        monkeypatch.setattr(runtime_module, "_start_manager", hold_and_start)
        kill(runtime.pid)
        try:
            assert is_held.wait(60)
            yield runtime, go_on
        finally:
            go_on.set()


@pytest.mark.parametrize("kind", ["blocking", "aio", "watch"])
def test_connect_during_a_restart_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """From another process, which knows nothing but the address: it is connected to the next manager."""
    with held_restart(tmp_path, monkeypatch) as (runtime, go_on), connecting(kind, runtime.address) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == WAITS
        go_on.set()
        assert int(client.stdout.readline()) == runtime.pid


def test_socket_that_is_gone_during_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that ended by itself has removed its socket: that is no other address."""
    with held_restart(tmp_path, monkeypatch) as (runtime, go_on):
        Path(runtime.address).unlink()
        with connecting("blocking", runtime.address) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == WAITS
            go_on.set()
            assert int(client.stdout.readline()) == runtime.pid


def test_restart_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connect waits no longer than every other call, and says what it could not find."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 0.1)
    with held_restart(tmp_path, monkeypatch) as (runtime, _):
        with pytest.raises(sw.RuntimeLost, match="there is no manager at"):
            sw.connect(runtime.address)
        with pytest.raises(sw.RuntimeLost, match="there is no manager at"):
            runtime.client()


def test_runtime_that_is_closed_during_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers and clients do not wait for a manager that nobody starts any more."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0)
    monkeypatch.setattr(limits, "MANAGER_END_SECONDS_MAX", 0.2)
    with sw.Runtime.start(workers=1, data_dir=tmp_path, log_level="error") as runtime:
        monkeypatch.setattr(limits, "RESTART_PAUSE_SECONDS", 3_600.0)
        kill(runtime.pid)
        eventually(lambda: runtime.restarts == 1, 60)
        kill(runtime.pid)
        eventually(lambda: not runtime.is_alive())
        runtime.close()
    with pytest.raises(sw.RuntimeLost):
        runtime.client()


PROGRAM = """
import signal, sys, stepwell
runtime = stepwell.Runtime.start(workers=0, data_dir=sys.argv[1], log_level="error")
print(runtime.pid, runtime.address, flush=True)
signal.pause()
"""


@contextmanager
def supervising(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A program with a runtime: its process, the pid of its manager and the address."""
    program = [sys.executable, "-c", PROGRAM, str(data_dir)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            manager, address = running.stdout.readline().split()
            yield running, int(manager), address
        finally:
            running.kill()


def all_threads_are_stopped(pid: int) -> bool:
    states = [each.read_text().rpartition(")")[2].split()[0] for each in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def test_killed_program_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manager and program are killed, the socket and the lock are left: the connect fails at once, and says why."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0)
    with supervising(tmp_path) as (program, manager, address):
        os.kill(program.pid, signal.SIGSTOP)  # it must not restart the manager
        eventually(lambda: all_threads_are_stopped(program.pid))
        kill(manager)
        eventually(lambda: not is_alive(manager))
        program.kill()
        program.wait(60)
        assert Path(address).exists()
        assert Path(f"{address}.restarts").exists()
        with pytest.raises(sw.RuntimeLost, match=r"there is no manager at .*Connection refused"):
            sw.connect(address)
        shutil.rmtree(Path(address).parent)


def test_address_without_a_manager_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There never was one: no client waits."""
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0)
    with pytest.raises(sw.RuntimeLost, match=r"there is no manager at .*No such file"):
        sw.connect(tmp_path / "nothing.sock")
    with sw.Runtime.start(workers=0) as runtime:  # nothing to come back with
        kill(runtime.pid)
        eventually(lambda: not runtime.is_alive())
        with pytest.raises(sw.RuntimeLost, match=r"there is no manager at .*Connection refused"):
            sw.connect(runtime.address)


def test_second_runtime_does_not_take_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two managers of the first one, the address is not free."""
    with held_restart(tmp_path / "first", monkeypatch) as (runtime, go_on):
        with pytest.raises(sw.StartFailed, match="another program restarts the manager"):
            sw.Runtime.start(workers=0, data_dir=tmp_path / "second", address=runtime.address)
        go_on.set()
        with sw.connect(runtime.address, projects=["p"]) as client:
            assert client.tiers.get("a").text == "kept"


def test_nothing_is_left_at_a_given_address(tmp_path: Path) -> None:
    """Neither the socket nor the lock, whether the runtime is closed or its program killed."""
    address = tmp_path / "private" / "s"
    with sw.Runtime.start(workers=0, data_dir=tmp_path / "data", address=str(address)):
        assert sorted(each.name for each in address.parent.iterdir()) == ["s", "s.restarts"]
    assert not [*address.parent.iterdir()]
    with supervising(tmp_path / "data") as (program, manager, private):
        program.kill()
        program.wait(60)
        eventually(lambda: not is_alive(manager))
        eventually(lambda: not Path(private).parent.exists())
