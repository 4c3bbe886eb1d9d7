"""The same work on unsynchronised dicts, shared by threads of this process."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

from examples.demo.job import HOT_TOKENS, Findings, Job, Tally, call, prepare
from examples.demo.proof import Proof, verify
from stepwell.domain.tiers.model import TierBudget
from tests.doubles.unsynchronised import Unsynchronised

SWITCH_SECONDS: Final = 1e-6


def run_dicts(job: Job, advance: Callable[[int], None]) -> Proof:
    """As many threads as the runtime had callers. Nothing is forced; they only take turns more often than usual."""
    services = Unsynchronised(budget=TierBudget(hot_tokens=HOT_TOKENS))
    plan = prepare(services, job)
    progress = Tally(advance)
    start = Barrier(job.callers)

    def begin(caller: int) -> Findings:
        start.wait()
        return call(services, job, plan, caller, progress.step)

    started_s = time.monotonic()
    with _impatient_interpreter(), ThreadPoolExecutor(job.callers) as pool:
        findings = [*pool.map(begin, range(job.callers))]
    return verify(services, job, plan, findings, seconds=time.monotonic() - started_s)


@contextlib.contextmanager
def _impatient_interpreter() -> Generator[None]:
    """Let threads take turns in the middle of things, as they do on a busy server, within a second or two."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
