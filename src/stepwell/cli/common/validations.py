"""The option `--validate`: validations as they are written in a shell.

`stepwell action create` declares them for all plans of the action, `stepwell plan new` adds some for one plan. A
command is split into words here and run without a shell, so that a path with a semicolon cannot start another program.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from stepwell.domain.plans.validations import Validation
from stepwell.errors import InvalidArgument


def name_value_pair(text: str) -> tuple[str, str]:
    """Return the parts of NAME=VALUE, for argparse. The value may contain further equals signs."""
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def add_validations(parser: argparse.ArgumentParser) -> None:
    """Add the option `--validate NAME=COMMAND`, which may be given several times."""
    parser.add_argument(
        "--validate",
        action="append",
        default=[],
        type=name_value_pair,
        metavar="NAME=COMMAND",
        help="a command that has to end with 0 in the tree that the plan is applied to, such as 'tests=pytest -q'; it "
        "is split as a shell would, and run without one; may be given several times",
    )


def validations_of(given: Sequence[tuple[str, str]]) -> list[Validation]:
    """Return the validations, each required and with the default time limit."""
    return [Validation(name, _split_command(command)) for name, command in given]


def _split_command(command: str) -> tuple[str, ...]:
    """Split a command into its words as a shell would. Raise `InvalidArgument` for an unclosed quote."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidArgument(f"the command {command!r} cannot be split into words: {error}") from None
