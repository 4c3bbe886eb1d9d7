"""Validations: commands that have to succeed in the tree to which a plan is applied, and their results.

Validations are declared with the action or the plan. The client that applies the plan runs them, after it has changed
the tree, and their results are stored with the plan. The validations of a child are not run: its changes are applied
with its parent, whose validations see all changes together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from stepwell import limits
from stepwell.domain.bounded_types import Label
from stepwell.domain.checks import check, checked, require_instance
from stepwell.errors import InvalidArgument
from stepwell.text import brief_repr

CommandLine = Annotated[
    tuple[
        Annotated[
            str,
            Meta(
                max_length=limits.VALIDATION_ARGUMENT_CHARS_MAX,
                pattern=r"^[^\x00]*\Z",
                description="an argument of a command has at most 4096 characters, none of them NUL",
            ),
        ],
        ...,
    ],
    Meta(
        min_length=1,
        max_length=limits.VALIDATION_ARGUMENTS_MAX,
        description="a command is a tuple of 1 to 64 texts, the program first: ('pytest', '-q')",
    ),
]
"""The program and its arguments. It is run without a shell, so no argument is ever interpreted."""


@checked
class Validation(Struct, frozen=True):
    """A command that is run in the tree when a plan is applied. It passes if it exits with 0 within `timeout_s`.

    The result of a validation that is not required is stored, and does not stop the apply.
    """

    name: Label
    command: CommandLine
    timeout_s: float = limits.VALIDATION_SECONDS
    required: bool = True

    def __post_init__(self) -> None:
        """Check what the types cannot express: a finite, positive, bounded timeout and a program with a name."""
        require_instance(self.timeout_s, (int, float), "timeout_s is a number of seconds")
        check(self)
        if not (math.isfinite(self.timeout_s) and 0 < self.timeout_s <= limits.VALIDATION_SECONDS_MAX):
            raise InvalidArgument(
                f"timeout_s is {self.timeout_s}: give seconds, more than 0, at most {limits.VALIDATION_SECONDS_MAX:.0f}"
            )
        if not self.command[0]:
            raise InvalidArgument("a command begins with the name of a program: its first text is empty")


Output = Annotated[
    str,
    Meta(
        max_length=limits.VALIDATION_OUTPUT_CHARS_MAX,
        description="give the last 8000 characters of what the command wrote",
    ),
]
"""The end of a command's output. The end is kept, because commands report failures last."""


class ValidationResult(Struct, frozen=True, array_like=True):
    """The result of running a validation.

    `exit_code` is None if the command was killed or could not be started. `command` is the command that was run; it has
    to be the declared one, so that a result proves something about this plan.
    """

    name: Label
    command: CommandLine
    exit_code: int | None
    timed_out: bool
    duration_ms: Annotated[int, Meta(ge=0, description="a duration is a whole number of milliseconds")]
    output: Output = ""

    __repr__ = brief_repr

    @classmethod
    def of(
        cls, validation: Validation, exit_code: int | None, duration_ms: int, output: bytes, *, timed_out: bool = False
    ) -> ValidationResult:
        """Return the result of a validation, with its output decoded and cut to the last characters that are stored."""
        text = output.decode(errors="replace")[-limits.VALIDATION_OUTPUT_CHARS_MAX :]
        return cls(validation.name, validation.command, exit_code, timed_out, duration_ms, text)

    @property
    def passed(self) -> bool:
        """True if the command exited with 0 in time."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def summary(self) -> str:
        """The end of the command in a few words."""
        if self.timed_out:
            return f"stopped after {self.duration_ms / 1000:.1f} s"
        if self.exit_code is None:
            return "did not end by itself, or could not be started"
        return f"ended with {self.exit_code} after {self.duration_ms / 1000:.1f} s"


def join_validations(declared: tuple[Validation, ...], added: tuple[Validation, ...]) -> tuple[Validation, ...]:
    """Return an action's validations followed by a plan's own. Raise `InvalidArgument` if two have the same name."""
    validations = (*declared, *added)
    if not validations:  # as a rule
        return ()
    names = Counter(each.name for each in validations)
    if twice := sorted(name for name, times in names.items() if times > 1):
        raise InvalidArgument(f"two validations are called {twice[0]!r}: give each a name of its own")
    return validations


def check_results(declared: tuple[Validation, ...], results: tuple[ValidationResult, ...]) -> None:
    """Raise `InvalidArgument` if a result does not belong to a declared validation, or if a validation has two results.

    The commands are compared too: a result of another command under a known name proves nothing.
    """
    commands = {each.name: each.command for each in declared}
    for result in results:
        if commands.get(result.name) != result.command:
            raise InvalidArgument(
                f"the plan has no validation {result.name!r} with that command; it has {', '.join(commands) or 'none'}"
            )
    if len({each.name for each in results}) < len(results):
        raise InvalidArgument("a validation has two results: give the one that counts")


def not_passed(declared: tuple[Validation, ...], results: Iterable[ValidationResult]) -> list[str]:
    """Return the names of the required validations without a passed result, in declared order."""
    passed = {each.name for each in results if each.passed}
    return [each.name for each in declared if each.required and each.name not in passed]
