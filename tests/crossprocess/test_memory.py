"""Shared memory among real processes: every body whole, nobody but the manager writes, nothing stays behind."""

import random
import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from multiprocess.connection import Connection

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.limits import KIB, MIB
from stepwell.memory.writer.arena import shared_segment_bytes
from stepwell.protocol.handles import Handle
from stepwell.protocol.usage import MemoryUsage
from tests.support.processes import is_alive, kill, spawned
from tests.support.programs import kernel_memory, memory_readers
from tests.support.programs.memory_attacks import REFUSED, vandalise
from tests.support.programs.memory_readers import PROJECT, Storm, elsewhere
from tests.support.seeds import seeded
from tests.support.soak import IS_LONG
from tests.support.wait import eventually

SEED = 3310
STORM = Storm(readers=64, writers=8, operations=1_000 if IS_LONG else 30, seed=SEED)
STORM_SECONDS = 600.0 if IS_LONG else 240.0
STORM_BUDGET = sw.TierBudget(arena_bytes=48 * MIB, hot_tokens=24_000)


def test_no_body_is_ever_torn(tmp_path: Path) -> None:
    """64 processes hash bodies, by name, in views and held ones again, while 8 store, promote, demote and delete, and
    segments are reclaimed: every hash is right, nothing is lost, and the memory of what is gone comes back.
    """
    seeded(SEED)
    usages: list[MemoryUsage] = []
    with sw.Runtime.start(workers=0, budget=STORM_BUDGET) as runtime, runtime.client() as client:
        with spawned(memory_readers.storm, runtime.address, STORM, str(tmp_path)) as process:

            def is_over() -> bool:
                """The storm is over."""
                usages.append(client.status().memory)
                return process.exitcode is not None

            eventually(is_over, STORM_SECONDS)
            assert process.exitcode == 0
        expected, wrote, saw, retired = memory_readers.reports(tmp_path)
        print(f"writers {dict(wrote)}, readers {dict(saw)}, {retired} mapped segments retired")
        print(f"at most {max(each.retired_bytes for each in usages)} bytes retired, {usages[-1]}")
        assert min(saw[each] for each in ("got", "held", "viewed", "old views")) > STORM.readers
        assert retired > STORM.readers
        assert max(each.arena_bytes for each in usages) <= STORM_BUDGET.arena_bytes
        assert max(each.retired_bytes for each in usages) > 0

        def is_returned() -> bool:
            """Nobody maps anything that is gone."""
            return client.status().memory.retired_bytes == 0

        eventually(is_returned)
        check_kept(client, expected)


def check_kept(client: sw.Client, expected: dict[str, tuple[bytes, int] | None]) -> None:
    """What was stored last and not deleted is there, whole, and counted once; what was deleted is not."""
    kept = {name: held for name, held in expected.items() if held is not None}
    found = client.tiers.get_many(expected, project=PROJECT)
    assert {name: (digest_of(each.body), len(each.body)) for name, each in found.items()} == kept
    view = client.view([PROJECT])
    assert {each.fragment_id: (digest_of(each.body), len(each.body)) for each in view} == kept
    metrics = client.tiers.metrics()
    tiers = (metrics.hot, metrics.warm, metrics.cold)
    assert sum(tier.entries for tier in tiers) == len(kept)
    assert sum(tier.bytes for tier in tiers) == metrics.body_bytes == sum(size for _, size in kept.values())


HOUSE_BUDGET = sw.TierBudget(arena_bytes=512 * MIB)
HOUSE_BODIES, HOUSE_BODY_BYTES = 16, 8 * MIB
HOUSE_BYTES = HOUSE_BODIES * HOUSE_BODY_BYTES
NOISE_BYTES = HOUSE_BYTES // 4
"""By how much other programs on the machine may enlarge its shared memory meanwhile."""

NAMES = [f"kept-{number}" for number in range(HOUSE_BODIES)]


def store_house(client: sw.Client) -> None:
    """As many bytes as the kernel's sums have to show."""
    generator = random.Random(SEED)
    for name in NAMES:
        body = generator.randbytes(HOUSE_BODY_BYTES)
        client.tiers.store(sw.Fragment(fragment_id=name, body=body, tokens=1))


def check_returned(before: int, inodes: set[int]) -> None:
    """The kernel has the memory back: its sum says so, and no process anywhere maps it or has it open."""

    def is_returned() -> bool:
        """Shared memory is back where it was."""
        return kernel_memory.shared_bytes() < before + NOISE_BYTES

    eventually(is_returned)
    assert kernel_memory.keepers(inodes) == set()


