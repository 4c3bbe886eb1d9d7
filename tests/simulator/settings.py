"""The settings of a run, all of which follow from its seed; a shrunk run has fewer of some."""

from __future__ import annotations

import random
from enum import StrEnum

from msgspec import Struct


class FaultKind(StrEnum):
    """A kind of fault. Each run has some of them, so that they meet in all combinations."""

    KILL_MANAGER = "kill manager"
    LOSE_POWER = "lose power"
    KILL_CLIENT = "kill client"
    KILL_WORKER = "kill worker"
    CUT_CONNECTION = "cut connection"
    FREEZE_PIPE = "freeze pipe"
    PAUSE_MACHINE = "pause machine"
    JUMP_CLOCK = "jump clock"
    FULL_DISK = "full disk"
    FAIL_WRITE = "fail write"


class LimitSize(StrEnum):
    """The size of the manager's limits. A short run does not reach the real ones."""

    REAL = "real"
    SMALL = "small"
    TINY = "tiny"  # a large request is executed a command or two at a time


DURABLE_ONLY = frozenset({FaultKind.KILL_MANAGER, FaultKind.LOSE_POWER, FaultKind.FULL_DISK, FaultKind.FAIL_WRITE})
"""Faults after which only a manager with a data directory goes on."""


GRACE_SECONDS = 30.0
"""The grace of sessions that a client can rely on. Some runs have none, so that a restart ends all sessions."""


class RunSettings(Struct, frozen=True, kw_only=True):
    """A run: its seed, its clients and workloads, its faults."""

    seed: int
    clients: int
    operations: int  # of each client
    workloads: tuple[str, ...]
    faults: tuple[FaultKind, ...]
    fault_count: int
    busy_faults: float  # the share of the faults that happen while the machine is busy
    is_durable: bool
    hot_tokens: int
    partial: float  # the probability that only a part of the bytes under way arrives
    overlap: float  # the probability that the machine goes on while clients have more to do at once
    eagerness: float  # how soon the manager runs, beside each event that can happen; less, and more arrives first
    actors: tuple[int, int]  # the least and the largest number of tasks of a client, which share its connection
    capacity: tuple[int, int]  # the least and the largest capacity of a pipe
    limits: LimitSize  # of the manager
    grace_s: float  # by which a session outlives its last connection
    has_index: bool = False  # clients read hot fragments without a request


def settings_of(seed: int, workloads: tuple[str, ...]) -> RunSettings:
    """Return the settings of a seed."""
    generator = random.Random(f"settings {seed}")
    is_durable = generator.random() < 0.6
    possible = [kind for kind in FaultKind if is_durable or kind not in DURABLE_ONLY]
    count = generator.choice((0, 1, 2, 3, len(possible)))
    small = generator.random() < 0.3
    return RunSettings(
        seed=seed,
        clients=generator.randint(1, 5),
        operations=generator.choice((2, 5, 10)),
        workloads=tuple(generator.sample(workloads, generator.randint(1, len(workloads)))),
        faults=tuple(generator.sample(possible, min(count, len(possible)))),
        fault_count=generator.randint(1, 8),
        busy_faults=generator.choice((0.0, 0.5, 0.9)),
        is_durable=is_durable,
        hot_tokens=generator.choice((20, 100, 100_000)),
        partial=generator.choice((0.0, 0.1, 0.5)),
        overlap=generator.choice((0.0, 0.2, 0.7)),
        eagerness=generator.choice((1.0, 0.3, 0.1)),
        actors=generator.choice(((1, 2), (1, 4), (4, 8))),
        capacity=(500, 8_000) if small else (20_000, 200_000),
        limits=generator.choice((LimitSize.REAL, LimitSize.REAL, LimitSize.SMALL, LimitSize.TINY)),
        grace_s=generator.choice((GRACE_SECONDS, GRACE_SECONDS, GRACE_SECONDS, 0.0)),
        has_index=generator.random() < 0.7,
    )
