"""Validations that exist are sound, and their results speak of what was declared."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from stepwell import limits
from stepwell.domain.plans.validations import Validation, ValidationResult, check_results, join_validations, not_passed
from stepwell.errors import InvalidArgument

TESTS = Validation("tests", ("pytest", "-q"))
LINT = Validation("lint", ("ruff", "check"), 5, required=False)


def result(of: Validation, exit_code: int | None = 0, *, timed_out: bool = False) -> ValidationResult:
    return ValidationResult.of(of, exit_code, 17, b"said so", timed_out=timed_out)


UNSOUND: dict[str, tuple[Callable[[], Validation], str]] = {
    "name": (lambda: Validation("a b", ("x",)), "^name is malformed: give 1 to 64 letters"),
    "no command": (lambda: Validation("a", ()), "^command was refused .*: a command is a tuple of 1 to 64 texts"),
    "long command": (lambda: Validation("a", ("x",) * 65), "^command was refused"),
    "NUL": (lambda: Validation("a", ("x\0",)), "^command is malformed: a command is a tuple"),
    "long argument": (lambda: Validation("a", ("x" * 4_097,)), "^command was refused"),
    "no program": (lambda: Validation("a", ("", "x")), "begins with the name of a program"),
    "no time": (lambda: Validation("a", ("x",), 0), "^timeout_s is 0: give seconds, more than 0, at most 86400"),
    "for ever": (lambda: Validation("a", ("x",), math.inf), "^timeout_s is inf"),
    "no number": (lambda: Validation("a", ("x",), math.nan), "^timeout_s is nan"),
    "too long": (lambda: Validation("a", ("x",), limits.VALIDATION_SECONDS_MAX + 1), "^timeout_s is 86401"),
}


@pytest.mark.parametrize("make, message", UNSOUND.values(), ids=UNSOUND)
def test_unsound(make: Callable[[], Validation], message: str) -> None:
    """Each is refused when it is made, with what to give."""
    with pytest.raises(InvalidArgument, match=message):
        make()


def test_passed() -> None:
    """By ending with 0, in time."""
    assert result(TESTS).passed
    assert not any(each.passed for each in (result(TESTS, 1), result(TESTS, None), result(TESTS, 0, timed_out=True)))


def test_output_is_kept_from_its_end() -> None:
    """As text, whatever it was, and no more than has room."""
    made = ValidationResult.of(TESTS, 1, 5, b"x" * 9_000 + b"\xffend")
    assert (len(made.output), made.output[-5:]) == (limits.VALIDATION_OUTPUT_CHARS_MAX, "x\ufffdend")


def test_joined() -> None:
    """The action's before the plan's, each under a name of its own."""
    assert join_validations((TESTS,), (LINT,)) == (TESTS, LINT)
    with pytest.raises(InvalidArgument, match="two validations are called 'tests'"):
        join_validations((TESTS,), (LINT, Validation("tests", ("true",))))


def test_results_are_of_what_was_declared() -> None:
    """Another command under the same name proves nothing, and two results contradict each other."""
    check_results((TESTS, LINT), (result(LINT),))
    with pytest.raises(InvalidArgument, match="no validation 'tests' with that command; it has tests, lint"):
        check_results((TESTS, LINT), (result(Validation("tests", ("true",))),))
    with pytest.raises(InvalidArgument, match=r"no validation 'lint' .* it has none"):
        check_results((), (result(LINT),))
    with pytest.raises(InvalidArgument, match="has two results"):
        check_results((TESTS,), (result(TESTS, 1), result(TESTS)))


def test_missing() -> None:
    """Required ones that have not passed; what is not required is never missing."""
    assert not_passed((TESTS, LINT), ()) == ["tests"]
    assert not_passed((TESTS, LINT), (result(TESTS, 1), result(LINT, 1))) == ["tests"]
    assert not_passed((TESTS, LINT), (result(TESTS), result(LINT, 1))) == []
