"""The option `--validate`: validations as they are written in a shell.

`stepwell action create` declares them for all plans of the action, `stepwell plan new` adds some for one plan. A
command is split into words here and run without a shell, so that a path with a semicolon cannot start another program.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Annotated

from stepwell.cli.common.parameters import NameValue, name_value, option
from stepwell.domain.plans.validations import Validation
from stepwell.errors import InvalidArgument

Validate = Annotated[
    list[NameValue] | None,
    option(
        "--validate",
        metavar="NAME=COMMAND",
        parse=name_value,
        about="a command that has to end with 0 in the tree that the plan is applied to, such as 'tests=pytest -q'; it "
        "is split as a shell would, and run without one; may be given several times",
    ),
]


def validations_of(given: Sequence[NameValue] | None) -> list[Validation]:
    """Return the validations, each required and with the default time limit."""
    return [Validation(name, _split_command(command)) for name, command in given or ()]


def _split_command(command: str) -> tuple[str, ...]:
    """Split a command into its words as a shell would. Raise `InvalidArgument` for an unclosed quote."""
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InvalidArgument(f"the command {command!r} cannot be split into words: {error}") from None
