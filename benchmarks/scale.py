"""Very many small fragments: the time to store and to view them, and the memory of the manager beside their bodies.

Each measurement has a runtime and a client process of its own. Two budgets are measured. With one, everything fits into
the hot tier. The other is the default: nearly every store demotes a fragment to warm and another one to cold.

These are timed, one after the other and without a pause:

    store_many   one call with a generator that constructs each `Fragment` from a body that exists already
    first view   `client.view()`, for which the manager lists the project, and one pass over all fragments
    second view  the same again, without a change in between
    another one  the same after 1,000 fragments were replaced, which is not timed
    difference   `client.view(since=...)` of these changes, and one pass over it

The CPU time of the client process and of the manager stands beside the wall time, because the machine may have other
work. A loop that only encodes, decodes and hashes the same data is the peer of `store_many`.

The memory is what the manager has in RAM, private and shared, without its program and without the bytes of the bodies:
after the stores, and at the end, when background work is done. The latter includes the catalogue of the view.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

from msgspec import msgpack

import stepwell as sw
from benchmarks.manager_process import cpu_seconds, resident_bytes, wait_for_rest
from benchmarks.section import Figures, Goal, Section

FRAGMENTS: Final = 1_000_000
BODY_BYTES: Final = 100
CHANGED: Final = 1_000
FRAME: Final = 200  # fragments that the peer encodes at once: as many as store_many has in a frame

STORE_SECONDS_MAX: Final = 40.0
VIEW_SECONDS_MAX: Final = 5.0
MANAGER_MIB_MAX: Final = 700.0

_BUDGETS: Final = {
    "stepwell, all hot": sw.TierBudget(hot_tokens=1_000_000_000),
    "stepwell, default budget": sw.TierBudget(),
}
_PEER: Final = "encode, decode and hash"
_GIVEN, _COUNTED = "store_many, tokens given", "store_many, tokens counted"
_FIRST, _SECOND, _AFTER, _DIFFERENCE = "first view", "second view", "view after changes", "difference"
_STORED, _AT_REST = "after the stores", "at rest, with a catalogue"
_WALL, _CLIENT, _MANAGER, _MEMORY = range(4)  # the kinds of values, which are the sections
_MIB: Final = 1 << 20

Values = dict[tuple[int, str], float]
"""The measured values of one process, by kind and work."""


def run(rounds: int, fragments: int = FRAGMENTS) -> list[Section]:
    """Measure both budgets, with and without given tokens, and the peer, each in a new process, in rounds."""
    measured: dict[tuple[int, str, str], list[float]] = {}
    for _ in range(rounds):
        for contender in (*_BUDGETS, _PEER):
            for work in (_GIVEN, _COUNTED) if contender in _BUDGETS else (_GIVEN,):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    values = process.submit(_measured, contender, work, fragments).result()
                for (kind, what), value in values.items():
                    measured.setdefault((kind, what, contender), []).append(value)
    title = f"{fragments:,} fragments of {BODY_BYTES} bytes"
    bounds = {_GIVEN: STORE_SECONDS_MAX, _COUNTED: STORE_SECONDS_MAX, _FIRST: VIEW_SECONDS_MAX}
    goals = {
        _WALL: [Goal(work, name, "at most", bound) for work, bound in bounds.items() for name in _BUDGETS],
        _MEMORY: [Goal(_STORED, name, "at most", MANAGER_MIB_MAX) for name in _BUDGETS],
    }
    return [
        Section(
            title=f"{title}{what}",
            unit=unit,
            figures=tuple(
                Figures(work, name, tuple(each)) for (of, work, name), each in measured.items() if of == kind
            ),
            goals=tuple(goals.get(kind, ())),
        )
        for kind, what, unit in (
            (_WALL, "", "s"),
            (_CLIENT, ": CPU of the client", "s"),
            (_MANAGER, ": CPU of the manager", "s"),
            (_MEMORY, ": memory of the manager beside the bodies", "MiB"),
        )
    ]


def _measured(contender: str, work: str, fragments: int) -> Values:
    """Return what a new process measures: the stores and, if their tokens are given, everything else."""
    bodies = [*_bodies(fragments)]
    if contender == _PEER:
        begun = time.perf_counter()
        _encode_and_hash(bodies)
        return {(_WALL, work): time.perf_counter() - begun}
    with sw.Runtime.start(workers=0, budget=_BUDGETS[contender]) as runtime, runtime.client(projects=["p"]) as client:
        bench = _Bench(client, runtime.pid, bodies)
        bench.store(work, tokens=20 if work == _GIVEN else None)
        if work == _GIVEN:
            bench.view()
    return bench.values


class _Bench:
    """A client of a runtime, and what was measured with it."""

    def __init__(self, client: sw.Client, manager: int, bodies: Sequence[str]) -> None:
        self._client = client
        self._manager = manager
        self._bodies = bodies
        self._new_bytes = resident_bytes(manager)
        self.values: Values = {}
        self._begun = (0.0, 0.0, 0.0)

    def store(self, work: str, tokens: int | None) -> None:
        """Store all fragments."""
        self._begin()
        placed = self._client.tiers.store_many(_fragments(self._bodies, tokens))
        self._end(work)
        assert len(placed) == len(self._bodies)
        if tokens is not None:
            self._note_memory(_STORED)

    def view(self) -> None:
        """View all fragments, twice; then some changes of them."""
        for work in (_FIRST, _SECOND):
            self._view(work, len(self._bodies))
        revision = self._client.view().revision
        changed = [f"{body[::-1]}" for body in self._bodies[:CHANGED]]
        self._client.tiers.store_many(_fragments(changed, tokens=20))
        self._view(_AFTER, len(self._bodies))
        # The demotions that the stores have caused are changes too.
        self._view(_DIFFERENCE, len(changed), since=revision)
        wait_for_rest(self._manager)
        self._note_memory(_AT_REST)

    def _view(self, work: str, at_least: int, since: int | None = None) -> None:
        self._begin()
        view = self._client.view(since=since)
        found = sum(1 for _ in view)
        self._end(work)
        assert found >= at_least
        assert view.is_difference == (since is not None)

    def _begin(self) -> None:
        self._begun = (time.perf_counter(), time.process_time(), cpu_seconds(self._manager))

    def _end(self, work: str) -> None:
        ended = (time.perf_counter(), time.process_time(), cpu_seconds(self._manager))
        for kind, begin, end in zip((_WALL, _CLIENT, _MANAGER), self._begun, ended, strict=True):
            self.values[kind, work] = end - begin

    def _note_memory(self, work: str) -> None:
        grown = resident_bytes(self._manager) - self._new_bytes
        self.values[_MEMORY, work] = (grown - BODY_BYTES * len(self._bodies)) / _MIB


def _bodies(count: int) -> Iterator[str]:
    """Yield different texts of words, each of `BODY_BYTES` bytes."""
    chance = random.Random(count)
    letters = "etaoinshrdlucmfwypvbg"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(2_000)]
    text = " ".join(chance.choices(vocabulary, k=20_000))
    for number in range(count):
        start = chance.randrange(len(text) - BODY_BYTES)
        yield f"{number:08} {text[start : start + BODY_BYTES - 9]}"


def _fragments(bodies: Iterable[str], tokens: int | None) -> Iterator[sw.Fragment]:
    return (sw.Fragment(fragment_id=f"f{number}", body=body, tokens=tokens) for number, body in enumerate(bodies))


def _encode_and_hash(bodies: Sequence[str]) -> None:
    for start in range(0, len(bodies), FRAME):
        rows = [("p", f"f{number}", body.encode(), 20) for number, body in enumerate(bodies[start : start + FRAME])]
        for row in msgpack.decode(msgpack.encode(rows)):
            hashlib.sha256(row[2]).digest()
