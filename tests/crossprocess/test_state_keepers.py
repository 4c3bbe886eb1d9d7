"""Eight processes share the state of a program: one id for equal bodies, no lost count, and expiry for all at once."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from multiprocess.connection import Connection

import stepwell as sw
from stepwell.limits import KIB, MIB
from tests.support.processes import CONTEXT, spawned
from tests.support.programs.state_keepers import (
    BRIEF,
    COUNTER,
    POLLED,
    PROJECT,
    SLIDING,
    count_up,
    poll,
    read_until_absent,
    read_what_slides,
    store_equal,
)
from tests.support.wait import eventually

PROCESSES = 8
ROUNDS = 25


@contextmanager
def crowd(
    target: Callable[[str, int, Connection], None], budget: sw.TierBudget | None = None
) -> Iterator[tuple[sw.Client, list[Connection]]]:
    """A manager, a client, and eight processes that each do what they are sent, all at the same moment."""
    with ExitStack() as stack:
        runtime = stack.enter_context(sw.Runtime.start(workers=0, budget=budget, log_level="error"))
        turns: list[Connection] = []
        for number in range(PROCESSES):
            ours, theirs = CONTEXT.Pipe()
            stack.enter_context(ours)
            with theirs:  # a process that fails closes the only one, so that nobody waits for it
                stack.enter_context(spawned(target, runtime.address, number, theirs))
            turns.append(ours)
        yield stack.enter_context(runtime.client([PROJECT])), turns
        for turn in turns:
            turn.send(None)


def play(turns: list[Connection], what: object) -> list[Any]:
    """What all of them report."""
    for turn in turns:
        turn.send(what)
    return [turn.recv() for turn in turns]


@pytest.mark.parametrize("is_unique", [True, False], ids=["unique", "contrast"])
def test_equal_bodies_get_one_id(*, is_unique: bool) -> None:
    """All name the one fragment that was stored. Without `unique` each stores its own, so that the test can fail."""
    with crowd(store_equal) as (client, turns):
        for number in range(ROUNDS):
            replies = [*play(turns, (f"round-{number}", is_unique))]
            ids = {fragment_id for fragment_id, _ in replies}
            assert len(ids) == (1 if is_unique else PROCESSES)
        rows = client.tiers.list(limit=1_000).rows
        print(f"{ROUNDS * PROCESSES} stores of {ROUNDS} bodies from {PROCESSES} processes: {len(rows)} fragments")
        assert len(rows) == (ROUNDS if is_unique else ROUNDS * PROCESSES)
        assert len({row.digest for row in rows}) == ROUNDS


def test_guarded_counts_are_not_lost() -> None:
    """Each step of each process counts once, and has its entry."""
    times = 15
    with crowd(count_up) as (client, turns):
        client.tiers.store(sw.Fragment(fragment_id=COUNTER, body="0", keep=True))
        refused = play(turns, times)
        total = PROCESSES * times
        print(f"{total} steps from {PROCESSES} processes, refused and done again: {refused}")
        assert int(client.tiers.get(COUNTER).text) == total
        assert client.tiers.metrics().kept.entries == total + 1


def test_unguarded_counts_are_lost() -> None:
    """Why the guard is needed: two that read the same number write the same next one, unless the second is refused."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client([PROJECT]) as one, runtime.client([PROJECT]) as two:
        one.tiers.store(sw.Fragment(fragment_id=COUNTER, body="0"))
        for is_guarded in (False, True):
            seen = [client.tiers.get(COUNTER) for client in (one, two)]
            for client, before in zip((one, two), seen, strict=True):
                batch = client.transaction()
                try:
                    with batch as transaction:
                        if is_guarded:
                            transaction.require(COUNTER, revision=before.revision)
                        transaction.tiers.store(sw.Fragment(fragment_id=COUNTER, body=str(int(before.text) + 1)))
                except sw.TransactionAborted:
                    assert (is_guarded, client is two) == (True, True)
                else:
                    assert not (is_guarded and client is two)
        assert one.tiers.get(COUNTER).text == "2", "four reads and writes: one was lost, one was refused"


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "contrast"])
def test_polled_fragment_displaces_nothing(*, keep: bool) -> None:
    """Hot is as it was. The same fragment without `keep` is promoted, and the context of an agent gives way to it."""
    budget = sw.TierBudget(hot_tokens=100, promotion_threshold=5)
    with crowd(poll, budget) as (client, turns):
        for number in range(10):
            client.tiers.store(sw.Fragment(fragment_id=f"context/{number}", body=f"{number}", tokens=10))
        state = sw.Fragment(fragment_id=POLLED, body="state", tokens=50, keep=keep)
        client.tiers.store(state, tier=sw.Tier.WARM)
        before = client.tiers.metrics()
        play(turns, 50)
        after = client.tiers.metrics()
        print(f"keep={keep}: {PROCESSES * 51} reads, hot {before.hot} -> {after.hot}")
        assert (after.hot == before.hot) == keep
        assert after.warm.entries == (0 if keep else 5)
        if keep:
            assert after.kept == before.kept


