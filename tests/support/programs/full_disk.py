"""A manager on a file system that is really full, and the errors that its clients of every kind get.

`run` starts this module as a program in a mount namespace of its own, in which a small tmpfs is the disk. The mount
ends with the program, however that ends.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell import aio, limits
from stepwell.domain.tasks.model import StrategyOffer
from stepwell.manager.process import Settings
from stepwell.protocol.messages import JoinAsWorker, WorkerAccepted
from stepwell.telemetry import LogLevel
from stepwell.transport.address import private_directory
from tests.support import killable_manager
from tests.support.peers import RawPeer
from tests.support.wait import PATIENCE_SECONDS, eventually

DISK_BYTES = 4 * limits.MIB
PROJECT = "p"
WAIT_SECONDS = 1.0
"""How long a client waits here for a manager that no program supervises."""

_MOUNTED = 'mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@"'
_IN_NAMESPACE = ["unshare", "--map-root-user", "--mount", "sh", "-c", _MOUNTED, "sh"]


class Met(msgspec.Struct, frozen=True):
    """An error as a caller got it, and its cause."""

    kind: str
    message: str
    details: dict[str, str | int | bool | list[str] | None]
    cause: str


class Report(msgspec.Struct, frozen=True):
    """The errors by caller, the fragments that were acknowledged, and those that the next manager has."""

    met: dict[str, Met]
    acknowledged: list[str]
    found: list[str]


def run(scenario: str, disk: Path) -> Report:
    """Run a scenario on a disk of its own, and return its report. Skip the test where mounting is not allowed."""
    disk.mkdir()
    mounted = [*_IN_NAMESPACE, str(DISK_BYTES), str(disk)]
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a file system")
    program = [sys.executable, "-m", __name__, scenario, str(disk)]
    ended = subprocess.run([*mounted, *program], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], check=True)
    return msgspec.json.decode(ended.stdout, type=Report)


def _fragment(fragment_id: str) -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project=PROJECT, body=f"{fragment_id} " * 200, tokens=1)


class _Callers:
    """Clients of every kind, each in a thread that goes on until its client raises an error.

    A caller that was served once waits for `go_on`. The disk is small: without the wait, quick callers could fill it
    before a slow one has connected.
    """

    def __init__(self, address: str, runtime: sw.Runtime | None) -> None:
        self._address = address
        self._runtime = runtime
        self._pool = ThreadPoolExecutor(16)
        self._worker = RawPeer(address, timeout_s=PATIENCE_SECONDS).hello("worker")  # it finishes no task
        self._worker.send(JoinAsWorker(0, (StrategyOffer("slow"),)))
        self._worker.expect(WorkerAccepted)
        self._met: dict[str, Future[Met]] = {}
        self._served: set[str] = set()
        self._released = threading.Event()
        self.acknowledged: list[str] = []

    def begin(self) -> None:
        """Begin all of them, and return when each has been served once."""
        self._begin("store", lambda client: self._store(client, "s"))
        self._begin("read", lambda client: client.tiers.metrics())
        self._begin("batch", self._batch)
        self._begin("transaction", self._transaction)
        self._begin("store_many", self._store_many)
        self._begin("watch", self._watch)
        self._begin("task", self._await_task)
        self._met["aio store"] = self._pool.submit(asyncio.run, self._store_awaited())
        self._met["aio watch"] = self._pool.submit(asyncio.run, self._watch_awaited())
        if self._runtime is not None:
            self._met["runtime's client"] = self._pool.submit(
                self._until_error, "runtime's client", self._runtime.client, lambda client: self._store(client, "r")
            )
        eventually(lambda: self._served == self._met.keys())

    def go_on(self) -> None:
        """Let every caller call without end."""
        self._released.set()

    def errors(self) -> dict[str, Met]:
        """Return what each of them got in the end."""
        met = {name: future.result(PATIENCE_SECONDS) for name, future in self._met.items()}
        self._pool.shutdown()
        self._worker.close()
        return met

    def _begin(self, name: str, call: Callable[[sw.Client], object]) -> None:
        self._met[name] = self._pool.submit(self._until_error, name, lambda: sw.connect(self._address), call)

    def _until_error(self, name: str, connect: Callable[[], sw.Client], call: Callable[[sw.Client], object]) -> Met:
        with connect() as client:
            while True:
                try:
                    call(client)
                    self._wait_after_first_call(name)
                except sw.StepwellError as error:
                    return _met(error)

    def _wait_after_first_call(self, name: str) -> None:
        self._served.add(name)
        self._released.wait(PATIENCE_SECONDS)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}-{len(self.acknowledged)}"

    def _store(self, client: sw.Client, prefix: str) -> None:
        client.tiers.store(_fragment(name := self._new_id(prefix)))
        self.acknowledged.append(name)

    def _batch(self, client: sw.Client) -> None:
        with client.batch() as batch:
            batch.tiers.store(_fragment(name := self._new_id("b")))
        self.acknowledged.append(name)

    def _transaction(self, client: sw.Client) -> None:
        with client.transaction() as transaction:
            transaction.tiers.store(_fragment(name := self._new_id("t")))
        self.acknowledged.append(name)

    def _store_many(self, client: sw.Client) -> None:
        client.tiers.store_many([_fragment(name := self._new_id("m"))])
        self.acknowledged.append(name)

    def _watch(self, client: sw.Client) -> None:
        with client.watch() as watch:
            self._served.add("watch")
            while True:
                watch.get()

    def _await_task(self, client: sw.Client) -> None:
        request = sw.ContextRequest(projects=[PROJECT], query="anything")
        outcome = client.strategies.submit("slow", request, deadline_s=600)
        self._served.add("task")
        outcome.result(PATIENCE_SECONDS)

    async def _store_awaited(self) -> Met:
        async with await aio.connect(self._address) as client:
            while True:
                try:
                    await client.tiers.store(_fragment(name := self._new_id("a")))
                except sw.StepwellError as error:
                    return _met(error)
                self.acknowledged.append(name)
                await asyncio.to_thread(self._wait_after_first_call, "aio store")

    async def _watch_awaited(self) -> Met:
        async with await aio.connect(self._address) as client:
            try:
                async with client.watch() as watch:
                    self._served.add("aio watch")
                    while True:
                        await watch.get()
            except sw.StepwellError as error:
                return _met(error)


def _met(error: sw.StepwellError) -> Met:
    return Met(error.kind, error.message, error.details, type(error.__cause__).__name__)


def _attempted(call: Callable[[], object]) -> Met:
    try:
        call()
    except sw.StepwellError as error:
        return _met(error)
    raise AssertionError("it succeeded")


def _fill(disk: Path) -> Path:
    """Fill the disk to its last byte, with a file that may be removed again."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (limits.MIB, 4 * limits.KIB, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def _found(data_dir: Path) -> list[str]:
    """Return what the next manager of a directory has."""
    with sw.Runtime.start(workers=0, data_dir=data_dir) as runtime, runtime.client([PROJECT]) as client:
        return [each.fragment_id for each in client.tiers.scoped()]


