"""What each verb of a command such as `stepwell plan` is made of, and how it fails."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from stepwell.cli.common.addresses import add_address
from stepwell.cli.common.exit_codes import CONFLICTING, FAILED, MISUSED
from stepwell.cli.common.output import escape_line, print_error, print_json
from stepwell.errors import Conflict, InvalidArgument, MergeConflicts, StepwellError

EXIT_CODES: Final = (
    "exit codes: 0, done; 1, refused or failed, and stderr says why; 2, asked for wrongly; 3, a conflict: files or "
    "changes are not what the plan expects, each is listed on stderr, and was left as it is; 4, constrained: a "
    "required validation failed, and the files are as they were; 130, interrupted."
)
JSON_HELP: Final = "one JSON object, for machines"


class Subcommand(NamedTuple):
    """What `stepwell COMMAND VERB` does."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    json_keys: str  # of the object that --json gives
    exit_codes: str = EXIT_CODES
    detail: str = ""  # what else is to be known


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Mapping[str, Subcommand]) -> None:
    """Every verb with what all have: which manager, and `--json`."""
    parser.epilog = EXIT_CODES
    subparsers = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for name, subcommand in subcommands.items():
        described = f"{subcommand.summary}. {subcommand.detail}".strip()
        subparser = subparsers.add_parser(
            name, help=subcommand.summary, description=described, epilog=subcommand.exit_codes
        )
        subcommand.add_arguments(subparser)
        add_address(subparser, "path of the manager's socket (default: this user's own)")
        subparser.add_argument("--json", action="store_true", help=f"{JSON_HELP}: {subcommand.json_keys}")
        subparser.set_defaults(subcommand=subcommand.run)


def run_subcommand(arguments: argparse.Namespace) -> int:
    """Do it, or say in a line why not; a conflict has a line for each path."""
    try:
        code: int = arguments.subcommand(arguments)
    except StepwellError as error:
        report_error(error, as_json=arguments.json)
        return _exit_code(error)
    return code


def report_error(error: StepwellError, *, as_json: bool) -> None:
    """Say what went wrong; machines get an object with `error`: `kind`, `message` and `details`."""
    if as_json:
        print_json({"error": {"kind": error.kind, "message": error.message, "details": error.details}})
    print_error(error.message)
    for line in _conflict_lines(error):
        print_error(line)


def _conflict_lines(error: StepwellError) -> list[str]:
    """What is at each path of a conflict."""
    paths, expected, found = (error.details.get(key) for key in ("paths", "expected", "found"))
    if not isinstance(paths, list) or not isinstance(error, Conflict | MergeConflicts):
        return []
    if not isinstance(expected, list) or not isinstance(found, list):
        return [f"  {escape_line(path)}" for path in paths]
    return [
        f"  {escape_line(path)}: expected {wanted}, found {there}"
        for path, wanted, there in zip(paths, expected, found, strict=False)
    ]


def _exit_code(error: StepwellError) -> int:
    match error:
        case InvalidArgument():
            return MISUSED
        case Conflict() | MergeConflicts():
            return CONFLICTING
        case _:
            return FAILED
