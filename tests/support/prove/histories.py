"""Many short histories of real runs, all of which have to be legal, and mutated ones, none of which may be.

`python -m tests.support.prove.histories --histories 10000 --mutants 1000` runs `stepwell prove`'s own trials, every
other one with kills, and two of four without the index of reads, until there are enough histories. A partition counts
if it has several calls of several lanes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from stepwell.prove.partition import Partition, partitions_of
from stepwell.prove.report import timeline
from stepwell.prove.search import SearchResult
from stepwell.prove.shrink import result_of, shrink
from stepwell.prove.trial import TrialSettings, run_trial
from tests.support.prove.mutations import mutants

TRIAL_SECONDS = 10.0
CALLS_MIN = 4


def is_counted(partition: Partition) -> bool:
    """Return True if several lanes have made several calls."""
    return len(partition.calls) >= CALLS_MIN and len({each.lane for each in partition.calls}) > 1


def recorded(count: int, seed: int) -> list[Partition]:
    """Run trials until there are enough histories, and return them."""
    found: list[Partition] = []
    trials = kills = calls = 0
    while len(found) < count:
        settings = TrialSettings(
            seconds=TRIAL_SECONDS, seed=seed + trials, kill=bool(trials % 2), read_index=trials % 4 < 2
        )
        history = run_trial(settings)
        found += filter(is_counted, partitions_of(history))
        trials, kills, calls = trials + 1, kills + history.header.kills, calls + len(history.calls)
        print(f"{len(found):,} histories, {calls:,} calls, {kills} kills", flush=True)
    return found[:count]


def illegal(partitions: list[Partition]) -> list[Partition]:
    """Judge histories that have to be legal, and return those that are not."""
    return [each for each in partitions if result_of(each) is not SearchResult.LEGAL]


def accepted_mutants(partitions: list[Partition], count: int, seed: int) -> Counter[str]:
    """Judge mutated histories, and return how many of each kind were not rejected."""
    print(f"seed {seed}")
    found: Counter[str] = Counter()
    for _, (name, mutant) in zip(range(count), mutants(partitions, random.Random(seed)), strict=False):
        found[name] += result_of(mutant) is not SearchResult.ILLEGAL
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000)
    parser.add_argument("--mutants", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args(argv)
    print(f"seed {given.seed}")
    partitions = recorded(given.histories, given.seed)
    began_s = time.monotonic()
    wrong = illegal(partitions)
    print(f"{len(partitions) - len(wrong):,} of {len(partitions):,} are legal ({time.monotonic() - began_s:.1f} s)")
    for each in wrong[:3]:
        print("\n".join(timeline(shrink(each))))
    survivors = accepted_mutants(partitions, given.mutants, given.seed)
    print(f"{given.mutants - survivors.total():,} of {given.mutants:,} mutants are rejected: {dict(survivors)}")
    return 1 if wrong or survivors.total() else 0


if __name__ == "__main__":
    sys.exit(main())
