"""A lane: one thread of a run. It does no I/O and reads no clock: it is given the time, and returns what to do.

The blocking and the asynchronous threads of a worker both drive it, and so do the threads that use a peer.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepwell import limits
from stepwell.prove.history import AnyOutcome, NoAnswer, RecordedCall
from stepwell.prove.workload import CallGenerator, Request, names_of, rounds_in


class LaneSettings(Struct, frozen=True):
    """The part of a trial that its lanes share. Times are those of `time.monotonic_ns`."""

    seed: int
    seconds: float
    plans: tuple[str, ...]
    round_ms: int = limits.PROVE_ROUND_MS


class Lane:
    """The state of one thread: its present round, and how many calls it may still make there.

    One thread, or one event loop, uses it.
    """

    def __init__(self, settings: LaneSettings, process: int, thread: int, begin_ns: int) -> None:
        self._settings = settings
        self._process, self._thread = process, thread
        self._begin_ns = begin_ns
        self._rounds = rounds_in(settings.seconds, settings.round_ms)
        self._round_ns = settings.round_ms * 1_000_000
        self._round = -1
        self._calls_left = 0
        self._generator: CallGenerator | None = None

    def pause_s(self, now_ns: int) -> float | None:
        """Return how long to wait before the next call, 0 for not at all; None if the run is over."""
        now_in = (now_ns - self._begin_ns) // self._round_ns
        if now_in >= self._rounds:
            return None
        if now_in > self._round and now_in >= 0:
            self._round, self._calls_left = now_in, limits.PROVE_CALLS_PER_ROUND
            names = names_of(now_in, self._settings.plans, self._rounds)
            self._generator = CallGenerator(self._settings.seed, (self._process, self._thread), now_in, names)
        if self._calls_left > 0:
            return 0.0
        return (self._begin_ns + (self._round + 1) * self._round_ns - now_ns) / 1e9

    def request(self) -> Request:
        """Return the next request of the round."""
        assert self._generator is not None, "pause_s has returned 0"
        request = self._generator.request()
        self._calls_left -= len(request)
        return request

    def recorded(
        self, request: Request, outcomes: Sequence[AnyOutcome], start_ns: int, end_ns: int
    ) -> list[RecordedCall]:
        """Return the records of a request that was made, and learn from its outcomes."""
        assert self._generator is not None, "there was a request"
        records: list[RecordedCall] = []
        for call, outcome in zip(request, outcomes, strict=True):
            self._generator.learn(call, outcome)
            end = None if isinstance(outcome, NoAnswer) else end_ns
            records.append(RecordedCall(self._process, self._thread, start_ns, end, call, outcome))
        return records
