"""What is acknowledged survives: death at every point of a turn, a disk that takes no more, a loss of power."""

import resource
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain import invariants
from stepwell.domain.state import State
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.manager.recovery import recover
from stepwell.protocol.codec import decode_results
from stepwell.storage.files.directory import DATABASE
from stepwell.storage.files.mark import MARK
from stepwell.storage.load import load
from stepwell.storage.store import Durability
from tests.support import killable_manager
from tests.support.storage.state import durable_state
from tests.support.syscall_trace import Disk, SystemCall, traced, unflushed_at
from tests.support.wait import eventually


def kept(directory: str | Path) -> State:
    """What a directory holds, with every invariant checked."""
    found = load(Path(directory) / DATABASE)
    assert found is not None
    state = recover(found)
    assert invariants.check(state) == []
    return state


def fragment(fragment_id: str, body: str = "body") -> sw.Fragment:
    return sw.Fragment(fragment_id=fragment_id, project="p", body=body, tokens=1)


class TestFailpoints:
    @pytest.mark.parametrize("point", ["after apply", "before commit", "after commit", "after reply"])
    def test_death_in_the_middle_of_a_batch(self, settings: Settings, point: str) -> None:
        """The manager dies at a slice of a large batch: the client gets all results, and every store happened once.

        Each store requires that its fragment is new, so that a store that is repeated would be a conflict.
        """
        names = [f"f{number}" for number in range(limits.BATCH_COMMANDS_MAX)]
        names[700] = killable_manager.FATAL
        with killable_manager.running(settings, point) as first, sw.connect(settings.address) as client:

            def send() -> list[int]:
                with client.batch() as batch:
                    placed = [batch.tiers.store(fragment(name, name), expected_revision=0) for name in names]
                return [each.result().revision for each in placed]

            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(send)
                assert first.wait(60) == -signal.SIGKILL, "the point was not reached"
                left = load(Path(settings.data_dir or "") / DATABASE)
                assert left is not None
                done = sum(len(decode_results(part.results)) for part in left.reply_parts)
                assert done == len(left.fragments), "the results are committed with what they report"
                assert 0 < done < len(names)
                with killable_manager.running(settings):
                    assert answer.result(60) == [*range(1, len(names) + 1)]
                    assert [each.fragment_id for each in client.tiers.scoped(project="p")] == names
                    client.close()
        assert kept(settings.data_dir or "").revision == len(names)
        found = load(Path(settings.data_dir or "") / DATABASE)
        assert found is not None
        assert found.reply_parts == []

    @pytest.mark.parametrize("point", killable_manager.POINTS)
    def test_death_at_each_point_of_a_turn(self, settings: Settings, point: str) -> None:
        """The manager dies there; the next one has what was acknowledged; the caller has one answer, of one effect."""
        with killable_manager.running(settings, point) as first:
            client = sw.connect(settings.address)
            before = client.tiers.store(fragment("earlier"))
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(client.tiers.store, fragment(killable_manager.FATAL), expected_revision=0)
                assert first.wait(60) == -signal.SIGKILL, "the point was not reached"
                assert ("earlier" in {key[1] for key in kept(settings.data_dir or "").fragments.entries}) is True
                with killable_manager.running(settings):
                    placed = answer.result(60)
                    assert placed.revision == before.revision + 1
                    assert [each.fragment_id for each in client.tiers.scoped(project="p")] == [
                        "earlier",
                        killable_manager.FATAL,
                    ]
                    with client.watch(since=0) as watch:
                        told = [watch.get(60), watch.get(60)]
                    assert [getattr(each, "fragment_id", None) for each in told] == ["earlier", killable_manager.FATAL]
                    client.close()

    def test_transaction_is_there_entirely_or_not_at_all(self, settings: Settings) -> None:
        """A death while a transaction is written leaves none of it, and sending it again leaves all of it."""
        with killable_manager.running(settings, "before commit") as first:
            client = sw.connect(settings.address)

            def transact() -> None:
                with client.transaction() as transaction:
                    for number in range(50):
                        transaction.tiers.store(fragment(f"t{number}"))
                    transaction.tiers.store(fragment(killable_manager.FATAL))

            with ThreadPoolExecutor(1) as pool:
                done = pool.submit(transact)
                assert first.wait(60) == -signal.SIGKILL
                assert len(kept(settings.data_dir or "").fragments) == 0
                with killable_manager.running(settings):
                    done.result(60)
                    assert len(kept(settings.data_dir or "").fragments) == 51
                    client.close()


