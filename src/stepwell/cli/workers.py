"""`stepwell workers`: add a pool of worker processes to a running manager, supervised from this terminal.

A worker that dies is replaced. One line on stderr shows how many workers are ready and how many were restarted. Ctrl-C
or SIGTERM stops the workers and is exit code 0. Exit code 1 means that the manager is gone or that workers cannot
start.

`serve` has workers of its own. This command is for more of them, for other strategies, and for limits on memory or
priority that should not apply to the manager.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from stepwell import limits
from stepwell.cli.common.addresses import Address, resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.output import StatusLine, print_error
from stepwell.cli.common.parameters import option, whole_number
from stepwell.cli.common.worker_options import Level, usable_cores, workers_option
from stepwell.pool.strategy.settings import PoolSettings, PoolStatus
from stepwell.pool.strategy.supervisor import Supervisor
from stepwell.telemetry import LogLevel
from stepwell.text import plural

app: Final = command_app()

_UNITS: Final = {"": 1, "K": limits.KIB, "M": limits.MIB, "G": 1024 * limits.MIB}


def _memory_size(text: str) -> int:
    """Return a number of bytes from a text such as 512M. Too little for an interpreter is refused."""
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no size: give one such as 512M or 2G")
    size = int(match[1]) * _UNITS[match[2].upper()]
    if size < limits.WORKER_MEMORY_BYTES_MIN:
        raise typer.BadParameter(f"{text!r} is too little for a worker: give at least 64M")
    return size


@app.command(cls=ShellCommand)
def run(
    *,
    connect: Address = None,
    workers: Annotated[int, workers_option("processes, one for each core unless it is given")] = usable_cores(),
    max_memory: Annotated[
        int | None,
        option(
            "--max-memory",
            metavar="BYTES",
            parse=_memory_size,
            about="of data for each, such as 512M; shared memory does not count; a strategy that needs more fails",
        ),
    ] = None,
    nice: Annotated[
        int | None,
        option("--nice", metavar="N", about="nice value of the worker processes, 0 to 19", parse=whole_number),
    ] = None,
    strategies: Annotated[
        list[str] | None,
        option("--strategies", metavar="MODULE:ATTR...", about="one or more, besides those built in and installed"),
    ] = None,
    log_level: Level = LogLevel.WARNING,
) -> int:
    """A worker that dies is replaced. Ctrl-C or SIGTERM stops the workers and is exit code 0. Exit code 1 means that
    the manager is gone or that workers cannot start.
    """
    line = StatusLine()
    # The supervisor and its workers connect like other clients; nothing but the address ties them to the manager.
    settings = PoolSettings(
        address=resolve_address(connect),
        workers=workers,
        strategies=tuple(strategies or ()),
        max_memory_bytes=max_memory,
        nice=nice,
        log_level=log_level,
    )
    supervisor = Supervisor(settings, lambda status: line.show(_status_text(status)))
    with _stopped_by_signals(supervisor):
        supervisor.run()
    line.end()
    if problem := supervisor.status.problem:
        print_error(problem)
        return 1
    return 0


@contextmanager
def _stopped_by_signals(supervisor: Supervisor) -> Generator[None]:
    """Let SIGINT and SIGTERM stop the supervisor for the duration of the block, instead of ending the process.

    A SIGINT that the process inherited as ignored, as a shell script does with a job in the background, stays ignored.
    """

    def stop(_signal: int, _frame: object) -> None:
        supervisor.stop()

    stopping = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        stopping.append(signal.SIGINT)
    previous = {each: signal.signal(each, stop) for each in stopping}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _status_text(status: PoolStatus) -> str:
    """Return the state of the pool in one line."""
    return f"{status.ready} of {plural(status.wanted, 'worker')} ready, {status.restarts} restarted"
