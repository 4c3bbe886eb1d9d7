"""The same job on unsynchronised dicts, shared by the threads of this process.

It shows that the job is hard: the same callers lose data if nothing orders them. No interleaving is forced. The
interpreter only switches between threads more often than usual, as a busy server does over a longer time.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Final

from examples.demo.job import HOT_TOKENS, Findings, Job, ProgressBatcher, call, prepare
from examples.demo.proof import Proof, verify
from stepwell.domain.tiers.model import TierBudget
from tests.doubles.unsynchronised import Unsynchronised

SWITCH_SECONDS: Final = 1e-6
"""The interval at which the interpreter switches threads; 5 milliseconds is the default."""


def run_dicts(job: Job, advance: Callable[[int], None]) -> Proof:
    """Run the job with one thread for each caller of the runtime's job, and return the proof."""
    services = Unsynchronised(budget=TierBudget(hot_tokens=HOT_TOKENS))
    plan = prepare(services, job)
    progress = ProgressBatcher(advance)
    start = Barrier(job.callers)

    def begin(caller: int) -> Findings:
        start.wait()
        return call(services, job, plan, caller, progress.step)

    started_s = time.monotonic()
    with _short_switch_interval(), ThreadPoolExecutor(job.callers) as pool:
        findings = [*pool.map(begin, range(job.callers))]
    return verify(services, job, plan, findings, seconds=time.monotonic() - started_s)


@contextlib.contextmanager
def _short_switch_interval() -> Generator[None]:
    """Switch between threads very often for the duration of the block, so that a second or two shows what hours
    would.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)
