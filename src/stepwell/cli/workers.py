"""`stepwell workers`: a pool of workers for a manager that runs elsewhere, supervised from this terminal."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from stepwell import limits
from stepwell.cli.addresses import resolve
from stepwell.cli.output import complain
from stepwell.pool.strategy.settings import PoolSettings, PoolStatus
from stepwell.pool.strategy.supervisor import Supervisor
from stepwell.telemetry import LogLevel

SUMMARY: Final = "Add a pool of workers to a running manager"

_UNITS: Final = {"": 1, "K": limits.KIB, "M": limits.MIB, "G": 1024 * limits.MIB}
_MEMORY_BYTES_MIN: Final = 64 * limits.MIB  # an interpreter with its modules takes half of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connect", metavar="ADDRESS", help="path of the manager's socket (default: this user's own)")
    parser.add_argument(
        "--workers",
        type=count,
        metavar="N",
        default=cores(),
        help="processes (default: %(default)s, one for each core)",
    )
    parser.add_argument(
        "--max-memory",
        type=memory,
        metavar="BYTES",
        help="of data for each, such as 512M; a strategy that needs more fails",
    )
    parser.add_argument("--nice", type=int, metavar="N", help="how far to stand back behind other programs, 0 to 19")
    parser.add_argument(
        "--strategies", nargs="+", default=[], metavar="MODULE:ATTR", help="besides those built in and installed"
    )
    parser.add_argument(
        "--log-level", choices=[*LogLevel], default=LogLevel.WARNING, help="what is worth a line (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Supervise until Ctrl-C or SIGTERM, which is a good end, or until there is no manager, which is not."""
    level = LogLevel(arguments.log_level)
    line = _StatusLine()
    settings = PoolSettings(
        address=resolve(arguments.connect),
        workers=arguments.workers,
        strategies=tuple(arguments.strategies),
        max_memory_bytes=arguments.max_memory,
        nice=arguments.nice,
        log_level=level,
    )
    supervisor = Supervisor(settings, line.show)
    with _stopped_by_signals(supervisor):
        supervisor.run()
    line.end()
    if problem := supervisor.status.problem:
        complain(problem)
        return 1
    return 0


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))


def count(text: str) -> int:
    """A number of workers."""
    if not text.isdecimal() or not 1 <= int(text) <= limits.WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {limits.WORKERS_MAX}")
    return int(text)


def memory(text: str) -> int:
    """Bytes, with or without a unit."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give one such as 512M or 2G")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size < _MEMORY_BYTES_MIN:
        raise argparse.ArgumentTypeError(f"{text!r} is too little for a worker: give at least 64M")
    return size


@contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Generator[None]:
    def stop(_signal: int, _frame: object) -> None:
        supervisor.stop()

    previous = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


class _StatusLine:
    """How the workers are: one line that changes on a terminal, a line for each change elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""

    def show(self, status: PoolStatus) -> None:
        text = f"{status.ready} of {status.wanted} workers ready, {status.restarts} restarted"
        if text != self._shown:
            self._shown = text
            sys.stderr.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
            sys.stderr.flush()

    def end(self) -> None:
        if self._is_terminal and self._shown:
            sys.stderr.write("\n")
