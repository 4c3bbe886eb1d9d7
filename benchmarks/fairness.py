"""A small client beside eight peers that send batches: the latency of its `get`, and that beside the same load singly.

The eight peers run the same commands in both cases, as fast as they are answered: in requests of 1,000 commands, and in
requests of one. The small client reads one fragment at a time all the while. The two cases take turns in each round, so
that other load on the machine concerns both. The ratio of their 99th percentiles says what the batches cost the client.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count, cycle
from typing import Final

import stepwell as sw
from benchmarks.client_processes import ClientProcesses, Open, Workload
from benchmarks.section import Figures, Goal, Section, Turn, in_rounds
from stepwell.domain.commands import AnyCommand
from stepwell.domain.tiers.commands import ListFragments, StoreFragment
from stepwell.protocol.messages import VERSION, Hello, OutOfBand, Request, Response, SegmentsAdded
from stepwell.transport.address import dial
from stepwell.transport.connection import Connection
from stepwell.transport.frame_socket import FrameSocket

PEERS: Final = 8
BATCH: Final = 1_000
SECONDS: Final = 2.0
BODY_BYTES: Final = 128
FRAGMENTS: Final = 1_000  # of each peer: they are stored over and over with another body, or listed in one page

RATIO_MAX: Final = 3.0

_WORKS: Final = ("stores", "lists")
_SINGLY, _BATCHED, _OURS = "stepwell, sent singly", f"stepwell, in batches of {BATCH:,}", "stepwell"


def _reads(address: str) -> Workload:
    """Return the workload of the small client: read for some seconds, and return the 99th percentile in ms."""
    client = sw.connect(address, projects=["small"])

    def workload(seconds: float) -> float:
        taken: list[float] = []
        until = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < until:
            client.tiers.get("a")
            taken.append(time.perf_counter() - begun)
        taken.sort()
        return taken[len(taken) * 99 // 100] * 1e3

    return workload


class _Peer:
    """One of the eight peers. It sends messages that are made beforehand, so that it needs little of the processor.

    Otherwise the small client would wait for a core, and not for the manager.
    """

    def __init__(self, address: str, number: int, work: str, batch: int) -> None:
        project = f"peer-{number}"
        self._connection = Connection(dial(address), on_out_of_band=_ignore)
        self._connection.exchange(Hello(VERSION, f"{project}-{work}-{batch}", (project,)))
        stores = [
            StoreFragment(project, f"f{fragment}", os.urandom(BODY_BYTES), 1, sw.Tier.HOT)
            for _ in range(2)  # each fragment with two bodies, which replace each other
            for fragment in range(FRAGMENTS)
        ]
        self._numbers = count()
        self._send(stores[:FRAGMENTS])
        commands: list[AnyCommand] = (
            [*stores] if work == "stores" else [ListFragments(project, limit=FRAGMENTS)] * batch
        )
        self._requests = cycle([tuple(commands[at : at + batch]) for at in range(0, len(commands), batch)])

    def run(self, seconds: float) -> float:
        """Send for some seconds."""
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._send(next(self._requests))
        return 0.0

    def _send(self, commands: Sequence[AnyCommand]) -> None:
        number = next(self._numbers)
        answer = self._connection.exchange(Request(number, tuple(commands), number))
        if not isinstance(answer, Response):
            raise TypeError(f"the manager answered {answer!r}")


def _ignore(connection: FrameSocket, message: OutOfBand) -> None:
    """Close the descriptors of shared memory, which the peers do not read."""
    if isinstance(message, SegmentsAdded):
        for descriptor in connection.take_descriptors(len(message.segments)):
            os.close(descriptor)


def _opened(address: str, work: str, batch: int, number: int) -> Workload:
    """Return the workload of one process. The first process is the small client, the others are the peers."""
    return _reads(address) if number == 0 else _Peer(address, number, work, batch).run


def run(rounds: int, seconds: float = SECONDS, peers: int = PEERS, batch: int = BATCH) -> list[Section]:
    """Measure both kinds of load in both ways, in rounds."""
    ways = {_SINGLY: 1, _BATCHED: batch}
    with ExitStack() as stack:
        runtime = stack.enter_context(sw.Runtime.start(workers=0))
        with runtime.client(projects=["small"]) as client:
            client.tiers.store(sw.Fragment(fragment_id="a", body=b"x", tokens=1))
        opens: dict[str, Open] = {
            f"{work}, {way}": partial(_opened, runtime.address, work, size)
            for work in _WORKS
            for way, size in ways.items()
        }
        processes = ClientProcesses(peers + 1, opens)
        stack.callback(processes.close)
        turns: dict[tuple[str, str], Turn] = {
            (work, way): partial(_p99_ms, processes, f"{work}, {way}", seconds) for work in _WORKS for way in ways
        }
        figures, _ = in_rounds(rounds, turns)
    title = f"A get beside {peers} peers"
    by_row = {(each.work, each.contender): each for each in figures}
    ratios = tuple(
        Figures(
            work,
            _OURS,
            tuple(
                batched / singly
                for singly, batched in zip(by_row[work, _SINGLY].values, by_row[work, _BATCHED].values, strict=True)
            ),
        )
        for work in _WORKS
    )
    return [
        Section(title=f"{title}: the 99th percentile", unit="ms", figures=figures),
        Section(
            title=f"{title}: in batches, compared with sent singly",
            unit="x",
            figures=ratios,
            goals=tuple(Goal(work, _OURS, "at most", RATIO_MAX) for work in _WORKS),
        ),
    ]


def _p99_ms(processes: ClientProcesses, name: str, seconds: float) -> float:
    """Return the 99th percentile of the small client."""
    return processes.do(name, seconds)[0]