@pytest.fixture
def cold_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a manager that is started now would make its files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_nothing_stays_of_a_killed_manager(cold_directory: Path) -> None:
    """Whoever holds a body still reads it right, and is told that the manager is lost; after them nothing is left."""
    before = kernel_memory.shared_bytes()
    with ExitStack() as stack:
        runtime = stack.enter_context(sw.Runtime.start(workers=0, budget=HOUSE_BUDGET))
        client = stack.enter_context(runtime.client([PROJECT]))
        store_house(client)
        turns = [stack.enter_context(elsewhere(memory_readers.hold, runtime.address, NAMES))[1] for _ in range(3)]
        assert [turn.recv() for turn in turns] == [HOUSE_BYTES] * 3
        inodes = {*kernel_memory.mapped_files(runtime.pid)}
        assert len(inodes) >= HOUSE_BODIES
        assert kernel_memory.resident(runtime.pid).shared >= HOUSE_BYTES
        kill(runtime.pid)
        eventually(lambda: not is_alive(runtime.pid))
        for turn in turns:
            turn.send("look")
            assert turn.recv() == (HOUSE_BODIES, "RuntimeLost")
            turn.send(None)
    check_returned(before, inodes)
    assert [*cold_directory.iterdir()] == []


def test_nothing_stays_of_a_killed_reader() -> None:
    """What only a reader held on to is gone with it, for the kernel and in the manager's own sums."""
    before = kernel_memory.shared_bytes()
    with sw.Runtime.start(workers=0, budget=HOUSE_BUDGET) as runtime, runtime.client([PROJECT]) as client:
        store_house(client)
        with elsewhere(memory_readers.hold, runtime.address, NAMES) as (reader, turn):
            assert turn.recv() == HOUSE_BYTES
            inodes = {*kernel_memory.mapped_files(runtime.pid)}
            for name in NAMES:
                client.tiers.delete(name)
            assert kernel_memory.keepers(inodes) >= {str(reader.pid)}
            assert client.status().memory.retired_bytes >= HOUSE_BYTES
            turn.send("look")
            assert turn.recv() == (HOUSE_BODIES, "an answer")
            assert reader.pid is not None
            assert kernel_memory.resident(reader.pid).shared >= HOUSE_BYTES
            kill(reader.pid)

            def is_forgotten() -> bool:
                """The manager has noticed."""
                return client.status().memory.retired_bytes == 0

            eventually(is_forgotten)
            check_returned(before, inodes - {*kernel_memory.mapped_files(runtime.pid)})


@pytest.mark.parametrize("order", ["the manager first", "the manager last", "at random"])
def test_nothing_stays_of_anybody(order: str, cold_directory: Path) -> None:
    """The program, its manager, readers that hold every body and writers in mid-upload, all killed: nothing is left."""
    generator = seeded(SEED)
    before = kernel_memory.shared_bytes()
    arguments = (HOUSE_BODIES, HOUSE_BODY_BYTES, HOUSE_BUDGET, SEED)
    with elsewhere(memory_readers.keep_house, *arguments) as (program, ours):
        assert program.pid is not None
        house = msgspec.msgpack.decode(ours.recv(), type=memory_readers.Household)
        pids = [house.manager, program.pid, *house.readers, *house.writers]
        try:
            inodes = {inode for pid in pids for inode in kernel_memory.mapped_files(pid)}
            assert len(inodes) >= HOUSE_BODIES
            assert kernel_memory.resident(house.manager).shared >= HOUSE_BYTES
            assert [*cold_directory.iterdir()] == []
            if order == "at random":
                generator.shuffle(pids)
            memory_readers.end_all(reversed(pids) if order == "the manager last" else pids)
            eventually(lambda: not any(map(is_alive, pids)))
        finally:
            memory_readers.end_all(pids)
            shutil.rmtree(Path(house.address).parent)
    check_returned(before, inodes)
    assert [*cold_directory.iterdir()] == []


