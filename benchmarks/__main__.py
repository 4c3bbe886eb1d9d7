"""`python -m benchmarks [--rounds N] [--json FILE]`: the peers, interleaved, with their ratios."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec

from benchmarks import assembly, bodies, durable, recovery, small, tasks


def main() -> int:
    """Exit code 1 if anything stays behind what it has to reach."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operations", type=int, default=5_000, help="with small bodies, in each round")
    parser.add_argument("--reads", type=int, default=300, help="of a large body, by each reader in each round")
    parser.add_argument("--seconds", type=float, default=2.0, help="of durable writing, by each in each round")
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    options = parser.parse_args()
    rates, slow = small.run(options.rounds, options.operations)
    seconds, costly = bodies.run(options.rounds, options.reads)
    durable_rates, unsafe = durable.run(options.rounds, options.seconds)
    task_seconds, idle = tasks.run(options.rounds)
    openings, late = recovery.run(options.rounds)
    question_seconds, forgetful = assembly.run(options.rounds)
    if options.json:
        measured = {
            "operations a second": rates,
            "seconds a read": seconds,
            "durable records a second": durable_rates,
            "seconds for all tasks": task_seconds,
            "directories opened": msgspec.to_builtins(openings),
            "seconds for a question": question_seconds,
        }
        options.json.write_text(json.dumps(measured, indent=2) + "\n")
    behind = [*slow, *costly, *unsafe, *idle, *late, *forgetful]
    print("\n".join(f"behind: {line}" for line in behind) or "everything wanted was reached")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