def full_under_a_runtime(disk: Path) -> Report:
    """The disk fills up; the runtime gives its manager up."""
    data_dir = disk / "data"
    with sw.Runtime.start(workers=0, data_dir=data_dir, log_level="error") as runtime:
        callers = _Callers(runtime.address, runtime)
        callers.begin()
        callers.go_on()
        filler = _fill(disk)
        met = callers.errors()
        met["later client"] = _attempted(runtime.client)
        met["later connect"] = _attempted(lambda: sw.connect(runtime.address))
    filler.unlink()
    return Report(met, callers.acknowledged, _found(data_dir))


def full_at_a_restart(disk: Path) -> Report:
    """The manager is killed, and the next one finds a full disk."""
    data_dir = disk / "data"
    with sw.Runtime.start(workers=0, data_dir=data_dir, log_level="error") as runtime:
        callers = _Callers(runtime.address, runtime)
        callers.begin()
        os.kill(runtime.pid, signal.SIGSTOP)
        callers.go_on()
        filler = _fill(disk)
        os.kill(runtime.pid, signal.SIGKILL)
        met = callers.errors()
        met["later client"] = _attempted(runtime.client)
    filler.unlink()
    return Report(met, callers.acknowledged, _found(data_dir))


def full_without_a_runtime(disk: Path) -> Report:
    """The disk of a manager fills up that no program supervises."""
    data_dir = disk / "data"
    with _serving(data_dir) as address:
        callers = _Callers(address, None)
        callers.begin()
        callers.go_on()
        filler = _fill(disk)
        met = callers.errors()
    filler.unlink()
    return Report(met, callers.acknowledged, _found(data_dir))


@contextmanager
def _serving(data_dir: Path) -> Iterator[str]:
    directory = private_directory()
    address = str(directory / "manager.sock")
    settings = Settings(
        address=address, budget=None, encoding="estimate", data_dir=str(data_dir), log_level=LogLevel.ERROR
    )
    with killable_manager.running(settings):
        yield address
    directory.rmdir()


SCENARIOS: dict[str, Callable[[Path], Report]] = {
    each.__name__: each for each in (full_under_a_runtime, full_at_a_restart, full_without_a_runtime)
}


def main(scenario: str, disk: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        is_supervised = scenario != full_without_a_runtime.__name__
        patch.setattr(limits, "RECONNECT_SECONDS_MAX", 3_600.0 if is_supervised else WAIT_SECONDS)
        report = SCENARIOS[scenario](Path(disk))
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
