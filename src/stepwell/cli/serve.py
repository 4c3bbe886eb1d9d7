"""`stepwell serve`: a manager in the foreground."""

from __future__ import annotations

import argparse
from typing import Final

from stepwell import limits
from stepwell.cli.addresses import add_address, resolve
from stepwell.cli.output import say
from stepwell.client.tokens import DEFAULT_ENCODING, ENCODINGS
from stepwell.domain.fragment import TierBudget
from stepwell.manager.process import Settings
from stepwell.manager.process import serve as serve_until_stopped
from stepwell.telemetry import LogLevel, configure

SUMMARY: Final = "Run a manager in the foreground"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_address(parser, "path of the socket to listen at, in a directory that only you can enter")
    parser.add_argument("--hot-tokens", type=int, default=limits.HOT_TOKENS, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--warm-entries", type=int, default=limits.WARM_ENTRIES, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--cold-entries", type=int, default=limits.COLD_ENTRIES, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--arena-bytes", type=int, default=limits.ARENA_BYTES, metavar="N", help="shared memory (default: %(default)s)"
    )
    parser.add_argument(
        "--encoding", choices=ENCODINGS, default=DEFAULT_ENCODING, help="of tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--log-level", choices=[*LogLevel], default=LogLevel.INFO, help="what is worth a line (default: %(default)s)"
    )
    parser.add_argument("--json-logs", action="store_true", help="one JSON object a line instead of words")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM, and answer first what has arrived by then."""
    settings = Settings(
        address=resolve(arguments.address),
        budget=TierBudget(
            hot_tokens=arguments.hot_tokens,
            warm_entries=arguments.warm_entries,
            cold_entries=arguments.cold_entries,
            arena_bytes=arguments.arena_bytes,
        ),
        encoding=arguments.encoding,
        log_level=LogLevel(arguments.log_level),
        log_json=arguments.json_logs,
    )
    configure(settings.log_level, as_json=settings.log_json)
    serve_until_stopped(settings, on_ready=lambda: _announce(settings.address))
    return 0


def _announce(address: str) -> None:
    say(f"listening at {address}")
    say(f"connect with stepwell.connect({address!r}); stop with Ctrl-C")
