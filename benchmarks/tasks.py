"""CPU-bound tasks that two processes share: the time until all are done.

Long tasks show what giving them out costs beside doing them; short ones that need a large body each, what it costs to
have it there. A pool of the standard library's kind has to send the body; a worker of ours finds it in shared memory.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import multiprocess

import stepwell as sw
from benchmarks.section import Goal, Section, Turn, in_rounds
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView

WORKERS = 2
LONG, LONG_SECONDS = 64, 0.020
SHORT, SHORT_SECONDS = 5_000, 0.0001
BODY_BYTES = 1 << 20

_STEPWELL, _FUNCTIONS = "stepwell, strategies", "stepwell, runtime.executor()"
_STANDARD, _LOKY, _POOL = "ProcessPoolExecutor", "loky", "multiprocess.Pool"

Run = Callable[[int], None]
"""Runs `count` tasks, and returns when all are done."""

IDEAL_MAX = 1.10
SHARES_MAX = {"long": 1.0, "short": 0.333}
"""The share of a peer's time that the strategies may take in the same run."""


def burn(seconds: float) -> float:
    """Use the processor for some seconds."""
    until = time.process_time() + seconds
    value = 1.0
    while time.process_time() < until:
        value = value * 1.000001 + 1
    return value


def long_function(_number: int) -> float:
    return burn(LONG_SECONDS)


def short_function(body: bytes | memoryview) -> int:
    burn(SHORT_SECONDS)
    return body[0] + len(body)


def _scored(view: StrategyView) -> Sequence[ScoredFragment]:
    row = view.rows("p")[0]
    return [ScoredFragment(row.project, row.fragment_id, 1.0, row.tokens, row.revision)]


def long_strategy(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    burn(LONG_SECONDS)
    return _scored(view)


def short_strategy(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    seen = view.get("body", project="p")
    assert seen is not None
    short_function(seen.body)
    return _scored(view)


@contextmanager
def contenders() -> Generator[tuple[dict[str, dict[str, Run]], dict[str, str]]]:
    """Yield the two runs of each contender, and the reasons of the absent ones."""
    body = os.urandom(BODY_BYTES)
    found: dict[str, dict[str, Run]] = {}
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        runtime = stack.enter_context(sw.Runtime.start(workers=WORKERS, strategies=[long_strategy, short_strategy]))
        client = stack.enter_context(runtime.client(projects=["p"]))
        client.tiers.store(sw.Fragment(fragment_id="body", body=body, tokens=1))
        asked = ContextRequest(projects=("p",))
        found[_STEPWELL] = {
            "long": lambda count: _exhaust(client.strategies.map("long-strategy", [asked] * count)),
            "short": lambda count: _exhaust(client.strategies.map("short-strategy", [asked] * count)),
        }
        functions = stack.enter_context(runtime.executor(WORKERS))
        found[_FUNCTIONS] = _executor(functions.map, body)
        standard = stack.enter_context(ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")))
        found[_STANDARD] = _executor(standard.map, body)
        pool = stack.enter_context(multiprocess.get_context("spawn").Pool(WORKERS))
        found[_POOL] = _executor(pool.imap, body)
        try:
            import loky  # noqa: PLC0415 - only where there is one
        except ImportError as error:
            absent[_LOKY] = str(error)
        else:
            stack.callback(_stop_lokys_tracker)
            found[_LOKY] = _executor(stack.enter_context(loky.ProcessPoolExecutor(WORKERS)).map, body)
        yield found, absent


def _stop_lokys_tracker() -> None:
    """Stop loky's tracker process, which would otherwise live until this process ends. It starts again on demand."""
    gc.collect()  # the resources that it tracks are released first
    importlib.import_module("loky.backend.resource_tracker")._resource_tracker._stop()


def _executor(mapping: Callable[..., object], body: bytes) -> dict[str, Run]:
    return {
        "long": lambda count: _exhaust(mapping(long_function, range(count))),
        "short": lambda count: _exhaust(mapping(short_function, [body] * count)),
    }


def _exhaust(results: object) -> None:
    assert isinstance(results, Iterable)
    for _ in results:
        pass


def run(rounds: int, long: int = LONG, short: int = SHORT) -> list[Section]:
    """Return the seconds until all tasks are done."""
    counts = {"long": long, "short": short}
    titles = {
        "long": f"{long:,} tasks of {LONG_SECONDS * 1000:g} ms",
        "short": f"{short:,} tasks of {SHORT_SECONDS * 1000:g} ms, each with a body of 1 MiB",
    }
    with contenders() as (found, absent):
        turns: dict[tuple[str, str], Turn] = {
            (title, name): partial(_timed, works[work], counts[work])
            for work, title in titles.items()
            for name, works in found.items()
        }
        figures, failed = in_rounds(rounds, turns)
    peers = [
        Goal(titles[work], _STEPWELL, "at most", share, peer)
        for work, share in SHARES_MAX.items()
        for peer in (_STANDARD, _LOKY, _POOL)
    ]
    ideal = Goal(titles["long"], _STEPWELL, "at most", round(IDEAL_MAX * long * LONG_SECONDS / WORKERS, 4))
    return [
        Section(
            title=f"Tasks that take the processor, {WORKERS} workers",
            unit="s",
            figures=figures,
            goals=(ideal, *peers),
            absent=absent | failed,
        )
    ]


def _timed(run_all: Run, count: int) -> float:
    begun = time.perf_counter()
    run_all(count)
    return time.perf_counter() - begun
