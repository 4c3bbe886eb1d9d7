"""The simulator: a seed is always the same run, the real code passes, and a bug that is put back is found."""

import asyncio
import itertools
import random
import socket
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from stepwell.storage.schema import migrate
from stepwell.storage.table import add_checksum_function
from tests.simulator.bugs.registry import BUGS
from tests.simulator.clock import SimulatedClock
from tests.simulator.disk import SECTOR_BYTES, SimulatedDatabase, SimulatedDisk
from tests.simulator.event_loop import SimulatedEventLoop
from tests.simulator.network import Network, SimulatedSocket
from tests.simulator.run import run, run_seed
from tests.simulator.settings import FaultKind, settings_of
from tests.simulator.shrink import regressions, shrunk
from tests.simulator.store_files import DATABASE, create_tables
from tests.simulator.workloads import WORKLOADS
from tests.support.processes import in_forked_child

FOUND_SOON = "reply-before-commit"
SEEDS_MAX = 200
VERSIONS = ("PRAGMA application_id", "PRAGMA user_version")


@pytest.mark.parametrize("seed", [5, 11, 23])
def test_seed_is_always_the_same_run(seed: int) -> None:
    """Two runs of a seed give the same digest of all that was asked, told and committed."""
    first, _ = run_seed(seed)
    second, _ = run_seed(seed)
    assert first.violation is None
    assert first == second
    assert first.digest


def test_every_fault_happens() -> None:
    """A few hundred seeds have every workload and every kind of fault among them."""
    found = [settings_of(seed, tuple(WORKLOADS)) for seed in range(200)]
    assert {name for each in found for name in each.workloads} == {*WORKLOADS}
    assert {kind for each in found for kind in each.faults} == {*FaultKind}


def test_bug_is_found_and_shrunk() -> None:
    """With a bug put back a seed fails, a smaller run fails too, and the same run passes without the bug.

    A run that fails leaves its clients in the middle of their calls, with views of shared memory: a process of its own
    takes them along.
    """
    in_forked_child(find_and_shrink)


def find_and_shrink() -> None:
    with BUGS[FOUND_SOON].put_back():
        failed = next(seed for seed in range(1, SEEDS_MAX) if run_seed(seed)[0].violation)
        settings = settings_of(failed, tuple(WORKLOADS))
        smaller, result = shrunk(settings)
    assert result.violation is not None
    assert (smaller.clients, smaller.operations) <= (settings.clients, settings.operations)
    assert run(smaller).violation is None


def test_tables_that_are_created_at_once() -> None:
    """They are those that the migrations leave, under the same version."""
    migrated, created = (SimulatedDatabase(SimulatedDisk(), DATABASE) for _ in range(2))
    add_checksum_function(migrated)
    assert migrate(migrated) == create_tables(created) == 0
    for query in ("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name", *VERSIONS):
        found = created.execute(query).fetchall()
        assert found == migrated.execute(query).fetchall()
        assert found


@pytest.mark.parametrize("name", regressions())
def test_regression_passes(name: str) -> None:
    """A run that failed once passes now."""
    assert run(regressions()[name]).violation is None