@pytest.mark.parametrize("tier", sw.Tier)
def test_the_kernel_refuses_every_writer(tier: sw.Tier) -> None:
    """A process tries everything to write to a body that it maps: the kernel refuses, and nobody sees a change."""
    body = b"What is written once stays written. " * 5_000
    with sw.Runtime.start(workers=0) as runtime, runtime.client([PROJECT]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body=body, tokens=1), tier=tier)
        most = {sw.Tier.HOT: 2 * len(body), sw.Tier.WARM: len(body) // 2, sw.Tier.COLD: 0}[tier]
        eventually(lambda: client.status().memory.live_bytes <= most)
        held = client.tiers.get("a")
        stored = bytes(held.stored)
        with elsewhere(vandalise, runtime.address, tier is sw.Tier.COLD) as (_, turn):
            outcomes = turn.recv()
        assert outcomes == REFUSED[tier is sw.Tier.COLD]
        assert (bytes(held.stored), bytes(held.body)) == (stored, body)
        with runtime.client([PROJECT]) as other:
            assert other.tiers.get("a").body == body


def test_batch_reads_what_it_then_deletes() -> None:
    """A body that a batch reads is there, although the same batch deletes it, and with it its segment."""
    body = bytes(8 * MIB)
    with (
        sw.Runtime.start(workers=0) as runtime,
        runtime.client([PROJECT]) as client,
        runtime.client([PROJECT]) as other,
    ):
        client.tiers.store(sw.Fragment(fragment_id="a", body=body, tokens=1))
        with other.batch() as batch:
            found, deleted = batch.tiers.get("a"), batch.tiers.delete("a")
        assert deleted.result().fragment_id == "a"
        assert found.result().body == body


def test_what_is_deleted_while_it_is_looked_for_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body is gone when it is looked for, and its fragment deleted when it is asked for again: that one is missing,
    and all others of the same call are there.
    """
    with (
        sw.Runtime.start(workers=0) as runtime,
        runtime.client([PROJECT]) as client,
        runtime.client([PROJECT]) as other,
    ):
        mappings = client._channel.mappings
        find = mappings.find
        doomed: list[str] = []

        def find_too_late(handle: Handle) -> memoryview:
            if doomed:
                other.tiers.delete(doomed.pop())
                raise sw.BodyGone("another thread was told that its segment is gone")
            return find(handle)

        monkeypatch.setattr(mappings, "find", find_too_late)
        other.tiers.store_many(numbered(number) for number in range(4))
        doomed.append("0")
        assert {*client.tiers.get_many(["0", "1", "2", "3"])} == {"1", "2", "3"}
        doomed.append("1")
        with client.batch() as batch:
            first, second = batch.tiers.get("1"), batch.tiers.get("2")
        assert second.result().text == "body 2"
        with pytest.raises(sw.NotFound):
            first.result()


VIEWED = 100_000


def test_view_of_many() -> None:
    """Another process has a view of 100,000 fragments, reads bodies of it without a single request, and later only
    what has changed.
    """
    generator = seeded(SEED)
    with sw.Runtime.start(workers=0) as runtime, runtime.client([PROJECT]) as client:
        client.tiers.store_many(numbered(number) for number in range(VIEWED))
        with elsewhere(view_all, runtime.address) as (_, turn):
            opened_s, count, revision = turn.recv()
            print(f"{count} fragments, opened in {opened_s:.3f} s")
            assert (count, revision) == (VIEWED, VIEWED)
            before = client.status().requests
            numbers = sorted(generator.sample(range(VIEWED), 2_000))
            turn.send(numbers)
            assert turn.recv() == [f"body {number}".encode() for number in numbers]
            assert client.status().requests == before
            client.tiers.store(numbered(VIEWED))
            client.tiers.store(sw.Fragment(fragment_id="7", body="another", tokens=1))
            client.tiers.delete("8")
            turn.send(revision)
            assert turn.recv() == (True, {str(VIEWED): f"body {VIEWED}".encode(), "7": b"another"}, {(PROJECT, "8")})
            turn.send(None)


def numbered(number: int) -> sw.Fragment:
    return sw.Fragment(fragment_id=str(number), body=f"body {number}", tokens=1)


def view_all(address: str, turn: Connection) -> None:
    """Open a view, say how long that took, and read what is asked for."""
    with sw.connect(address, [PROJECT]) as client:
        began = time.perf_counter()
        view = client.view()
        turn.send((time.perf_counter() - began, len([*view]), view.revision))
        while (asked := turn.recv()) is not None:
            if isinstance(asked, list):
                turn.send([bytes(found.body) for number in asked if (found := view.get(str(number)))])
            else:
                since = client.view(since=asked)
                turn.send((since.is_difference, {each.fragment_id: bytes(each.body) for each in since}, since.removed))


ARENA_BYTES = 32 * MIB
CHURN_BYTES = (100 if IS_LONG else 12) * ARENA_BYTES
CHURN_SLOTS = 260
SEGMENT_BYTES = shared_segment_bytes(ARENA_BYTES)
LOOKS = 20


def test_memory_follows_what_is_live() -> None:
    """After a churn of many times the arena's size, the manager has no more than half as much again as lives.

    What it keeps for watchers does not come with the bodies, and is bounded by itself: it is full from the beginning.
    """
    generator = seeded(SEED)
    budget = sw.TierBudget(arena_bytes=ARENA_BYTES, hot_tokens=CHURN_SLOTS)
    with sw.Runtime.start(workers=0, budget=budget) as runtime, runtime.client([PROJECT]) as client:
        fill_feed(client)
        base = kernel_memory.resident(runtime.pid)
        began = time.perf_counter()
        refused = churn(client, generator, CHURN_BYTES)
        seconds = time.perf_counter() - began
        now, usage = at_rest(runtime.pid, client)
        live = client.tiers.metrics().body_bytes
        assert live > ARENA_BYTES / 4
        shared, private = now.shared - base.shared, now.private - base.private
        print(
            f"{CHURN_BYTES // MIB} MiB in {seconds:.1f} s, {refused} refused and sent again, live {live / MIB:.1f} MiB"
        )
        print(f"shared {shared / live:.2f} of that, private {private / MIB:.1f} MiB more than when new: ", end="")
        print(f"together {(shared + private) / live:.2f}; {usage}")
        assert usage.arena_bytes <= ARENA_BYTES
        assert shared + private <= 1.5 * live


def fill_feed(client: sw.Client) -> None:
    """Have as many events as the manager keeps in memory, and nothing else."""
    for _ in range(0, limits.EVENTS_BUFFERED, limits.BATCH_COMMANDS_MAX):
        with client.batch() as batch:
            for _ in range(limits.BATCH_COMMANDS_MAX):
                batch.tiers.store(numbered(0))
    client.tiers.delete("0")


def at_rest(pid: int, client: sw.Client) -> tuple[kernel_memory.Resident, MemoryUsage]:
    """Return the memory of a manager once it moves no more bodies.

    While it empties a segment it has one more, so the kernel's figure and its own would be of different moments.
    """
    readings: list[tuple[kernel_memory.Resident, MemoryUsage]] = []

    def is_at_rest() -> bool:
        """The memory is settled, and the same at each of many looks."""
        readings.append((kernel_memory.resident(pid), client.status().memory))
        last = {(resident.shared, usage) for resident, usage in readings[-LOOKS:]}
        return len(readings) >= LOOKS and len(last) == 1 and is_settled(readings[-1][1])

    eventually(is_at_rest)
    return readings[-1]


def is_settled(usage: MemoryUsage) -> bool:
    """No more is dead than may be."""
    dead = usage.arena_bytes - usage.live_bytes - SEGMENT_BYTES
    return dead * 100 <= limits.DEAD_PERCENT_MAX * usage.arena_bytes


def churn(client: sw.Client, generator: random.Random, until_bytes: int) -> int:
    """Store until the bytes are through; how many had to be sent again."""
    noise = generator.randbytes(128 * KIB)
    sent = refused = serial = 0
    while sent < until_bytes:
        fragments = []
        for _ in range(200):
            serial += 1
            start, size = generator.randrange(64 * KIB), generator.randrange(16 * KIB, 64 * KIB)
            body = serial.to_bytes(8, "big") + noise[start : start + size - 8]
            name = str(generator.randrange(CHURN_SLOTS))
            fragments.append(sw.Fragment(fragment_id=name, body=body, tokens=1))
            sent += size
        refused += store_at_last(client, fragments)
    return refused


def store_at_last(client: sw.Client, fragments: list[sw.Fragment]) -> int:
    """Store all, those that were refused for the moment once more; how many those were."""
    refused = 0
    while fragments:
        try:
            client.tiers.store_many(fragments)
            break
        except sw.PartlyRefused as partly:
            outcomes = zip(fragments, partly.outcomes, strict=True)
            fragments = [fragment for fragment, outcome in outcomes if isinstance(outcome, sw.Busy)]
            if not fragments:
                raise
            refused += len(fragments)
    return refused
