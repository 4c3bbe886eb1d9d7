"""Errors of the commands that have subcommands, such as `stepwell plan apply`: all of them are reported in one way.

An error is one line on stderr, for a conflict with one more for each path; with `--json` also an object on stdout. The
exit code is by the kind of error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

from stepwell.cli.common.exit_codes import CONFLICTING, FAILED, MISUSED
from stepwell.cli.common.output import print_detail, print_error, print_json
from stepwell.errors import Conflict, InvalidArgument, MergeConflicts, StepwellError
from stepwell.terminal import escape_line

EXIT_CODES: Final = (
    "exit codes: 0, done; 1, refused or failed, and stderr says why; 2, asked for wrongly; 3, a conflict: files or "
    "changes are not what the plan expects, each is listed on stderr, and was left as it is; 4, constrained: a "
    "required validation failed, and the files are as they were; 130, interrupted."
)
"""The exit codes as `--help` explains them."""

_P = ParamSpec("_P")


def reports_errors(run: Callable[_P, int]) -> Callable[_P, int]:
    """Return a command that reports an expected error and returns its exit code, instead of raising it."""

    @functools.wraps(run)
    def reporting(*arguments: _P.args, **options: _P.kwargs) -> int:
        try:
            return run(*arguments, **options)
        except StepwellError as error:
            report_error(error, as_json=bool(options.get("json")))
            return _exit_code(error)

    return reporting


def report_error(error: StepwellError, *, as_json: bool) -> None:
    """Print the error's message to stderr, with a line for each path of a conflict that it does not name, and a diff.

    With `as_json` an object with the key `error` (`kind`, `message`, `details`) also goes to stdout.
    """
    if as_json:
        print_json({"error": {"kind": error.kind, "message": error.message, "details": error.details}})
    print_error(error.message)
    for line in _conflict_lines(error):
        print_error(line)
    if diff := error.details.get("diff"):
        print_detail(str(diff))


def _conflict_lines(error: StepwellError) -> list[str]:
    """Return a line for each path of a conflict that the message does not name.

    It has the expected and the found content, if the error has them.
    """
    paths, expected, found = (error.details.get(key) for key in ("paths", "expected", "found"))
    if not isinstance(paths, list) or not isinstance(error, Conflict | MergeConflicts):
        return []
    unnamed = [number for number, path in enumerate(paths) if repr(path) not in error.message]
    if not isinstance(expected, list) or not isinstance(found, list):
        return [f"  {escape_line(paths[number])}" for number in unnamed]
    return [f"  {escape_line(paths[each])}: expected {expected[each]}, found {found[each]}" for each in unnamed]


def _exit_code(error: StepwellError) -> int:
    """Return the exit code of an error: a conflict has its own code, because scripts resolve it and try again."""
    match error:
        case InvalidArgument():
            return MISUSED
        case Conflict() | MergeConflicts():
            return CONFLICTING
        case _:
            return FAILED