def test_expiry_is_seen_by_all_at_its_time() -> None:
    """By request and in shared memory: there until its time, and then never again."""
    with crowd(read_until_absent) as (client, turns):
        play(turns, (0, 1))  # all have connected
        expires_at_ms = time.time_ns() // 1_000_000 + 1_500
        fragment = sw.Fragment(fragment_id=BRIEF, body="brief", expires_at_ms=expires_at_ms)
        client.tiers.store(fragment)
        reports = play(turns, (expires_at_ms, 50))
        reads = [(reads, indexed) for reads, indexed, _ in reports]
        print(f"reads until it was absent 50 times, of which in shared memory: {reads}")
        assert [problem for _, _, wrong in reports for problem in wrong] == []
        assert sum(indexed for _, indexed in reads) > 0
        eventually(lambda: client.tiers.metrics().hot.entries == 0)


def test_reads_of_eight_processes_move_the_expiry() -> None:
    """It is there as long as one of them reads it, and gone when none does."""
    slide_ms = 400
    with crowd(read_what_slides) as (client, turns):
        play(turns, (1, 0))
        fragment = sw.Fragment(fragment_id=SLIDING, body="s", keep=True, expires_after_ms=slide_ms)
        client.tiers.store(fragment)
        reports = play(turns, (slide_ms, time.time_ns() // 1_000_000 + 3 * slide_ms))
        print(f"reads and problems: {reports}")
        assert [problem for _, wrong in reports for problem in wrong] == []
        eventually(lambda: not client.tiers.contains(SLIDING))
        eventually(lambda: client.tiers.metrics().kept.entries == 0)


@pytest.mark.parametrize("is_durable", [True, False], ids=["data directory", "memory only"])
def test_memory_that_is_full_of_what_is_kept(tmp_path: Path, *, is_durable: bool) -> None:
    """The bodies that were used last stay raw in memory, the others are read from disk: none is lost or refused.

    What is not kept gives way first, and comes in all the same. With a data directory, all is there after a restart.
    """
    budget = sw.TierBudget(arena_bytes=8 * MIB)
    bodies = {f"kept/{number}": randbytes(512 * KIB, number) for number in range(16)}
    others = {f"other/{number}": randbytes(512 * KIB, 100 + number) for number in range(8)}
    data_dir = tmp_path / "data" if is_durable else None
    with (
        sw.Runtime.start(workers=0, budget=budget, data_dir=data_dir, log_level="error") as runtime,
        runtime.client([PROJECT]) as client,
    ):
        for name, body in others.items():
            client.tiers.store(sw.Fragment(fragment_id=name, body=body, tokens=1))
        for name, body in bodies.items():
            client.tiers.store(sw.Fragment(fragment_id=name, body=body, keep=True))
        metrics = client.tiers.metrics()
        assert (metrics.hot.entries, metrics.warm.entries, metrics.cold.entries) == (0, 0, len(others))
        assert metrics.kept.entries == len(bodies)
        tiers = [client.tiers.peek(name).tier for name in bodies]
        on_disk = tiers.count(sw.Tier.COLD)
        assert tiers == [sw.Tier.COLD] * on_disk + [sw.Tier.HOT] * (len(bodies) - on_disk)
        assert 0 < on_disk < len(bodies)
        assert metrics.arena_bytes <= budget.live_bytes
        check_bodies(client, bodies | others)
        client.tiers.store(sw.Fragment(fragment_id="late", body=randbytes(5 * MIB, 200), tokens=1))
        assert client.tiers.peek("late").tier is sw.Tier.HOT
        assert client.tiers.promote("kept/0").tier is sw.Tier.HOT
        check_bodies(client, bodies | others)
        tiers = [client.tiers.peek(name).tier for name in bodies]
        print(f"{on_disk} of {len(bodies)} bodies on disk, {tiers.count(sw.Tier.COLD)} beside a large one")
    if not is_durable:
        return
    with (
        sw.Runtime.start(workers=0, data_dir=data_dir, log_level="error") as runtime,
        runtime.client([PROJECT]) as client,
    ):
        assert [client.tiers.peek(name).tier for name in bodies] == tiers
        assert client.tiers.metrics().kept.entries == len(bodies)
        check_bodies(client, bodies | others)


def randbytes(size: int, seed: int) -> bytes:
    """A body that nothing makes smaller."""
    return random.Random(seed).randbytes(size)


def check_bodies(client: sw.Client, bodies: dict[str, bytes]) -> None:
    """All of them can be read, byte for byte."""
    assert [name for name, body in bodies.items() if bytes(client.tiers.get(name).body) != body] == []
