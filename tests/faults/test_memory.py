"""Memory, disk or readers fail: the manager says so, loses nothing, and goes on when it can."""

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.verdict import Origin
from stepwell.limits import KIB, MIB
from stepwell.manager.state_owner import StateOwner
from stepwell.protocol.messages import CommandResult, OfferUpload, Request, Response, UploadGranted
from tests.support.managers import served
from tests.support.peers import RawPeer
from tests.support.programs import memory_readers
from tests.support.programs.memory_readers import PROJECT, elsewhere
from tests.support.programs.shortages import FULL, LARGE, SMALL, Model, Shortage
from tests.support.programs.steady_client import Bystander
from tests.support.seeds import seeded
from tests.support.wait import eventually

SEED = 4290


@pytest.mark.parametrize(
    "name, code",
    [("posix_fallocate", errno.ENOSPC), ("memfd_create", errno.EMFILE), ("ftruncate", errno.ENOSPC)],
)
def test_failed_allocation_loses_nothing(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """No memory, disk or descriptors, every now and then, at any moment: refused, nothing lost, and on it goes."""
    shortage = Shortage(monkeypatch, name, code)
    generator = seeded(SEED)
    budget = sw.TierBudget(arena_bytes=24 * MIB, hot_tokens=12, warm_entries=12)
    with served(budget) as stage, sw.connect(stage.address, [PROJECT]) as client:
        model = Model(client, generator)
        for number in range(400):
            shortage.is_on = generator.random() < 0.5
            model.act()
            if number % 20 == 0:
                model.check()
        shortage.is_on = False
        model.check()
        model.check_view()
        print(f"{model.done} done, {model.refused} refused, {shortage.failures} calls failed")
        assert shortage.failures > 10
        assert model.refused > 10
        before = model.refused
        for _ in range(20):
            model.act()
        assert model.refused == before
        eventually(lambda: client.status().memory.waiting == 0)
        model.check()


def bounded(runtime: sw.Runtime, size: int) -> None:
    """From now on the manager's files, memory files included, can have at most so many bytes."""
    resource.prlimit(runtime.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def small_runtime(arena_bytes: int, **bounds: int) -> Iterator[tuple[sw.Runtime, sw.Client]]:
    budget = sw.TierBudget(arena_bytes=arena_bytes, **bounds)
    with sw.Runtime.start(workers=0, budget=budget, log_level="error") as runtime, runtime.client([PROJECT]) as client:
        yield runtime, client


def test_the_kernel_refuses_segments() -> None:
    """A real refusal by the kernel, of which SIGXFSZ is a part, ends neither the manager nor what it holds."""
    generator = seeded(SEED)
    with small_runtime(24 * MIB, hot_tokens=12, warm_entries=12) as (runtime, client):
        model = Model(client, generator)
        for number in range(200):
            bounded(runtime, 64 * KIB if generator.random() < 0.5 else resource.RLIM_INFINITY)
            model.act()
            if number % 20 == 0:
                model.check()
        print(f"{model.done} done, {model.refused} refused")
        assert model.refused > 10
        bounded(runtime, resource.RLIM_INFINITY)
        model.check()
        model.check_view()
        eventually(lambda: client.status().memory.waiting == 0)
        model.check()


def mapped_bytes(pid: int) -> int:
    """Return the size of the address space of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def first_free_descriptor(pid: int) -> int:
    """Return the number that the next descriptor of a process has."""
    taken = {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(taken) + 1) if number not in taken)


LIMITS: dict[str, tuple[int, Callable[[int], int], str]] = {
    "RLIMIT_AS": (resource.RLIMIT_AS, lambda pid: mapped_bytes(pid) + 8 * MIB, "ulimit -v"),
    "RLIMIT_NOFILE": (resource.RLIMIT_NOFILE, first_free_descriptor, "ulimit -n"),
    "RLIMIT_FSIZE": (resource.RLIMIT_FSIZE, lambda _: 64 * KIB, "ulimit -f"),
}


@pytest.mark.parametrize("size", [1, LARGE], ids=["in a frame", "uploaded"])
@pytest.mark.parametrize("name", LIMITS)
def test_limit_of_the_process_is_named(name: str, size: int) -> None:
    """A store that the kernel refuses memory for names the limit and not the budget; everything else is served."""
    kind, limit_of, advice = LIMITS[name]
    fragment = sw.Fragment(fragment_id="a", body=bytes(size), tokens=1)
    with sw.Runtime.start(workers=0, log_level="error") as runtime, runtime.client([PROJECT]) as client:
        before = client.status()
        assert before.memory.segments == 0
        limit = limit_of(runtime.pid)
        unlimited = resource.prlimit(runtime.pid, kind)
        resource.prlimit(runtime.pid, kind, (limit, unlimited[1]))
        for _ in range(3):
            with pytest.raises(sw.ResourceExhausted) as refusal:
                client.tiers.store(fragment)
            assert f"{name} is {limit}" in refusal.value.message
            assert advice in refusal.value.message
            assert "arena_bytes" not in refusal.value.message
        with pytest.raises(sw.TransactionAborted if size == LARGE else sw.ResourceExhausted, match=name):
            with client.transaction() as transaction:
                transaction.tiers.store(fragment)
        assert client.tiers.metrics() == before.metrics
        assert client.status().revision == before.revision
        with pytest.raises(sw.NotFound):
            client.tiers.get("a")
        resource.prlimit(runtime.pid, kind, unlimited)
        client.tiers.store(fragment)
        assert client.tiers.get("a").body == bytes(size)


def test_full_disk_holds_up_the_form_and_not_the_fragment() -> None:
    """What should go to disk and cannot stays in memory, readable, until memory is full too: then stores are refused.
    When there is disk again, all of it goes where it belongs, and stores are accepted.
    """
    generator = seeded(SEED)
    with small_runtime(16 * MIB, hot_tokens=4, warm_entries=4) as (runtime, client):
        bounded(runtime, 8 * MIB)
        digests: dict[str, bytes] = {}
        model = Model(client, generator)
        while model.refused < 10:
            body = generator.randbytes(generator.choice((SMALL, LARGE)))
            fragment = sw.Fragment(fragment_id=f"{len(digests)}", body=body, tokens=1)
            try:
                client.tiers.store(fragment)
                digests[fragment.fragment_id] = digest_of(body)
            except FULL as refusal:
                model.note(refusal)
        usage = client.status().memory
        print(f"{len(digests)} stored, {usage}")
        assert usage.file_bytes == 0
        assert usage.waiting > 0
        assert hashes(client, digests) == digests
        bounded(runtime, resource.RLIM_INFINITY)
        eventually(lambda: client.status().memory.waiting == 0)
        assert client.status().memory.file_bytes > 0
        client.tiers.store(sw.Fragment(fragment_id="more", body=generator.randbytes(LARGE), tokens=1))
        assert hashes(client, digests) == digests


def hashes(client: sw.Client, names: dict[str, bytes]) -> dict[str, bytes]:
    return {name: digest_of(each.body) for name, each in client.tiers.get_many(names).items()}


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["in a frame", "uploaded"])
def test_full_arena_is_refused(size: int) -> None:
    """Where nothing can go down any more, a store is refused, clearly, and nothing changes; a deletion makes room."""
    generator = seeded(SEED)
    with small_runtime(8 * MIB, cold_entries=1) as (_, client):
        digests: dict[str, bytes] = {}
        with pytest.raises(sw.TierFull) as refusal:
            while True:
                body = generator.randbytes(size)
                client.tiers.store(sw.Fragment(fragment_id=f"{len(digests)}", body=body, tokens=1))
                digests[f"{len(digests)}"] = digest_of(body)
        assert "delete some" in refusal.value.message
        assert sum(1 for _ in digests) * size > 4 * MIB
        before = client.status()
        for _ in range(5):
            with pytest.raises(sw.TierFull):
                client.tiers.store(sw.Fragment(fragment_id="more", body=generator.randbytes(size), tokens=1))
        after = client.status()
        assert (after.revision, after.metrics) == (before.revision, before.metrics)
        assert hashes(client, digests) == digests
        for name in ("0", "1"):
            client.tiers.delete(name)
            del digests[name]
        client.tiers.store(sw.Fragment(fragment_id="more", body=generator.randbytes(size), tokens=1))
        assert hashes(client, digests) == digests


def test_work_comes_to_an_end() -> None:
    """An arena that is as full as it may be comes to rest: nothing is moved for ever for what moving does not gain."""
    owner = StateOwner(sw.TierBudget(arena_bytes=32 * MIB, hot_tokens=1_000))
    origin = Origin("somebody", 0)
    try:
        size = 128 * KIB + 1  # more than shares a segment, and with the largest remainder of a page
        for number in range(owner.bodies.arena.limit * limits.ARENA_LIVE_PERCENT // 100 // size):
            owner.execute(StoreFragment(PROJECT, str(number), random.randbytes(size), 1), origin)
        projects = [f"p{number}" for number in range(60)]
        while owner.open_view(projects, Origin("test", 0), 0) is None:
            owner.work()
        assert owner.bodies.is_pressed
        for _ in range(10_000):
            if not owner.work():
                break
        else:
            raise AssertionError("it works on and on")
    finally:
        owner.close()


HELD = [f"held-{number}" for number in range(6)]
HELD_BODY_BYTES = 3 * MIB


@contextmanager
def stopped_reader() -> Iterator[tuple[sw.Client, Callable[[str], tuple[int, str]]]]:
    """A manager in this process, and a reader that holds what was deleted and is stopped. The first question to it
    lets it go on.
    """
    generator = seeded(SEED)
    with served() as stage, sw.connect(stage.address, [PROJECT]) as client:
        for name in HELD:
            client.tiers.store(sw.Fragment(fragment_id=name, body=generator.randbytes(HELD_BODY_BYTES), tokens=1))
        with elsewhere(memory_readers.hold, stage.address, HELD) as (reader, turn):
            assert turn.recv() == len(HELD) * HELD_BODY_BYTES
            pid = reader.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            for name in HELD:
                client.tiers.delete(name)

            def ask(word: str) -> tuple[int, str]:
                os.kill(pid, signal.SIGCONT)
                turn.send(word)
                right, met = turn.recv()
                return right, met

            yield client, ask
            turn.send(None)


def test_stopped_reader_holds_up_nobody() -> None:
    """What a stopped reader has mapped is counted beside the arena, and the manager goes on; the reader then finds its
    bodies as they were, and once it lets go of them nothing is counted any more.
    """
    with stopped_reader() as (client, ask):
        usage = client.status().memory
        assert usage.retired_bytes >= len(HELD) * HELD_BODY_BYTES
        assert usage.retired_segments >= len(HELD)
        assert usage.live_bytes < HELD_BODY_BYTES
        for number in range(100):
            client.tiers.store(sw.Fragment(fragment_id="a", body=str(number), tokens=1))
            assert client.tiers.get("a").text == str(number)
        assert ask("look") == (len(HELD), "an answer")
        assert client.status().memory.retired_bytes >= len(HELD) * HELD_BODY_BYTES
        assert ask("let go") == (0, "an answer")
        assert client.status().memory.retired_bytes == 0
        assert client.status().evicted == 0


def test_reader_past_the_bound_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds on to more than may be is disconnected, and no longer counted; what it holds stays right, and its
    client goes on over a new connection.
    """
    with stopped_reader() as (client, ask):
        assert client.status().evicted == 0
        monkeypatch.setattr(limits, "RETIRED_BYTES_MAX", len(HELD) * HELD_BODY_BYTES // 2)

        def is_cut_off() -> bool:
            """The reader is disconnected."""
            status = client.status()
            return status.evicted == 1 and status.memory.retired_bytes == 0

        eventually(is_cut_off)
        assert ask("look") == (len(HELD), "an answer")
        assert client.status().memory.retired_bytes == 0
        assert ask("let go") == (0, "an answer")


UPLOAD_BYTES = limits.BODY_BYTES_MAX
CLIENTS = 4
REQUESTS_MEANWHILE = 20


def offer(peer: RawPeer, size: int) -> None:
    """Have an upload granted."""
    peer.send(OfferUpload(0, size))
    assert peer.expect(UploadGranted).accepted


def test_upload_delays_nobody() -> None:
    """Between the first and the last byte of the largest body, every other client gets many answers."""
    body = seeded(SEED).randbytes(MIB) * (UPLOAD_BYTES // MIB)
    with sw.Runtime.start(workers=0) as runtime:

        def all_get_answers() -> bool:
            """In one of the attempts no client has to wait for a core while the body is sent."""
            return min(answers_meanwhile(runtime.address, body)) >= REQUESTS_MEANWHILE

        eventually(all_get_answers)
        with runtime.client([PROJECT]) as client:
            assert digest_of(client.tiers.get("large").body) == digest_of(body)


def answers_meanwhile(address: str, body: bytes) -> list[int]:
    """Upload a body; return the number of answers that each of the other clients got meanwhile."""
    with elsewhere(memory_readers.chatter, address, CLIENTS) as (_, turn):
        assert turn.recv() == "chatting"
        with RawPeer(address) as peer:
            peer.hello(f"uploader-{time.monotonic_ns()}")
            offer(peer, len(body))
            began_ns = time.monotonic_ns()
            peer.send_raw(body)
            ended_ns = time.monotonic_ns()
            peer.send(Request(1, (StoreFragment(PROJECT, "large", 0, 1),)))
            assert isinstance(peer.expect(Response).results[0], CommandResult)
        turn.send((began_ns, ended_ns))
        answered: list[int] = turn.recv()
    print(f"{len(body) // MIB} MiB in {(ended_ns - began_ns) / 1e9:.2f} s, meanwhile answered {answered}")
    return answered


@pytest.mark.parametrize("sent", [0, 1, UPLOAD_BYTES // 2], ids=["nothing", "a byte", "half"])
def test_stalled_upload_delays_nobody(runtime: sw.Runtime, bystander: Bystander, sent: int) -> None:
    """An upload that never goes on costs others nothing, not even their own uploads, and gives its memory back."""
    with runtime.client([PROJECT]) as client:
        before = client.status().memory.live_bytes
        with RawPeer(runtime.address) as peer:
            peer.hello("staller")
            offer(peer, UPLOAD_BYTES)
            peer.send_raw(bytes(sent))
            bystander.progresses()
            client.tiers.store(sw.Fragment(fragment_id="other", body=bytes(MIB), tokens=1))
            assert client.tiers.get("other").body == bytes(MIB)
            client.tiers.delete("other")
            assert client.status().memory.live_bytes >= before + UPLOAD_BYTES
            bystander.progresses()

        def is_returned() -> bool:
            """The memory of the upload is free again."""
            return client.status().memory.live_bytes < before + UPLOAD_BYTES // 2

        eventually(is_returned)
