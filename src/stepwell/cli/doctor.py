"""`stepwell doctor`: check a data directory without changing a byte of it, unless it is told to accept a loss.

It prints one line for each check, green if the check holds and red with the problems if it does not. The checks go from
the database file over rows and invariants to every stored body. Exit code 0 means healthy, 1 means that there are
problems. With `--json` it prints one object with all counts, problems and notes.

`--accept-loss` is the one option that changes something. Where acknowledged writes are lost, no manager starts, because
clients may have seen them. With this option the directory begins a new epoch, and a manager serves what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from rich.console import Console
from rich.text import Text

from stepwell import limits
from stepwell.cli.common.apps import ShellCommand, command_app
from stepwell.cli.common.console import result_console
from stepwell.cli.common.output import print_error, print_struct
from stepwell.cli.common.parameters import JsonFlag, flag
from stepwell.cli.common.state_directory import DataDir
from stepwell.client.session.tokens import counter
from stepwell.errors import InvalidArgument
from stepwell.manager.check.doctor import Check, CheckFindings, CheckReport, examine
from stepwell.storage import loss as storage_loss

_CLAIMS: Final = {
    Check.FILE: "the database is whole",
    Check.SCHEMA: "its version is known",
    Check.COMMITS: "no commit is lost",
    Check.ROWS: "every row is as it was written",
    Check.INVARIANTS: "all invariants hold",
    Check.BODIES: "every body is there, byte for byte",
    Check.TOKENS: "tokens add up",
    Check.SESSIONS: "replies and leases belong to a session",
    Check.EVENTS: "events are in order",
}
"""The statement that each check proves, printed if it holds."""


app: Final = command_app()


@app.command(cls=ShellCommand)
def run(
    *,
    data_dir: DataDir,
    json: JsonFlag = False,
    accept_loss: Annotated[
        bool,
        flag(
            "--accept-loss",
            "if acknowledged writes are lost, begin a new epoch without them, so that a manager starts again",
        ),
    ] = False,
) -> int:
    """Exit code 0 means healthy, 1 that there are problems. With --accept-loss the report is of the directory as it is
    afterwards.
    """
    report = examine(data_dir, _token_counter)
    if accept_loss:
        if Check.COMMITS in report.checks and report.checks[Check.COMMITS].count:
            epoch = storage_loss.accept_loss(data_dir)
            print_error(f"the loss is accepted: {f'epoch {epoch} begins' if epoch else 'the next manager begins anew'}")
            report = examine(data_dir, _token_counter)
        else:
            print_error("there is no loss of commits to accept: nothing was changed")
    if json:
        print_struct(_json_object(report))
    else:
        _print(report, result_console())
    return 0 if report.is_healthy else 1


def _token_counter(encoding: str) -> Callable[[bytes], int] | None:
    """Return the function that counts tokens in an encoding, or None if this machine does not have the encoding.

    The counts cannot be checked then, which the report notes. An estimate would report problems that do not exist.
    """
    try:
        found = counter(encoding)
    except InvalidArgument:
        return None
    return found.count if found.encoding == encoding else None


def _json_object(report: CheckReport) -> dict[str, object]:
    """Return the object for `--json`."""
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
    """Print the report: the directory, its revision, its sizes, and then a line for each check."""
    _row(console, "directory", [report.directory])
    if report.revision is not None:
        _row(console, "revision", [f"{report.revision:,} of epoch {report.epoch}"])
    # The rows of tables, and no numbers of things: a file that was ingested has a row in `fragments`, too.
    if counts := [f"{table}: {count:,}" for table, count in report.counts.items() if count]:
        _row(console, "tables", [", ".join(counts)])
    console.print()
    # A terminal with another encoding than UTF-8 cannot print the tick.
    tick = "✓" if console.encoding.startswith("utf") else "ok:"
    for check, findings in report.checks.items():
        if findings.count:
            _row(console, check, _lines(findings), style="red")
        else:
            _row(console, check, [f"{tick} {_CLAIMS[check]}"], style="green")
    for note in report.notes:
        console.print(Text(f"note: {note}"))


def _row(console: Console, heading: str, lines: list[str], style: str = "") -> None:
    """Print lines under a heading, without a table: a table would fold a long path that a user wants to search for."""
    for line in lines:
        console.print(Text.assemble((f"{heading:<12}", "bold"), (line, style)))
        heading = ""


def _lines(findings: CheckFindings) -> list[str]:
    """Return the first problems of a check, and how many more there are."""
    lines = findings.listed[: limits.DOCTOR_PROBLEMS_SHOWN]
    if findings.count > len(lines):
        lines.append(f"and {findings.count - len(lines):,} more")
    return lines
