"""The command of the demonstration: its options, the manager that it uses, the progress bars and the order of the
steps.

The exit code is 0 if the runtime lost nothing and 1 if it did. The losses of the dicts are expected and do not count.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Annotated, Final
from uuid import uuid4

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo.dicts import run_dicts
from examples.demo.job import HOT_TOKENS, Job, prepare
from examples.demo.processes import interrupts_deferred, ready_processes, run_callers
from examples.demo.proof import Proof, verify
from examples.demo.report import report, report_json
from stepwell import limits
from stepwell.cli.command_line import run_app
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.exit_codes import INTERRUPTED
from stepwell.cli.common.parameters import JsonFlag, address_option, option, whole_number
from stepwell.client.client import Client, connect
from stepwell.domain.plans.model import Plan
from stepwell.domain.tiers.model import TierBudget
from stepwell.errors import InvalidArgument, StepwellError
from stepwell.runtime import Runtime

_PROCESSES: Final = 8
_THREADS: Final = 4
_CALLERS_MAX: Final = limits.PEERS_MAX // 2  # a caller is a connection, and others may have some too
"""Half of the connections that a manager accepts: each caller has one, and a running manager has other clients."""

SUMMARY: Final = "Run many processes and threads at once, and show what was proven, beside unsynchronised dicts"


app: Final = command_app()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration and return its exit code."""
    try:
        return run_app(app, "python -m examples.demo", argv)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


@app.command(cls=ShellCommand, help=f"{SUMMARY}.")
def run(
    *,
    processes: Annotated[int, option("--processes", metavar="N", about="of callers", parse=whole_number)] = _PROCESSES,
    threads: Annotated[int, option("--threads", metavar="N", about="in each process", parse=whole_number)] = _THREADS,
    address: Annotated[
        str | None,
        address_option("a running manager to use instead of one of its own; its fragments are removed afterwards"),
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Run the job on the runtime and on the dicts, and print both proofs."""
    job = Job(project=f"demo-{uuid4().hex}", processes=processes, threads=threads)
    if min(job.processes, job.threads) < 1 or job.callers > _CALLERS_MAX:
        raise InvalidArgument(
            f"--processes and --threads are at least 1, and together at most {_CALLERS_MAX} callers, "
            f"not {job.processes} x {job.threads}"
        )
    with _manager(address) as client, _progress() as progress:
        task = progress.add_task("runtime", total=job.steps)
        runtime = _run_runtime(client, job, lambda steps: progress.advance(task, steps))
        progress.update(task, completed=job.steps)
        task = progress.add_task("dicts", total=job.steps)
        dicts = run_dicts(job, lambda steps: progress.advance(task, steps))
    if json:
        report_json(job, runtime, dicts)
    else:
        report(result_console(), job, runtime, dicts)
    return 0 if runtime.holds else 1


def _run_runtime(client: Client, job: Job, advance: Callable[[int], None]) -> Proof:
    """Run the job on the runtime and return its proof."""
    plan = prepare(client, job)
    with _clean_up_after(client, job, plan):
        with ready_processes(client.address, job, plan) as processes, _reader(client) as readings:
            started_s = time.monotonic()
            findings = [*run_callers(processes, advance)]
            seconds = time.monotonic() - started_s
        return verify(client, job, plan, findings, readings=readings, seconds=seconds)


@contextlib.contextmanager
def _reader(client: Client) -> Generator[list[int]]:
    """Read the tokens of the hot tier over and over, in a thread, for the duration of the block, and yield the
    readings.

    The readings prove that no reader ever saw the tier above its budget, not even between two commands.
    """
    readings: list[int] = []
    over = Event()

    def read() -> None:
        while not over.is_set():
            readings.append(client.tiers.metrics().hot.tokens)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        try:
            yield readings
        finally:
            over.set()
    reader.result()


@contextlib.contextmanager
def _manager(address: str | None) -> Generator[Client]:
    """Yield a client of the manager that was named, or of a manager that lives as long as the block."""
    if address is not None:
        with connect(resolve_address(address)) as client:
            yield client
        return
    with interrupts_deferred():
        runtime = Runtime.start(workers=0, budget=TierBudget(hot_tokens=HOT_TOKENS))
    with runtime, runtime.client() as client:
        yield client


@contextlib.contextmanager
def _clean_up_after(client: Client, job: Job, plan: Plan) -> Generator[None]:
    """Remove what the demonstration created when the block ends.

    Fragments are deleted. Actions and plans cannot be deleted, so they are archived and cancelled.
    """
    try:
        yield
    finally:
        with contextlib.suppress(StepwellError):
            for row in [*client.tiers.scoped(project=job.project)]:
                client.tiers.delete(row.fragment_id, project=job.project)
            client.plans.cancel_plan(plan.plan_id, "the demonstration is over")
            for name in (plan.action_name, *job.names):
                client.plans.archive_action(name)


@contextlib.contextmanager
def _progress() -> Generator[Progress]:
    """Yield progress bars on stderr, so that stdout has only the result. They appear on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress
