"""`stepwell serve`: run a manager in the foreground, with worker processes for strategies.

It prints the address, how to connect and, with a data directory, where the state is kept; then it serves until Ctrl-C
or SIGTERM. Both end it in order: requests that have arrived are answered first. Exit codes: 0, stopped; 2, wrong
arguments; 1, it could not start; 74, the data directory can no longer be written.

The budget options have no default. An option that is not given keeps the value that the data directory
has; only a new directory gets the default.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Final

from typer.models import OptionInfo

from stepwell import limits
from stepwell.cli.common.addresses import resolve_address
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.output import print_error, print_result
from stepwell.cli.common.parameters import choice, flag, option, whole_number
from stepwell.cli.common.state_directory import directory_path
from stepwell.cli.common.worker_options import Level, usable_cores, workers_option
from stepwell.client.session.tokens import ENCODINGS
from stepwell.domain.tiers.model import ENCODING
from stepwell.errors import InvalidArgument, StoreFailed
from stepwell.manager.process import STORE_FAILED, Settings
from stepwell.manager.process import serve as serve_until_stopped
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.settings import PoolSettings
from stepwell.storage.store import Durability
from stepwell.telemetry import LogLevel

app: Final = command_app()


_Durability = Annotated[
    Durability | None,
    choice(
        "--durability",
        values=[Durability.DISK, Durability.PROCESS],
        about="what an acknowledged write in the data directory survives: a loss of power, or the death of every "
        "process (default: disk)",
    ),
]
_Encoding = Annotated[
    str | None,
    choice(
        "--encoding",
        values=ENCODINGS,
        about=f"vocabulary in which tokens are counted; a data directory keeps its first one (default: {ENCODING})",
    ),
]


def _budget_option(name: str, about: str, first: int) -> OptionInfo:
    """Return an option for a part of the budget, with the value that a new manager has."""
    return option(name, metavar="N", parse=whole_number, about=f"{about} (a new manager has {first})")


@app.command(cls=ShellCommand)
def run(
    *,
    address: Annotated[
        str | None,
        option(
            "--address",
            metavar="SOCKET",
            about="path of the socket to listen at, in a directory that only you can enter (default: "
            "STEPWELL_ADDRESS, or this user's own)",
        ),
    ] = None,
    workers: Annotated[
        int, workers_option("processes that run strategies, one for each core unless it is given; 0 is none", least=0)
    ] = usable_cores(),
    data_dir: Annotated[
        Path | None,
        option(
            "--data-dir",
            metavar="DIR",
            parse=directory_path,
            about="keep the state there, across managers (default: in memory alone)",
        ),
    ] = None,
    durability: _Durability = None,
    hot_tokens: Annotated[
        int | None, _budget_option("--hot-tokens", "tokens in the hot tier", limits.HOT_TOKENS)
    ] = None,
    warm_entries: Annotated[
        int | None, _budget_option("--warm-entries", "fragments in the warm tier", limits.WARM_ENTRIES)
    ] = None,
    cold_entries: Annotated[
        int | None, _budget_option("--cold-entries", "fragments in the cold tier", limits.COLD_ENTRIES)
    ] = None,
    arena_bytes: Annotated[
        int | None, _budget_option("--arena-bytes", "bytes of shared memory", limits.ARENA_BYTES)
    ] = None,
    encoding: _Encoding = None,
    no_read_index: Annotated[
        bool, flag("--no-read-index", "let clients send a request for every read, to save the memory of the index")
    ] = False,
    log_level: Level = LogLevel.INFO,
    json_logs: Annotated[bool, flag("--json-logs", "one JSON object a line instead of words")] = False,
) -> int:
    """It serves until Ctrl-C or SIGTERM, with workers that run strategies.

    The options --hot-tokens, --warm-entries, --cold-entries and --arena-bytes are the budget. One that is not given
    keeps the value that the data directory has.
    """
    if durability is not None and data_dir is None:
        raise InvalidArgument("--durability is that of a data directory: give --data-dir DIR too, or leave it out")
    budget = {
        "hot_tokens": hot_tokens,
        "warm_entries": warm_entries,
        "cold_entries": cold_entries,
        "arena_bytes": arena_bytes,
    }
    settings = Settings(
        address=resolve_address(address),
        budget=None,
        # Only options that were given become changes of the stored budget.
        budget_changes={name: value for name, value in budget.items() if value is not None},
        encoding=encoding,
        data_dir=str(data_dir) if data_dir is not None else None,
        # The option has no default, so that `--durability` without a data directory can be refused above.
        durability=durability or Durability.DISK,
        read_index=not no_read_index,
        log_level=log_level,
        log_json=json_logs,
    )
    return _serve(settings, PoolSettings(address=settings.address, workers=workers, log_level=log_level))


def _serve(settings: Settings, pool: PoolSettings) -> int:
    """Serve until the process is stopped. The workers start when the socket listens and end with the manager."""
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
