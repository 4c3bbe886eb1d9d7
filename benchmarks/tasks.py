"""Work that takes the processor, shared by two processes: who is done first.

Long tasks show what giving them out costs beside doing them; short ones that need a large body each, what it costs to
have it there. A pool of the standard library's kind has to send the body; a worker of ours finds it in shared memory.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager

import multiprocess
from rich.console import Console
from rich.table import Table

import stepwell as sw
from stepwell.strategies.base import ContextRequest, ScoredFragment, StrategyView

WORKERS = 2
LONG, LONG_SECONDS = 64, 0.020
SHORT, SHORT_SECONDS = 5_000, 0.0001
BODY_BYTES = 1 << 20

_STEPWELL, _FUNCTIONS = "stepwell, strategies", "stepwell, runtime.executor()"
_STANDARD, _LOKY, _POOL = "ProcessPoolExecutor", "loky", "multiprocess.Pool"

Seconds = dict[str, dict[str, list[float]]]
Run = Callable[[int], None]
"""Has so many tasks done, and comes back when all of them are."""

IDEAL_MAX = 1.10
WANTED = {
    (work, peer): at_most for work, at_most in (("long", 1.0), ("short", 1 / 3)) for peer in (_STANDARD, _LOKY, _POOL)
}
"""What a share of a peer's time the strategies may take, in the same run."""


def burn(seconds: float) -> float:
    """Take that much of a processor."""
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
    """Everybody's two ways, and why some could not take part."""
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
            found[_LOKY] = _executor(stack.enter_context(loky.ProcessPoolExecutor(WORKERS)).map, body)
        yield found, absent


def _executor(mapping: Callable[..., object], body: bytes) -> dict[str, Run]:
    return {
        "long": lambda count: _exhaust(mapping(long_function, range(count))),
        "short": lambda count: _exhaust(mapping(short_function, [body] * count)),
    }


def _exhaust(results: object) -> None:
    assert isinstance(results, Iterable)
    for _ in results:
        pass


def measure(rounds: int, long: int = LONG, short: int = SHORT) -> tuple[Seconds, dict[str, str]]:
    """Seconds of everybody, in rounds in which each has its turn, after one that does not count."""
    counts = {"long": long, "short": short}
    with contenders() as (found, absent):
        seconds: Seconds = {name: {"long": [], "short": []} for name in found}
        for number in range(rounds + 1):
            for name, works in found.items():
                for work, run_all in works.items():
                    begun = time.perf_counter()
                    run_all(counts[work] if number else WORKERS * 4)
                    if number:
                        seconds[name][work].append(time.perf_counter() - begun)
    return seconds, absent


def medians(seconds: Seconds) -> dict[tuple[str, str], float]:
    return {
        (name, work): statistics.median(values) for name, works in seconds.items() for work, values in works.items()
    }


def report(seconds: Seconds, absent: dict[str, str]) -> None:
    """A table on the terminal."""
    found = medians(seconds)
    titles = {
        "long": f"{LONG} tasks of {LONG_SECONDS * 1000:g} ms",
        "short": f"{SHORT:,} tasks of {SHORT_SECONDS * 1000:g} ms, each with a body of 1 MiB",
    }
    for work, title in titles.items():
        table = Table(title=f"{title}, {WORKERS} workers, {os.cpu_count()} cores, Python {platform.python_version()}")
        table.add_column("contender")
        for column in ("median s", "lowest s", "highest s", "of stepwell's"):
            table.add_column(column, justify="right")
        for name in seconds:
            values = seconds[name][work]
            ratio = found[name, work] / found[_STEPWELL, work]
            table.add_row(
                name, *(f"{each:.3f}" for each in (found[name, work], min(values), max(values))), f"{ratio:.2f}"
            )
        Console(width=120).print(table)
    for name, reason in absent.items():
        print(f"{name} takes no part: {reason}")


def run(rounds: int) -> tuple[Seconds, list[str]]:
    """Measure and report; the seconds, and who stays behind what it has to reach."""
    seconds, absent = measure(rounds)
    report(seconds, absent)
    found = medians(seconds)
    ideal = LONG * LONG_SECONDS / WORKERS
    behind: list[str] = []
    if found[_STEPWELL, "long"] > IDEAL_MAX * ideal:
        behind.append(f"long tasks took {found[_STEPWELL, 'long'] / ideal:.2f} of the ideal, {IDEAL_MAX} is wanted")
    for (work, peer), at_most in WANTED.items():
        if (peer, work) in found and found[_STEPWELL, work] > at_most * found[peer, work]:
            share = found[_STEPWELL, work] / found[peer, work]
            behind.append(f"{work} tasks took {share:.2f} of the time of {peer}, {at_most:.2f} is wanted")
    return seconds, behind
