"""Token pools across processes: together they use what there is, and the dead hold nothing."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from multiprocess.connection import Connection

import stepwell as sw
from tests.support.processes import CONTEXT, spawned
from tests.support.programs.spenders import die_with_tokens, spend
from tests.support.wait import eventually

PROCESSES = 8
TOKENS = 600
LEASE = 11


def test_processes_use_what_there_is() -> None:
    """Eight processes lease until nothing is left: what they used together is what the pool says, and not more."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client, ExitStack() as stack:
        client.pools.create("team", tokens=TOKENS, soft_percent=100)
        turns: list[Connection] = []
        for number in range(PROCESSES):
            ours, theirs = CONTEXT.Pipe()
            stack.enter_context(ours)
            stack.enter_context(theirs)
            stack.enter_context(spawned(spend, runtime.address, number, theirs))
            turns.append(ours)
        for turn in turns:
            turn.send(("team", LEASE))
        used = [turn.recv() for turn in turns]
        pool = client.pools.get("team")
        print(f"{PROCESSES} processes used {used}, together {sum(used)} of {TOKENS}")
        assert (pool.spent, pool.leased) == (sum(used), 0)
        assert TOKENS - LEASE < pool.spent <= TOKENS


def test_tokens_of_a_dead_process_are_free() -> None:
    """What it had reported stays spent."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client() as client:
        client.pools.create("team", tokens=100, soft_percent=100)
        with spawned(die_with_tokens, runtime.address, "team", 60):
            eventually(lambda: client.pools.get("team").spent == 30 and client.pools.get("team").leased == 0)
        assert client.pools.get("team").free == 70


def test_pools_survive_the_manager(tmp_path: Path) -> None:
    """With their leases, whose holder goes on; those of a holder that has ended meanwhile are returned."""
    with sw.Runtime.start(data_dir=tmp_path, workers=0) as runtime, runtime.client(label="planner") as client:
        client.pools.create("team", tokens=100, per="day", soft_percent=100)
        lease = client.pools.lease("team", 40)
        with runtime.client() as other:
            other.pools.lease("team", 20)
        eventually(lambda: client.pools.get("team").leased == 40)
        os.kill(runtime.pid, signal.SIGKILL)  # the runtime starts another one
        assert client.pools.use("team", lease, 10).used == 10
    with sw.Runtime.start(data_dir=tmp_path, workers=0) as runtime, runtime.client() as client:
        eventually(lambda: client.pools.get("team").leased == 0)
        assert client.pools.get("team").spent == 10
        with pytest.raises(sw.NotFound, match="its session has ended"):
            client.pools.give_back("team", lease)
