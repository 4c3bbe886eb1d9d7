"""`python -m tests.simulator --bugs`: put bugs back, one at a time, and count the seeds until each is found."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec

from tests.simulator.bugs import BUGS
from tests.simulator.run import prepare_process, run
from tests.simulator.settings import settings_of
from tests.simulator.workloads import WORKLOADS

PROCESSES = 2
SEEDS_MAX = 10_000
RUN_SECONDS_MAX = 120.0
"""Processor time of one run. The oracle bounds the steps of a run; this also ends a client that never lets go."""


class Finding(msgspec.Struct, frozen=True):
    """A bug, and the seed that found it: None if none did. `violation` is the first line of what that run said."""

    bug: str
    description: str
    seeds: int | None
    violation: str


class _RunTooLong(BaseException):
    """A run has used its processor time. No handler in the run may catch it."""


def find(name: str, seeds_max: int, first: int = 1) -> Finding:
    """Run one seed after the other with a bug, until one finds a violation.

    A violation counts only if the same seed has none without the bug; otherwise it would say nothing about the bug.
    """
    bug = BUGS[name]
    for seed in range(first, first + seeds_max):
        with bug.put_back():
            violation = _violation_of(seed)
        if violation is not None and _violation_of(seed) is None:
            return Finding(name, bug.description, seed - first + 1, violation.splitlines()[0])
    return Finding(name, bug.description, None, "")


def _violation_of(seed: int) -> str | None:
    try:
        with _bounded(RUN_SECONDS_MAX):
            return run(settings_of(seed, tuple(WORKLOADS))).violation
    except _RunTooLong:
        return "it does not come to an end"


@contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Raise `_RunTooLong` in the block once it has used this much processor time."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise _RunTooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _find_one(question: tuple[str, int, int]) -> Finding:
    return find(*question)


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return 1 if a bug was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator --bugs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the bugs to put back; all without a name")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="the seeds after which a bug is not found")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table to a file")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.names if name not in BUGS]:
        parser.error(f"there is no bug {unknown[0]!r}: give some of {', '.join(BUGS)}")
    names = chosen.names or [*BUGS]
    findings: list[Finding] = []
    with multiprocessing.get_context("fork").Pool(chosen.processes, prepare_process, maxtasksperchild=1) as pool:
        questions = [(name, chosen.seeds, chosen.first) for name in names]
        for finding in pool.imap_unordered(_find_one, questions):
            findings.append(finding)
            seeds = "not found" if finding.seeds is None else f"{finding.seeds:,}"
            print(f"{finding.bug:38} {seeds:>9}  {finding.violation[:120]}", flush=True)
    findings.sort(key=lambda finding: names.index(finding.bug))
    missed = [finding.bug for finding in findings if finding.seeds is None]
    print(f"{len(findings) - len(missed)} of {len(findings)} bugs found within {chosen.seeds:,} seeds")
    if chosen.json is not None:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(findings)) + b"\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
