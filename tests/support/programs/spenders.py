"""Processes that use tokens of one pool, and one that dies with some."""

import os
import signal

from multiprocess.connection import Connection

import stepwell as sw


def spend(address: str, number: int, turn: Connection) -> None:
    """On the signal, lease and use tokens of the pool until it is empty; report how many this process used."""
    with sw.connect(address, label=f"spender-{number}") as client:
        name, tokens = turn.recv()
        used = 0
        while True:
            try:
                with client.pools.leased(name, tokens) as held:
                    held.use(tokens - 1)
                used += tokens - 1
            except sw.PoolEmpty:  # for good, or until another process returns its lease
                pool = client.pools.get(name)
                if pool.tokens - pool.spent < tokens:
                    break
        turn.send(used)


def die_with_tokens(address: str, name: str, tokens: int) -> None:
    """Lease tokens, report half of them as used, and die."""
    client = sw.connect(address, label="mortal")
    lease = client.pools.lease(name, tokens)
    client.pools.use(name, lease, tokens // 2)
    os.kill(os.getpid(), signal.SIGKILL)