class TestDisk:
    def test_flushed_writes_survive(self) -> None:
        """Whatever the power failure does to the others."""
        for seed in range(50):
            disk = SimulatedDisk()
            file = disk.create("/a")
            file.write(0, b"x" * 4 * SECTOR_BYTES)
            file.flush()
            disk.flush_names()
            file.write(0, b"y" * 4 * SECTOR_BYTES)
            disk.lose_power(random.Random(seed))
            found = disk.names["/a"].content
            assert len(found) == 4 * SECTOR_BYTES
            sectors = {bytes(found[start : start + SECTOR_BYTES]) for start in range(0, len(found), SECTOR_BYTES)}
            assert sectors <= {b"x" * SECTOR_BYTES, b"y" * SECTOR_BYTES}

    def test_unflushed_writes_are_kept_dropped_and_torn(self) -> None:
        """All three fates happen."""
        fates = set()
        for seed in range(50):
            disk = SimulatedDisk()
            file = disk.create("/a")
            disk.flush_names()
            file.write(0, b"y" * 4 * SECTOR_BYTES)
            disk.lose_power(random.Random(seed))
            fates.add(min(len(file.content), 2 * SECTOR_BYTES) if len(file.content) < 4 * SECTOR_BYTES else "kept")
        assert {0, "kept"} < fates

    def test_name_that_was_not_flushed_may_be_lost(self) -> None:
        """A new file without a flush of its directory is there or not."""
        found = set()
        for seed in range(50):
            disk = SimulatedDisk()
            disk.create("/a")
            disk.lose_power(random.Random(seed))
            found.add("/a" in disk.names)
        assert found == {True, False}

    def test_committed_rows_survive_the_death_of_a_process(self) -> None:
        """SQLite finds its log on the disk; what the dead connection does later changes nothing."""
        disk = SimulatedDisk()
        dead = SimulatedDatabase(disk, "/data/db")
        dead.execute("PRAGMA journal_mode = WAL")
        dead.execute("CREATE TABLE t (a)")
        dead.execute("INSERT INTO t VALUES (1)")
        disk.kill()
        dead.execute("INSERT INTO t VALUES (2)")
        dead.close()
        disk.is_detached = False
        living = SimulatedDatabase(disk, "/data/db")
        assert living.execute("SELECT a FROM t").fetchall() == [(1,)]
        living.close()


class IdleMachine:
    """A machine on which nothing happens while the event loop waits."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()

    def wait(self, timeout_s: float | None, is_ready: Callable[[], bool]) -> None:
        """Return at once."""


@pytest.fixture
def simulated_loop() -> Iterator[SimulatedEventLoop]:
    """Yield an event loop of an idle machine."""
    loop = SimulatedEventLoop(IdleMachine())
    yield loop
    loop.close()


def dialled(watcher: SimulatedEventLoop) -> tuple[Network, SimulatedSocket, SimulatedSocket]:
    """Return a network, and both ends of a stream of it."""
    network = Network(itertools.count(1).__next__)
    listener = network.listen(watcher)
    client = network.dial(pid=1, server_pid=2, capacity=100)
    server, _ = listener.accept()
    return network, client, server


def callbacks_that_run(loop: asyncio.AbstractEventLoop, watched: socket.socket) -> list[str]:
    """Return which callbacks of a socket run in one round of a loop, if that for reading removes both."""
    ran: list[str] = []

    def on_readable() -> None:
        ran.append("reader")
        loop.remove_reader(watched)
        loop.remove_writer(watched)

    loop.add_reader(watched, on_readable)
    loop.add_writer(watched, ran.append, "writer")
    loop.call_soon(loop.call_soon, loop.stop)
    loop.run_forever()
    return ran


class TestEventLoop:
    def test_removed_callback_does_not_run(self, simulated_loop: SimulatedEventLoop) -> None:
        """Not even if it was due in the same round: a client that has closed its connection sends nothing more."""
        network, client, server = dialled(simulated_loop)
        server.send(b"x")
        network.deliver(client.incoming, 1)
        assert client.is_writable
        assert callbacks_that_run(simulated_loop, cast("socket.socket", client)) == ["reader"]

    def test_loop_of_asyncio_does_the_same(self) -> None:
        """The clients rely on it, and the simulated loop takes the place of this one."""
        loop = asyncio.new_event_loop()
        near, far = socket.socketpair()
        with near, far:
            far.send(b"x")
            assert callbacks_that_run(loop, near) == ["reader"]
        loop.close()


class TestNetwork:
    def test_closed_socket_refuses_every_call(self, simulated_loop: SimulatedEventLoop) -> None:
        """It neither sends nor receives, and what was sent before it was closed arrives."""
        network, client, server = dialled(simulated_loop)
        client.send(b"before")
        client.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            client.send(b"after")
        with pytest.raises(OSError, match="Bad file descriptor"):
            client.recvmsg_into([bytearray(10)], 0)
        network.deliver(client.outgoing, 100)
        received = bytearray(10)
        assert server.recv_into(received) == len(b"before")
        assert server.recv_into(received) == 0
