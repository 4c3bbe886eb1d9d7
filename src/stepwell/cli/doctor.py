"""`stepwell doctor`: whether a data directory is as it should be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from stepwell.cli.common.output import result_console
from stepwell.cli.common.state_directory import add_data_dir
from stepwell.client.session.tokens import counter
from stepwell.errors import InvalidArgument
from stepwell.manager.check.doctor import Check, CheckFindings, CheckReport, examine

SUMMARY: Final = "Check a data directory without changing a byte of it"

_LINES_MAX: Final = 20  # of one check
_CLAIMS: Final = {
    Check.FILE: "the database is whole",
    Check.SCHEMA: "its version is known",
    Check.ROWS: "every row can be read",
    Check.INVARIANTS: "what is true of every state is true",
    Check.BODIES: "every body is there, byte for byte",
    Check.TOKENS: "tokens add up",
    Check.SESSIONS: "replies and leases belong to somebody",
    Check.EVENTS: "events are in order",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data_dir(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object, for machines")


def run(arguments: argparse.Namespace) -> int:
    """0, healthy; 1, there are problems."""
    report = examine(arguments.data_dir, _token_counter)
    if arguments.json:
        sys.stdout.write(f"{msgspec.json.encode(_json_object(report)).decode()}\n")
    else:
        _print(report, result_console())
    return 0 if report.is_healthy else 1


def _token_counter(encoding: str) -> Callable[[bytes], int] | None:
    try:
        found = counter(encoding)
    except InvalidArgument:
        return None
    return found.count if found.encoding == encoding else None


def _json_object(report: CheckReport) -> dict[str, object]:
    return {
        "directory": report.directory,
        "schema": report.schema,
        "epoch": report.epoch,
        "revision": report.revision,
        "counts": report.counts,
        "problems": report.problems,
        "notes": report.notes,
    }


def _print(report: CheckReport, console: Console) -> None:
    _row(console, "directory", [report.directory])
    if report.revision is not None:
        _row(console, "revision", [f"{report.revision:,} of epoch {report.epoch}"])
    if counts := [f"{count:,} {table}" for table, count in report.counts.items() if count]:
        _row(console, "holds", [", ".join(counts)])
    console.print()
    tick = "✓" if console.encoding.startswith("utf") else "ok:"
    for check, findings in report.checks.items():
        if findings.count:
            _row(console, check, _lines(findings), style="red")
        else:
            _row(console, check, [f"{tick} {_CLAIMS[check]}"], style="green")
    for note in report.notes:
        console.print(Text(f"note: {note}"))


def _row(console: Console, heading: str, lines: list[str], style: str = "") -> None:
    """Not a Table, which would fold what somebody wants to search for in a file."""
    for line in lines:
        console.print(Text.assemble((f"{heading:<12}", "bold"), (line, style)))
        heading = ""


def _lines(findings: CheckFindings) -> list[str]:
    lines = findings.listed[:_LINES_MAX]
    if findings.count > len(lines):
        lines.append(f"and {findings.count - len(lines):,} more")
    return lines
