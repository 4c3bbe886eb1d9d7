"""Legal histories without processes: lanes on a simulated clock, on a store that does one request at a time.

Each request takes effect at one moment between its start and its end. So the history is legal by construction, however
its calls overlap, and the same seed gives the same history on any machine.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Mapping

from msgspec.structs import replace

from stepwell.domain.tiers.body_refs import digest_of
from stepwell.prove.history import (
    Accepted,
    AnyOutcome,
    History,
    NoAnswer,
    RecordedCall,
    TrialHeader,
    WatchRecord,
    history_of,
    writes_of,
)
from stepwell.prove.lane import Lane, LaneSettings
from stepwell.prove.peers import PeerPerformer
from stepwell.prove.workload import Request

MS = 1_000_000


class PlainValues:
    """A dict of one thread."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self.values.get(key)

    def put(self, values: Mapping[str, str]) -> None:
        self.values.update(values)

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class SimulatedLane:
    """A lane with its own time, and the answers that it loses."""

    def __init__(self, settings: LaneSettings, process: int, store: PlainValues, generator: random.Random) -> None:
        self._lane = Lane(settings, process, 0, 0)
        self._performer = PeerPerformer(store, str(process))
        self._random = generator
        self._now_ns = generator.randrange(MS)
        self._end_ns = 0
        self.request: Request = ()

    def effect_ns(self) -> int | None:
        """Choose the next request, and return when it takes effect; None at the end of the run."""
        while pause_s := self._lane.pause_s(self._now_ns):
            self._now_ns += round(pause_s * 1e9) + 1
        if pause_s is None:
            return None
        self.request = self._lane.request()
        effect_ns = self._now_ns + self._random.randrange(1, 6 * MS)
        self._end_ns = effect_ns + self._random.randrange(1, 6 * MS)
        return effect_ns

    def perform(self, lost: float) -> tuple[list[AnyOutcome], list[RecordedCall]]:
        """Let the request take effect, and return the true outcomes and the records. Some answers are lost."""
        outcomes = self._performer.perform(self.request)
        records = self._lane.recorded(self.request, outcomes, self._now_ns, self._end_ns)
        self._now_ns = self._end_ns + self._random.randrange(1, MS)
        if self._random.random() < lost:
            records = [replace(each, end_ns=None, outcome=NoAnswer()) for each in records]
        return outcomes, records


def simulated_history(seed: int, *, lanes: int = 5, rounds: int = 3, lost: float = 0.05) -> History:
    """Return a legal history, with the order of its writes as a watch would show it."""
    generator = random.Random(seed)
    settings = LaneSettings(seed, rounds * 0.02, ("one", "two"))
    store = PlainValues()
    running = [SimulatedLane(settings, process, store, generator) for process in range(lanes)]
    queue = [(effect_ns, number) for number, lane in enumerate(running) if (effect_ns := lane.effect_ns()) is not None]
    heapq.heapify(queue)
    records: list[RecordedCall] = []
    events: list[tuple[str, str | None]] = []
    while queue:
        _, number = heapq.heappop(queue)
        lane = running[number]
        outcomes, recorded = lane.perform(lost)
        records += recorded
        for call, outcome in zip(lane.request, outcomes, strict=True):
            if outcome == Accepted():
                events += [(key, value and digest_of(value.encode()).hex()) for key, value in writes_of(call)]
        effect_ns = lane.effect_ns()
        if effect_ns is not None:
            heapq.heappush(queue, (effect_ns, number))
    watch = WatchRecord(0, "simulated", is_complete=True, events=tuple(events))
    return history_of(TrialHeader("simulated", seed, lanes, 1, rounds * 0.02), [*records, watch])
