"""All runs: first the tests without a defect, then each defect with its tests."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import groupby

from tests.promises.model import Defect, Verdict, file_of
from tests.promises.repository_copy import RepositoryCopy
from tests.promises.run import HANG_SECONDS, failure, log_of, run_tests, trouble

RUNS_MAX = 3
"""The runs that a test has to fail once with a defect: what several processes do differs from run to run."""


class Proof:
    """So many copies of the repository, and the runs in them; `close` ends all of it. For one thread."""

    def __init__(self, jobs: int) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._is_closing = False
        self._copies: queue.SimpleQueue[RepositoryCopy] = queue.SimpleQueue()
        self._all = [RepositoryCopy() for _ in range(jobs)]
        for each in self._all:
            self._copies.put(each)

    def troubles(self, defects: Sequence[Defect]) -> dict[str, str]:
        """Run the tests of the defects without a defect; return those that did not pass, and why.

        A test of one file runs with the others of the file, and once for all defects that name it.
        """
        tests = sorted({test for defect in defects for test in defect.tests}, key=lambda test: (file_of(test), test))
        runs = [self._threads.submit(self._passes, [*group]) for _, group in groupby(tests, key=file_of)]
        found: dict[str, str] = {}
        for each in as_completed(runs):
            found |= each.result()
        return found

    def _passes(self, tests: list[str]) -> dict[str, str]:
        with self._copy() as copy:
            began = time.monotonic()
            outcomes, is_late = run_tests(copy, tests)
            found = {test: why for test in tests if (why := trouble(outcomes[test]))}
            if is_late:
                found |= dict.fromkeys(tests, "its run was ended by the time limit")
            if found:
                print(log_of(copy))
        print(f"{tests[0]}: {len(tests) - len(found)} of {len(tests)}, {time.monotonic() - began:.0f} s", flush=True)
        return found

    def verdicts(self, defects: Sequence[Defect]) -> Iterator[Verdict]:
        """Run each defect with its tests, and yield the verdicts as they come."""
        for each in as_completed([self._threads.submit(self._verdict, defect) for defect in defects]):
            yield each.result()

    def _verdict(self, defect: Defect) -> Verdict:
        """Run a defect with its tests; those that have not failed run again, because some meet a race by chance."""
        missing = dict.fromkeys(defect.tests, "")
        messages: dict[str, str] = {}
        began = time.monotonic()
        with self._copy() as copy:
            for _ in range(0 if self._is_closing else RUNS_MAX):
                outcomes, is_late = run_tests(copy, [*missing], defect)
                for test in [*missing]:
                    is_failed, message = failure(outcomes[test], is_late=is_late)
                    if is_late and defect.may_hang:
                        is_failed, message = True, f"it hung for {HANG_SECONDS:.0f} s"
                    missing[test] = message
                    if is_failed:
                        messages[test] = missing.pop(test)
                if not missing or is_late or self._is_closing:
                    break
        return Verdict(defect, missing, messages, time.monotonic() - began)

    @contextmanager
    def _copy(self) -> Iterator[RepositoryCopy]:
        copy = self._copies.get()
        try:
            yield copy
        finally:
            self._copies.put(copy)

    def close(self) -> None:
        """End the runs, those that have begun included, and delete the copies."""
        self._is_closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for each in self._all:
            each.end_processes(grace_s=0.0)
        self._threads.shutdown()
        for each in self._all:
            each.remove()
