"""Validations: commands that a plan has to pass once its changes are in the tree, and what became of them.

They are declared with the action or the plan, run by whoever applies it, and their results are kept with the plan. A
child's are not run: what it changed is applied with its parent, whose validations see all of it.
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


@checked
class Validation(Struct, frozen=True):
    """A command that is run in the tree when a plan is applied; it passes by ending with 0, in time."""

    name: Label
    command: CommandLine
    timeout_s: float = limits.VALIDATION_SECONDS
    required: bool = True  # what is not required is run and kept, and stops nothing

    def __post_init__(self) -> None:
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


class ValidationResult(Struct, frozen=True, array_like=True):
    """What became of a validation. No `exit_code`: it did not end by itself, or could not be started."""

    name: Label
    command: CommandLine
    exit_code: int | None
    timed_out: bool
    duration_ms: Annotated[int, Meta(ge=0, description="a duration is a whole number of milliseconds")]
    output: Output = ""

    @classmethod
    def of(
        cls, validation: Validation, exit_code: int | None, duration_ms: int, output: bytes, *, timed_out: bool = False
    ) -> ValidationResult:
        """What became of a validation, with as much of the end of its output as is kept."""
        text = output.decode(errors="replace")[-limits.VALIDATION_OUTPUT_CHARS_MAX :]
        return cls(validation.name, validation.command, exit_code, timed_out, duration_ms, text)

    @property
    def passed(self) -> bool:
        """Whether it ended with 0, in time."""
        return self.exit_code == 0 and not self.timed_out


def join_validations(declared: tuple[Validation, ...], added: tuple[Validation, ...]) -> tuple[Validation, ...]:
    """An action's validations and then a plan's own, each under a name of its own."""
    validations = (*declared, *added)
    names = Counter(each.name for each in validations)
    if twice := sorted(name for name, times in names.items() if times > 1):
        raise InvalidArgument(f"two validations are called {twice[0]!r}: give each a name of its own")
    return validations


def check_results(declared: tuple[Validation, ...], results: tuple[ValidationResult, ...]) -> None:
    """Refuse results of what was not declared: another command under a known name proves nothing."""
    commands = {each.name: each.command for each in declared}
    for result in results:
        if commands.get(result.name) != result.command:
            raise InvalidArgument(
                f"the plan has no validation {result.name!r} with that command; it has {', '.join(commands) or 'none'}"
            )
    if len({each.name for each in results}) < len(results):
        raise InvalidArgument("a validation has two results: give the one that counts")


def not_passed(declared: tuple[Validation, ...], results: Iterable[ValidationResult]) -> list[str]:
    """The required validations that have not passed, in declared order."""
    passed = {each.name for each in results if each.passed}
    return [each.name for each in declared if each.required and each.name not in passed]