class TestDiskThatTakesNoMore:
    @pytest.mark.parametrize("room", [0, 300_000], ids=["read-only", "full"])
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_manager_stops_and_everything_acknowledged_is_there(self, settings: Settings, room: int) -> None:
        """The kernel refuses its writes: it stops with its own exit code, and has acknowledged nothing of that."""
        process = killable_manager.start(settings)
        acknowledged: list[str] = []
        stop = threading.Event()

        def store() -> None:
            with sw.connect(settings.address) as client:
                while not stop.is_set():
                    name = f"f{len(acknowledged)}"
                    client.tiers.store(fragment(name, name * 500))
                    acknowledged.append(name)

        with ThreadPoolExecutor(1) as pool:
            storing = pool.submit(store)
            eventually(lambda: len(acknowledged) > 20)
            _limit_files(process, _largest_file(settings) * bool(room) + room)
            code = process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
            assert code == STORE_FAILED
            state = kept(settings.data_dir or "")
            assert {key[1] for key in state.fragments.entries} >= set(acknowledged)
            with killable_manager.running(settings):  # the disk has room again, and the same client goes on
                count = len(acknowledged)
                eventually(lambda: len(acknowledged) > count + 5)
                stop.set()
                storing.result(60)
        assert {key[1] for key in kept(settings.data_dir or "").fragments.entries} >= set(acknowledged)


def _limit_files(process: subprocess.Popen[bytes], size: int) -> None:
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _largest_file(settings: Settings) -> int:
    return max(each.stat().st_size for each in Path(settings.data_dir or "").iterdir())


class TestLossOfPower:
    """A kill proves nothing about a disk: the system calls of the manager are looked at instead."""

    def test_nothing_is_acknowledged_before_it_is_on_the_disk(self, settings: Settings, tmp_path: Path) -> None:
        """At the moment when a reply leaves, nothing is unflushed; what a loss of power leaves then has it all."""
        names, calls, disk = _traced_stores(settings, Durability.DISK)
        replies = _replies(calls)
        assert len(replies) >= len(names)
        mark = str(Path(settings.data_dir or "") / MARK)  # may be behind, and then only hides a loss
        assert [unflushed_at(calls, index) - {mark} for index in replies] == [set()] * len(replies)
        for number, index in list(enumerate(replies[-len(names) :], 1))[::5]:
            image = tmp_path / f"image-{number}"
            image.mkdir(mode=0o700)
            disk.at(index, image)
            with durable_state(image, durability=Durability.DISK) as made:  # with a mark that is behind
                stored = {key[1] for key in made.owner._state.fragments.entries}
            assert stored >= set(names[:number]), f"after reply {number}"

    def test_the_same_without_flushes_is_found_out(self, settings: Settings) -> None:
        """At `process` the kernel has it and the disk does not: this is what the test above would see."""
        _, calls, _ = _traced_stores(settings, Durability.PROCESS)
        assert any(unflushed_at(calls, index) for index in _replies(calls))


def _traced_stores(settings: Settings, durability: Durability) -> tuple[list[str], list[SystemCall], Disk]:
    """Store one after the other, and watch what the manager does meanwhile."""
    names = [f"f{number}" for number in range(20)]
    data = Path(settings.data_dir or "")
    with killable_manager.running(msgspec.structs.replace(settings, durability=durability)) as process:
        client = sw.connect(settings.address)
        with traced(process.pid, data) as trace:
            for name in names:
                client.tiers.store(fragment(name, name * 300))
        calls, disk = list(trace.calls), trace.disk
        client.close()
    return names, calls, disk


def _replies(calls: list[SystemCall]) -> list[int]:
    return [index for index, call in enumerate(calls) if call.is_send and call.path.startswith("socket:")]
