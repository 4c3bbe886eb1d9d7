"""The index of reads among real processes: never torn, never old, and every read that it cannot answer is a request."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.client.api.fragments import StoredFragment
from stepwell.domain.tiers.commands import GetFragment
from stepwell.limits import KIB, MIB
from stepwell.protocol.fragment_index import SEQUENCE
from stepwell.protocol.messages import (
    VERSION,
    ClientMessage,
    Hello,
    ManagerMessage,
    Request,
    Welcome,
)
from stepwell.prove.restarts import KillableManager
from stepwell.transport.connection import Connection
from tests.support import killable_manager
from tests.support.client.sessions import in_threads
from tests.support.data_directories import durable_settings
from tests.support.peers import RawPeer
from tests.support.peers import store as store_command
from tests.support.processes import fork, run_all, spawned
from tests.support.programs import index_readers
from tests.support.programs.index_readers import ACKNOWLEDGED, ALWAYS_NS, COUNTER, PAIR, PROJECT, READS, STOP, Progress
from tests.support.soak import IS_LONG
from tests.support.wait import eventually

ROUNDS = 1_000_000 if IS_LONG else 1_500
KILLS = 200 if IS_LONG else 3
BUDGET = sw.TierBudget(arena_bytes=16 * MIB)


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, budget=BUDGET, log_level="error") as started:
        yield started


def store(client: sw.Client, *names: str, body: str = "", tier: sw.Tier = sw.Tier.HOT) -> None:
    for name in names:
        client.tiers.store(sw.Fragment(fragment_id=name, project=PROJECT, body=body or name, tokens=1), tier=tier)


def until_indexed(client: sw.Client, name: str) -> None:
    """Read a fragment until it is read in shared memory."""

    def is_indexed() -> bool:
        """The fragment is in the index, and the client has it."""
        client.tiers.get(name, project=PROJECT)
        return client.tiers._peek_indexed(name, PROJECT) is not None

    eventually(is_indexed)


def is_stopped(pid: int) -> bool:
    """A signal to stop takes effect a moment later."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_transaction_is_never_torn(runtime: sw.Runtime) -> None:
    """One publication changes two fragments, again and again: a reader that has seen it sees no older state."""
    readers = 2
    with runtime.client() as client, ExitStack() as stack:
        index_readers.store_pair(client, 0)
        processes = [
            stack.enter_context(spawned(index_readers.check_order, runtime.address, ROUNDS, timeout_s=600.0))
            for _ in range(readers)
        ]
        for number in range(1, ROUNDS + 1):
            index_readers.store_pair(client, number)
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0] * readers


