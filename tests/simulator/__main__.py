"""`python -m tests.simulator`: run seeds, replay one, shrink one that fails, or put bugs back."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator

from tests.simulator.run import Result, prepare_process, run, run_seed
from tests.simulator.settings import settings_of
from tests.simulator.shrink import regressions, shrunk, write_regression
from tests.simulator.workloads import WORKLOADS

SEEDS_PER_REPORT = 1_000


def main(arguments: list[str]) -> int:
    """Do what the command line asks for, and return the exit code: 1 if a run has violated a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default: 200)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (default: 1)")
    parser.add_argument("--seed", type=int, help="replay one seed, twice, and compare the two runs")
    parser.add_argument("--shrink", action="store_true", help="with --seed: find a smaller run that fails too")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="how many to run at a time")
    chosen = parser.parse_args(arguments)
    if chosen.seed is None:
        return run_all(range(chosen.first, chosen.first + chosen.seeds), chosen.processes)
    return replay(chosen.seed, must_shrink=chosen.shrink)


def run_all(seeds: range, processes: int) -> int:
    """Run the regressions, and then seeds; print the violations and the speed."""
    failed = commands = faults = done = 0
    work_s = 0.0
    for name, settings in regressions().items():
        if (result := run(settings)).violation:
            failed += 1
            print(f"regression {name}: {result.violation}")
    for result, seconds in _results(seeds, processes):
        done += 1
        commands += result.commands
        faults += len(result.faults)
        work_s += seconds
        if result.violation:
            failed += 1
            print(f"seed {result.seed}: {result.violation}", flush=True)
        if done % SEEDS_PER_REPORT == 0:
            print(f"{done} of {len(seeds)} seeds, {failed} failed", flush=True)
    print(
        f"{done} seeds, {commands} commands, {faults} faults: {failed} failed; {commands / max(work_s, 1e-9):,.0f} "
        "commands a second and core"
    )
    print(f"{done - failed} passed, {failed} failed")
    return bool(failed)


def _results(seeds: Iterable[int], processes: int) -> Iterator[tuple[Result, float]]:
    if processes == 1:
        prepare_process()
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, prepare_process) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=4)


def replay(seed: int, *, must_shrink: bool) -> int:
    """Run a seed twice, compare the two runs, and print what happened."""
    settings = settings_of(seed, tuple(WORKLOADS))
    first, second = run(settings), run(settings)
    print(settings)
    print(f"{first.commands} commands, {first.turns} turns, {first.starts} starts, faults: {', '.join(first.faults)}")
    print(f"digest of the run: {first.digest or 'none, because it failed'}")
    if first != second:
        print(f"the second run was another one: {second}")
        return 1
    if first.violation is None:
        return 0
    print(first.violation)
    if must_shrink:
        smaller, result = shrunk(settings)
        print(f"a smaller run: {smaller}\n{result.violation}\n{write_regression(smaller, f'seed-{seed}')}")
    return 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts then have the same order in every run
        command = [sys.executable, "-m", "tests.simulator", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"PYTHONHASHSEED": "0"})  # noqa: S606
    if "--bugs" in sys.argv:
        from tests.simulator import bug_table

        sys.exit(bug_table.main([each for each in sys.argv[1:] if each != "--bugs"]))
    sys.exit(main(sys.argv[1:]))
