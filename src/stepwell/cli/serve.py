"""`stepwell serve`: a manager in the foreground."""

from __future__ import annotations

import argparse
import contextlib
from typing import Final

from stepwell import limits
from stepwell.cli.addresses import resolve
from stepwell.cli.directories import directory
from stepwell.cli.output import complain, say
from stepwell.cli.workers import cores, count
from stepwell.client.tokens import ENCODINGS
from stepwell.errors import InvalidArgument, StoreFailed
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.manager.process import serve as serve_until_stopped
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.settings import PoolSettings
from stepwell.protocol.messages import ENCODING
from stepwell.storage.port import Durability
from stepwell.telemetry import LogLevel

SUMMARY: Final = "Run a manager in the foreground"

_BUDGET: Final = {
    "hot_tokens": limits.HOT_TOKENS,
    "warm_entries": limits.WARM_ENTRIES,
    "cold_entries": limits.COLD_ENTRIES,
    "arena_bytes": limits.ARENA_BYTES,
}
"""The fields of the budget that have a flag each, and what they are where nobody has ever said."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="SOCKET", help="path of the socket to listen at, in a directory that only you can enter"
    )
    parser.add_argument(
        "--workers",
        type=lambda text: 0 if text == "0" else count(text),
        metavar="N",
        default=cores(),
        help="processes that run strategies; 0 is none (default: %(default)s, one for each core)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        type=directory,
        help="keep the state there, across managers (default: in memory alone)",
    )
    parser.add_argument(
        "--durability",
        choices=[Durability.DISK.value, Durability.PROCESS.value],
        help="what an acknowledged write in the data directory survives: a loss of power, or the death of every "
        "process (default: disk)",
    )
    budget = parser.add_argument_group("budget", "What is left out is as it is kept in the data directory.")
    for name, default in _BUDGET.items():
        budget.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=f"at first: {default}")
    parser.add_argument(
        "--encoding",
        choices=ENCODINGS,
        help=f"of tokens; a data directory keeps the one that it began with (at first: {ENCODING})",
    )
    parser.add_argument(
        "--log-level", choices=[*LogLevel], default=LogLevel.INFO, help="what is worth a line (default: %(default)s)"
    )
    parser.add_argument("--json-logs", action="store_true", help="one JSON object a line instead of words")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and answer first what has arrived by then."""
    if arguments.durability is not None and arguments.data_dir is None:
        raise InvalidArgument("--durability is that of a data directory: give --data-dir DIR too, or leave it out")
    given = {name: getattr(arguments, name) for name in _BUDGET}
    settings = Settings(
        address=resolve(arguments.address),
        budget=None,
        budget_changes={name: value for name, value in given.items() if value is not None},
        encoding=arguments.encoding,
        data_dir=str(arguments.data_dir) if arguments.data_dir is not None else None,
        durability=Durability(arguments.durability or Durability.DISK),
        log_level=LogLevel(arguments.log_level),
        log_json=arguments.json_logs,
    )
    pool = PoolSettings(address=settings.address, workers=arguments.workers, log_level=settings.log_level)
    with contextlib.ExitStack() as stack:

        def ready() -> None:
            _announce(settings)
            if pool.workers:  # they connect like everybody else, once the loop turns
                stack.callback(BackgroundPool(pool, is_awaited=False).close)

        try:
            serve_until_stopped(settings, ready)
        except StoreFailed as error:
            complain(error.message)
            return STORE_FAILED
    return 0


def _announce(settings: Settings) -> None:
    say(f"listening at {settings.address}")
    say(f"connect with stepwell.connect({settings.address!r}); stop with Ctrl-C")
    if settings.data_dir is not None:
        say(f"keeping everything in {settings.data_dir}")
