"""`stepwell serve`: run a manager in the foreground, with worker processes for strategies.

It prints the address, how to connect and, with a data directory, where the state is kept; then it serves until Ctrl-C
or SIGTERM. Both end it in order: requests that have arrived are answered first. Exit codes: 0, stopped; 2, wrong
arguments; 1, it could not start; 74, the data directory can no longer be written.

The budget options have no default in the parser. An option that is not given keeps the value that the data directory
has; only a new directory gets the default.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Final

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.output import print_error, print_result
from stepwell.cli.common.state_directory import directory_path
from stepwell.cli.workers import usable_cores, worker_count
from stepwell.client.session.tokens import ENCODINGS
from stepwell.errors import InvalidArgument, StoreFailed
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.manager.process import serve as serve_until_stopped
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.settings import PoolSettings
from stepwell.protocol.messages import ENCODING
from stepwell.storage.store import Durability
from stepwell.telemetry import LogLevel

SUMMARY: Final = "Run a manager in the foreground"

_BUDGET: Final = {
    "hot_tokens": limits.HOT_TOKENS,
    "warm_entries": limits.WARM_ENTRIES,
    "cold_entries": limits.COLD_ENTRIES,
    "arena_bytes": limits.ARENA_BYTES,
}
"""The fields of the budget that have an option each, with the values of a new manager."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options. `--workers 0` is allowed here, for a manager that only stores; `stepwell workers` needs at least
    one.
    """
    parser.add_argument(
        "--address", metavar="SOCKET", help="path of the socket to listen at, in a directory that only you can enter"
    )
    parser.add_argument(
        "--workers",
        type=lambda text: 0 if text == "0" else worker_count(text),
        metavar="N",
        default=usable_cores(),
        help="processes that run strategies; 0 is none (default: %(default)s, one for each core)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=directory_path,
        help="keep the state there, across managers (default: in memory alone)",
    )
    parser.add_argument(
        "--durability",
        choices=[Durability.DISK.value, Durability.PROCESS.value],
        help="what an acknowledged write in the data directory survives: a loss of power, or the death of every "
        "process (default: disk)",
    )
    budget = parser.add_argument_group("budget", "An option that is not given keeps the value in the data directory.")
    for name, default in _BUDGET.items():
        budget.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"at first: {default}")
    parser.add_argument(
        "--encoding",
        choices=ENCODINGS,
        help=f"vocabulary in which tokens are counted; a data directory keeps its first one (default: {ENCODING})",
    )
    parser.add_argument(
        "--log-level",
        choices=[*LogLevel],
        default=LogLevel.INFO,
        help="lowest level of events that are logged (default: %(default)s)",
    )
    parser.add_argument("--json-logs", action="store_true", help="one JSON object a line instead of words")


def run(arguments: argparse.Namespace) -> int:
    """Serve until the process is stopped. The workers start when the socket listens and end with the manager."""
    if arguments.durability is not None and arguments.data_dir is None:
        raise InvalidArgument("--durability is that of a data directory: give --data-dir DIR too, or leave it out")
    # Only options that were given become changes of the stored budget.
    given = {name: getattr(arguments, name) for name in _BUDGET}
    settings = Settings(
        address=resolve_address(arguments.address),
        budget=None,
        budget_changes={name: value for name, value in given.items() if value is not None},
        encoding=arguments.encoding,
        data_dir=str(arguments.data_dir) if arguments.data_dir is not None else None,
        # The parser has no default, so that `--durability` without a data directory can be refused above.
        durability=Durability(arguments.durability or Durability.DISK),
        log_level=LogLevel(arguments.log_level),
        log_json=arguments.json_logs,
    )
    pool = PoolSettings(address=settings.address, workers=arguments.workers, log_level=settings.log_level)
    with contextlib.ExitStack() as stack:

        def on_ready() -> None:
            _announce(settings)
            # The workers are clients. They connect once the loop runs, so this must not wait for them.
            if pool.workers:
                stack.callback(BackgroundPool(pool, is_awaited=False).close)

        try:
            serve_until_stopped(settings, on_ready)
        except StoreFailed as error:
            print_error(error.message)
            return STORE_FAILED
    return 0


def _announce(settings: Settings) -> None:
    """Print the address, and where the state is kept.

    These lines are printed when the socket listens, not before: a script may wait for the first one and then connect.
    """
    print_result(f"listening at {settings.address}")
    print_result(f"connect with stepwell.connect({settings.address!r}); stop with Ctrl-C")
    if settings.data_dir is not None:
        print_result(f"keeping everything in {settings.data_dir}")
