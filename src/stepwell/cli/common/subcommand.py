"""What each verb of a command such as `stepwell plan` is made of, and how it fails."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from stepwell.cli.common.addresses import add_address
from stepwell.cli.common.exit_codes import CONFLICTING, FAILED, MISUSED
from stepwell.cli.common.output import in_line, print_error, say_json
from stepwell.errors import Conflict, InvalidArgument, MergeConflicts, StepwellError

EXIT_CODES: Final = (
    "exit codes: 0, done; 1, refused or failed, and stderr says why; 2, asked for wrongly; 3, a conflict: files or "
    "changes are not what the plan expects, each is listed on stderr, and was left as it is; 4, constrained: a "
    "required validation failed, and the files are as they were; 130, interrupted."
)
JSON_HELP: Final = "one JSON object, for machines"


class Verb(NamedTuple):
    """What `stepwell COMMAND VERB` does."""

    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    json_keys: str  # of the object that --json gives
    exit_codes: str = EXIT_CODES
    detail: str = ""  # what else is to be known


def add_verbs(parser: argparse.ArgumentParser, verbs: Mapping[str, Verb]) -> None:
    """Every verb with what all have: which manager, and `--json`."""
    parser.epilog = EXIT_CODES
    adding = parser.add_subparsers(title="verbs", required=True, metavar="VERB")
    for name, verb in verbs.items():
        described = f"{verb.summary}. {verb.detail}".strip()
        verb_parser = adding.add_parser(name, help=verb.summary, description=described, epilog=verb.exit_codes)
        verb.add_arguments(verb_parser)
        add_address(verb_parser, "path of the manager's socket (default: this user's own)")
        verb_parser.add_argument("--json", action="store_true", help=f"{JSON_HELP}: {verb.json_keys}")
        verb_parser.set_defaults(verb=verb.run)


def run_verb(arguments: argparse.Namespace) -> int:
    """Do it, or say in a line why not; a conflict has a line for each path."""
    try:
        code: int = arguments.verb(arguments)
    except StepwellError as error:
        tell(error, as_json=arguments.json)
        return _code_of(error)
    return code


def tell(error: StepwellError, *, as_json: bool) -> None:
    """Say what went wrong; machines get an object with `error`: `kind`, `message` and `details`."""
    if as_json:
        say_json({"error": {"kind": error.kind, "message": error.message, "details": error.details}})
    print_error(error.message)
    for line in _lines(error):
        print_error(line)


def _lines(error: StepwellError) -> list[str]:
    """What is at each path of a conflict."""
    paths, expected, found = (error.details.get(key) for key in ("paths", "expected", "found"))
    if not isinstance(paths, list) or not isinstance(error, Conflict | MergeConflicts):
        return []
    if not isinstance(expected, list) or not isinstance(found, list):
        return [f"  {in_line(path)}" for path in paths]
    return [
        f"  {in_line(path)}: expected {wanted}, found {there}"
        for path, wanted, there in zip(paths, expected, found, strict=False)
    ]


def _code_of(error: StepwellError) -> int:
    match error:
        case InvalidArgument():
            return MISUSED
        case Conflict() | MergeConflicts():
            return CONFLICTING
        case _:
            return FAILED
