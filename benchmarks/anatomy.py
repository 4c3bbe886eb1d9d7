"""The time that the manager spends on one command, by step: decode, execute, encode the reply.

It is the manager's own code, called in this process, without sockets, turns and other processes: of these, the part
`small` tells.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing
from typing import Final

from benchmarks.section import Figures, Section
from stepwell import limits
from stepwell.clock import StateClock
from stepwell.domain.commands import AnyCommand
from stepwell.domain.tiers.commands import GetFragment, StoreFragment
from stepwell.domain.tiers.model import TierBudget
from stepwell.manager.request_handler import RequestHandler
from stepwell.manager.sessions import SessionRecord
from stepwell.manager.state_owner import StateOwner
from stepwell.protocol.codec import PartlyDecodedRequest, decode_from_client, encode_frame
from stepwell.protocol.framing import HEADER
from stepwell.protocol.messages import CommandResult, Request
from stepwell.storage.store import SessionRow
from stepwell.telemetry import Logger, LogLevel

BATCH: Final = 100
FRAMES: Final = 100  # in each round
BODY_BYTES: Final = 1024
WORKS: Final = ("get", "store", "replacing store")

_PROJECT: Final = "p"
_ROOM: Final = TierBudget(hot_tokens=100_000_000, arena_bytes=4 * 1024 * limits.MIB)
_STEPS: Final = ("decoding", "doing it", "encoding")


class Bench:
    """The state of a manager with its request handler, without sockets."""

    def __init__(self) -> None:
        self.owner: Final = StateOwner(_ROOM)
        self._requests: Final = RequestHandler(self.owner, StateClock(), Logger(LogLevel.WARNING))
        self._session: Final = SessionRecord(SessionRow("anatomy", (_PROJECT,), os.getpid(), ""), None)
        self._next = 0

    def stores_and_gets(self, batch: int) -> dict[str, list[float]]:
        """Return the seconds of each step of storing, reading and replacing fragments, by the name of the work."""
        names = [f"f{number}" for number in range(self._next, self._next + batch)]
        self._next += batch
        stores, replacements = (
            tuple(StoreFragment(_PROJECT, name, os.urandom(BODY_BYTES), 1) for name in names) for _ in range(2)
        )
        gets = tuple(GetFragment(_PROJECT, name) for name in names)
        works: dict[str, tuple[AnyCommand, ...]] = {"store": stores, "get": gets, "replacing store": replacements}
        return {work: self._passed(commands) for work, commands in works.items()}

    def close(self) -> None:
        self.owner.close()

    def _passed(self, commands: tuple[AnyCommand, ...]) -> list[float]:
        frame = bytearray()
        encode_frame(Request(1, commands), frame)
        payload, out, clock = bytes(frame[HEADER.size :]), bytearray(), time.perf_counter
        begun = clock()
        message = decode_from_client(payload)
        decoded = clock()
        assert isinstance(message, Request | PartlyDecodedRequest)
        response = self._requests.respond(message, self._session, {})
        done = clock()
        encode_frame(response, out)
        encoded = clock()
        assert all(isinstance(each, CommandResult) for each in response.results)
        return [decoded - begun, done - decoded, encoded - done]


def run(rounds: int, frames: int = FRAMES) -> list[Section]:
    """Return the microseconds per command: the median over the frames, for each round."""
    values: dict[str, list[float]] = {}
    with closing(Bench()) as bench:
        for _ in range(rounds + 1):
            for batch in (BATCH, 1):
                found = [bench.stores_and_gets(batch) for _ in range(frames)]
                for work in WORKS:
                    size = "one at a time" if batch == 1 else f"batches of {batch}"
                    for step, seconds in zip(_STEPS, zip(*(each[work] for each in found), strict=True), strict=True):
                        median = statistics.median(seconds) / batch * 1e6
                        values.setdefault(f"{work}, {size}: {step}", []).append(median)
    figures = tuple(Figures(work, "stepwell", tuple(each[1:])) for work, each in values.items())  # the first warms up
    return [Section(title="1 KiB: the manager's own time for a command, alone on a core", unit="µs", figures=figures)]
