"""The frame of commands with subcommands, such as `stepwell plan apply`.

A `Subcommand` is data: its summary, its options, the function that runs it and what `--help` says of its JSON keys and
exit codes. All subcommands get the same options for the manager and for `--json`, and fail in the same way: one line on
stderr (for a conflict one more for each path), with `--json` also an object on stdout, and an exit code by the kind of
error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from stepwell.cli.common.addresses import add_address
from stepwell.cli.common.exit_codes import CONFLICTING, FAILED, MISUSED
from stepwell.cli.common.output import print_error, print_json
from stepwell.errors import Conflict, InvalidArgument, MergeConflicts, StepwellError
from stepwell.terminal import escape_line

EXIT_CODES: Final = (
    "exit codes: 0, done; 1, refused or failed, and stderr says why; 2, asked for wrongly; 3, a conflict: files or "
    "changes are not what the plan expects, each is listed on stderr, and was left as it is; 4, constrained: a "
    "required validation failed, and the files are as they were; 130, interrupted."
)
"""The exit codes as `--help` explains them."""
JSON_HELP: Final = "one JSON object, for machines"


class Subcommand(NamedTuple):
    """One subcommand, as `stepwell COMMAND SUBCOMMAND` names it.

    `json_keys` describes the object that `--json` prints. `detail` is added to the summary in the subcommand's own
    help.
    """

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    json_keys: str
    exit_codes: str = EXIT_CODES
    detail: str = ""


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Mapping[str, Subcommand]) -> None:
    """Add the subcommands to a command's parser, each with the options that all of them have."""
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
    """Run the subcommand that was parsed and return its exit code. An expected error is reported, not raised."""
    try:
        code: int = arguments.subcommand(arguments)
    except StepwellError as error:
        report_error(error, as_json=arguments.json)
        return _exit_code(error)
    return code


def report_error(error: StepwellError, *, as_json: bool) -> None:
    """Print the error's message to stderr, with a line for each path of a conflict.

    With `as_json` an object with the key `error` (`kind`, `message`, `details`) also goes to stdout.
    """
    if as_json:
        print_json({"error": {"kind": error.kind, "message": error.message, "details": error.details}})
    print_error(error.message)
    for line in _conflict_lines(error):
        print_error(line)


def _conflict_lines(error: StepwellError) -> list[str]:
    """Return a line for each path of a conflict, with the expected and the found content if the error has them."""
    paths, expected, found = (error.details.get(key) for key in ("paths", "expected", "found"))
    if not isinstance(paths, list) or not isinstance(error, Conflict | MergeConflicts):
        return []
    if not isinstance(expected, list) or not isinstance(found, list):
        return [f"  {escape_line(path)}" for path in paths]
    return [
        f"  {escape_line(path)}: expected {wanted}, found {actual}"
        for path, wanted, actual in zip(paths, expected, found, strict=False)
    ]


def _exit_code(error: StepwellError) -> int:
    """Return the exit code of an error: a conflict has its own code, because scripts resolve it and try again."""
    match error:
        case InvalidArgument():
            return MISUSED
        case Conflict() | MergeConflicts():
            return CONFLICTING
        case _:
            return FAILED
