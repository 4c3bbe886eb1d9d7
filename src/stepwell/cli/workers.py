"""`stepwell workers`: add a pool of worker processes to a running manager, supervised from this terminal.

A worker that dies is replaced. One line on stderr shows how many workers are ready and how many were restarted. Ctrl-C
or SIGTERM stops the workers and is exit code 0. Exit code 1 means that the manager is gone or that workers cannot
start.

`serve` has workers of its own. This command is for more of them, for other strategies, and for limits on memory or
priority that should not apply to the manager.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.output import StatusLine, print_error
from stepwell.pool.strategy.settings import PoolSettings, PoolStatus
from stepwell.pool.strategy.supervisor import Supervisor
from stepwell.telemetry import LogLevel

SUMMARY: Final = "Add a pool of workers to a running manager"

_UNITS: Final = {"": 1, "K": limits.KIB, "M": limits.MIB, "G": 1024 * limits.MIB}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options. A limit on memory is one on the data segment, so shared memory that is mapped does not count."""
    parser.add_argument("--connect", metavar="ADDRESS", help="path of the manager's socket (default: this user's own)")
    parser.add_argument(
        "--workers",
        type=worker_count,
        metavar="N",
        default=usable_cores(),
        help="processes (default: %(default)s, one for each core)",
    )
    parser.add_argument(
        "--max-memory",
        type=memory_size,
        metavar="BYTES",
        help="of data for each, such as 512M; a strategy that needs more fails",
    )
    parser.add_argument("--nice", type=int, metavar="N", help="nice value of the worker processes, 0 to 19")
    parser.add_argument(
        "--strategies", nargs="+", default=[], metavar="MODULE:ATTR", help="besides those built in and installed"
    )
    parser.add_argument(
        "--log-level",
        choices=[*LogLevel],
        default=LogLevel.WARNING,
        help="lowest level of events that are logged (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Supervise workers until a signal or the end of the manager, and return the exit code."""
    level = LogLevel(arguments.log_level)
    line = StatusLine()
    # The supervisor and its workers connect like other clients; nothing but the address ties them to the manager.
    settings = PoolSettings(
        address=resolve_address(arguments.connect),
        workers=arguments.workers,
        strategies=tuple(arguments.strategies),
        max_memory_bytes=arguments.max_memory,
        nice=arguments.nice,
        log_level=level,
    )
    supervisor = Supervisor(settings, lambda status: line.show(_status_text(status)))
    with _stopped_by_signals(supervisor):
        supervisor.run()
    line.end()
    if problem := supervisor.status.problem:
        print_error(problem)
        return 1
    return 0


def usable_cores() -> int:
    """Return the number of cores that this process may use, which a container or `taskset` can restrict."""
    return len(os.sched_getaffinity(0))


def worker_count(text: str) -> int:
    """Return a number of workers, for argparse."""
    if not text.isdecimal() or not 1 <= int(text) <= limits.WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {limits.WORKERS_MAX}")
    return int(text)


def memory_size(text: str) -> int:
    """Return a number of bytes from a text such as 512M, for argparse. Too little for an interpreter is refused."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give one such as 512M or 2G")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size < limits.WORKER_MEMORY_BYTES_MIN:
        raise argparse.ArgumentTypeError(f"{text!r} is too little for a worker: give at least 64M")
    return size


@contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Generator[None]:
    """Let SIGINT and SIGTERM stop the supervisor for the duration of the block, instead of ending the process."""

    def stop(_signal: int, _frame: object) -> None:
        supervisor.stop()

    previous = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _status_text(status: PoolStatus) -> str:
    """Return the state of the pool in one line."""
    return f"{status.ready} of {status.wanted} workers ready, {status.restarts} restarted"
