"""`python -m tests.promises`: break the promises one at a time, and expect the named tests to fail."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence

from tests.promises import document
from tests.promises.defects import DEFECTS
from tests.promises.model import Defect, Verdict
from tests.promises.proof import Proof

JOBS = min(2 * (os.cpu_count() or 1), 8)
"""Tests mostly wait: for processes to start, and for the disk."""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for, and return the exit code: 1 if a defect was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument("--only", type=int, nargs="+", metavar="PROMISE", help="the promises to break (default: all)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many runs at a time (default: {JOBS})")
    parser.add_argument("--list", action="store_true", help="list the defects, and run nothing")
    parser.add_argument("--write", action="store_true", help="write docs/broken-promises.md, and run nothing")
    chosen = parser.parse_args(arguments)
    if chosen.write:
        document.PAGE.write_text(document.page(DEFECTS))
        return 0
    defects = [each for each in DEFECTS if chosen.only is None or each.promise in chosen.only]
    if not defects:
        parser.error(f"no defect breaks a promise of {chosen.only}")
    if chosen.list:
        for each in defects:
            print(f"{each.promise:2} {each.description}")
        return 0
    return prove(defects, chosen.jobs)


def prove(defects: Sequence[Defect], jobs: int) -> int:
    """Run all, print a line for each defect and test, and return 1 if a defect was not found."""
    began = time.monotonic()
    proof = Proof(jobs)
    try:
        if troubles := proof.troubles(defects):
            for test, why in troubles.items():
                print(f"does not pass without a defect: {test}: {why}")
            return 1
        missed = 0
        for verdict in proof.verdicts(defects):
            missed += not verdict.is_found
            print(told(verdict), flush=True)
    finally:
        proof.close()
    print(f"{len(defects) - missed} of {len(defects)} defects found, in {(time.monotonic() - began) / 60:.0f} minutes")
    return bool(missed)


def told(verdict: Verdict) -> str:
    """Return what is printed of a verdict."""
    found = "found" if verdict.is_found else "NOT FOUND"
    lines = [f"{verdict.defect.promise:2}  {found:9}  {verdict.seconds:4.0f} s  {verdict.defect.description}"]
    lines += [f"    failed  {test}: {message[:90]}" for test, message in verdict.messages.items()]
    lines += [f"    BUT     {test}: {message[:200]}" for test, message in verdict.missing.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and leave nothing behind
    sys.exit(main(sys.argv[1:]))
