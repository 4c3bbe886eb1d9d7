"""`python -m tests.simulator`: run seeds, replay one, or put bugs back."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.simulator.run import run
from tests.simulator.settings import settings_of
from tests.simulator.workloads import WORKLOADS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    chosen = parser.parse_args()
    seeds = [chosen.seed] if chosen.seed is not None else range(chosen.first, chosen.first + chosen.seeds)
    began_s = time.process_time()
    commands = failed = 0
    for seed in seeds:
        result = run(settings_of(seed, tuple(WORKLOADS)))
        commands += result.commands
        if chosen.seed is not None:
            print(settings_of(seed, tuple(WORKLOADS)))
            print(result)
        if result.violation:
            failed += 1
            print(f"seed {seed}: {result.violation}")
    seconds = time.process_time() - began_s
    print(f"{len(seeds)} seeds, {commands} commands, {seconds:.1f} s, {commands / seconds:,.0f} commands/s, {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets must be that of the seed
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulator", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    sys.exit(main())