def test_killed_manager_is_not_read_for_ever(tmp_path: Path) -> None:
    """A client that only reads never returns less than what was acknowledged to another, however managers die."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    path = tmp_path / "progress"
    progress = Progress(path)
    with KillableManager(tmp_path) as manager:
        with sw.connect(manager.address, [PROJECT]) as client:
            store(client, COUNTER, body="0")
        with (
            spawned(index_readers.write, manager.address, str(path)) as writer,
            spawned(index_readers.read, manager.address, str(path)) as reader,
        ):
            try:
                for _ in range(KILLS):
                    written = progress[ACKNOWLEDGED] + generator.randint(5, 150)
                    read = progress[READS] + generator.randint(5, 500)

                    def is_due() -> bool:
                        """Both have gone on, or one has failed."""
                        goes_on = progress[ACKNOWLEDGED] > written and progress[READS] > read  # noqa: B023
                        return goes_on or writer.exitcode is not None or reader.exitcode is not None

                    eventually(is_due)
                    assert (writer.exitcode, reader.exitcode) == (None, None)
                    manager.kill()
            finally:
                progress[STOP] = 1
            for process in (writer, reader):
                process.join(60)
            assert (writer.exitcode, reader.exitcode) == (0, 0)
    progress.close()


class TestStopped:
    def test_stopped_manager(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """While it is stopped, nothing torn is read, and soon nothing at all: a read then waits for it to go on."""
        with (
            sw.Runtime.start(workers=0, budget=BUDGET, log_level="error") as runtime,
            runtime.client([PROJECT]) as client,
            runtime.client([PROJECT]) as other,
        ):
            index_readers.store_pair(other, 0)
            for name in PAIR:
                until_indexed(client, name)
            written = threading.Event()
            failures: list[BaseException] = []
            answers: list[tuple[StoredFragment, bool]] = []
            asked, goes_on = threading.Event(), threading.Event()
            exchange = Connection.exchange

            def watched(self: Connection, message: ClientMessage) -> ManagerMessage:
                if isinstance(message, Request) and isinstance(message.commands[0], GetFragment):
                    asked.set()
                return exchange(self, message)

            monkeypatch.setattr(Connection, "exchange", watched)

            def write() -> None:
                try:
                    for number in range(1, 300):
                        index_readers.store_pair(other, number)
                        written.set()
                except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                    failures.append(error)

            writer = threading.Thread(target=write)
            writer.start()
            try:
                assert written.wait(60)
                os.kill(runtime.pid, signal.SIGSTOP)
                eventually(lambda: is_stopped(runtime.pid))

                def is_over() -> bool:
                    """The index is not valid any more."""
                    found = [client.session.reads.index.find((PROJECT, name), ALWAYS_NS) for name in PAIR]
                    if found[0] is None or found[1] is None:
                        return found[1] is None
                    assert found[0].row.revision == found[1].row.revision, "the two fragments are of two publications"
                    return False

                eventually(is_over)
                reader = threading.Thread(target=lambda: answers.append((client.tiers.get(PAIR[0]), goes_on.is_set())))
                reader.start()
                eventually(asked.is_set)
                goes_on.set()
            finally:
                os.kill(runtime.pid, signal.SIGCONT)
                writer.join()
            reader.join()
            ((found, has_waited),) = answers
            assert (failures, has_waited, int(found.text) >= 0) == ([], True, True)
            until_indexed(client, PAIR[1])
            assert client.tiers.peek(PAIR[1]).text == "299"


def test_killed_during_a_publication(tmp_path: Path) -> None:
    """What a manager has half published is not read, although it is still valid. What it has not changed is."""
    with (
        durable_settings(tmp_path / "data") as settings,
        killable_manager.running(settings, "during publication"),
        sw.connect(settings.address, [PROJECT]) as client,
        RawPeer(settings.address) as other,
    ):
        store(client, "a", "b")
        for name in "ab":
            until_indexed(client, name)
        index = client.session.reads.index._index
        assert index is not None
        assert index.words[SEQUENCE] % 2 == 0
        other.send(Hello(VERSION, "other", None))
        other.expect(Welcome)
        # The manager dies at the next record that it writes: for the second store, or in an idle moment before.
        other.send(Request(1, (store_command(killable_manager.FATAL),)))
        if other.receive() is not None:
            with suppress(ConnectionError):
                other.send(Request(2, (store_command("a", b"new"),)))
            assert other.receive() is None
        assert index.words[SEQUENCE] % 2 == 1
        found = {name: client.tiers._peek_indexed(name, None) for name in "ab"}
        assert {name: each.text for name, each in found.items() if each is not None}.items() <= {
            "a": "a",
            "b": "b",
        }.items()
        assert client.tiers._peek_indexed(killable_manager.FATAL, None) is None


def test_restarted_manager(tmp_path: Path) -> None:
    """Reads go on, first as requests, and then in the index of the next manager."""
    with KillableManager(tmp_path) as manager, sw.connect(manager.address, [PROJECT]) as client:
        store(client, "a", "b")
        for round_number in range(2):
            until_indexed(client, "a")
            index = client.session.reads.index._index
            manager.kill()
            store(client, "a", body=f"after {round_number}")
            assert client.tiers.get("a").text == f"after {round_number}"
            until_indexed(client, "a")
            assert client.session.reads.index._index is not index
            assert client.tiers.get("b").text == "b"


def test_client_that_only_reads_pins_nothing(runtime: sw.Runtime) -> None:
    """It learns of retired segments, because it sends its reads to the manager now and then."""
    names = [f"large {number}" for number in range(40)]
    with runtime.client([PROJECT]) as client, runtime.client([PROJECT]) as reader:
        for number in range(6):
            store(client, *names, body=f"{number} " * (20 * KIB))
            for name in names:
                assert reader.tiers.get(name).text.startswith(f"{number} ")

        def is_released() -> bool:
            """No retired segment is mapped."""
            reader.tiers.get(names[0])
            return client.status().memory.retired_segments == 0

        eventually(is_released)
        for name in names:
            client.tiers.delete(name)


def test_no_room_to_map_the_index(runtime: sw.Runtime) -> None:
    """A process with a small `ulimit -v` reads by requests."""
    names = [f"little {number}" for number in range(5)]
    with runtime.client([PROJECT]) as client:
        store(client, *names)
        until_indexed(client, names[0])
        run_all(index_readers.read_with_little_room, [(runtime.address, names)])


class TestSameAnswers:
    NAMES = (*(f"same {number}" for number in range(12)), "not there")

    @pytest.fixture
    def client(self, runtime: sw.Runtime) -> Iterator[sw.Client]:
        with runtime.client([PROJECT]) as made:
            for number, name in enumerate(self.NAMES[:-1]):
                store(made, name, tier=[*sw.Tier][number % 3] if number % 2 else sw.Tier.HOT)
            until_indexed(made, self.NAMES[0])
            yield made

    def expected(self, client: sw.Client) -> dict[str, str]:
        """The texts, by requests."""
        with client.batch() as batch:
            pending = {name: batch.tiers.peek(name) for name in self.NAMES[:-1]}
        return {name: each.result().text for name, each in pending.items()}

    def check(self, client: sw.Client) -> None:
        """Every way to read gives what requests give."""
        expected = self.expected(client)
        for _ in range(2):
            assert {name: each.text for name, each in client.tiers.get_many(self.NAMES).items()} == expected
            assert {name: client.tiers.peek(name).text for name in expected} == expected
            assert {name: client.tiers.get(name).text for name in expected} == expected
            assert {name for name in self.NAMES if client.tiers.contains(name)} == {*expected}

    def test_two_clients_and_threads(self, client: sw.Client, runtime: sw.Runtime) -> None:
        """Each with an index of its own, and many threads with one."""
        with runtime.client([PROJECT]) as other:
            self.check(other)
            in_threads(4, lambda _: self.check(client))

    def test_forked_child(self, client: sw.Client) -> None:
        """It has the client of its parent, and a session of its own."""
        self.check(client)
        assert os.waitstatus_to_exitcode(os.waitpid(fork(lambda: self.check(client)), 0)[1]) == 0
        self.check(client)

    def test_event_loop(self, client: sw.Client, runtime: sw.Runtime) -> None:
        """The asyncio client uses the same path."""
        expected = self.expected(client)

        async def main() -> None:
            async with sw.aio.connect(runtime.address, [PROJECT]) as other:
                for _ in range(3):
                    many = await other.tiers.get_many(self.NAMES)
                    assert {name: each.text for name, each in many.items()} == expected
                    for name in expected:
                        assert (await other.tiers.get(name)).text == expected[name]
                        assert (await other.tiers.peek(name)).text == expected[name]
                    assert {name for name in self.NAMES if await other.tiers.contains(name)} == {*expected}
                assert other.blocking_client.session.reads.index._index is not None

        asyncio.run(main())
