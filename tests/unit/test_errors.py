"""The tree of errors: drawn as it is, and every one of them travels as itself."""

import pickle
import re

import pytest

import stepwell as sw
from stepwell import errors
from stepwell.errors import StepwellError, revive

KINDS = [*StepwellError.kinds.values()]


def test_tree_is_drawn_as_it_is() -> None:
    """The docstring names every error once, below its parent."""
    lines = re.findall(r"^    ([\u2502 ]*)[\u251c\u2514]\u2500\u2500 (\w+)", errors.__doc__ or "", re.MULTILINE)
    parents: list[str] = ["StepwellError"]
    drawn: dict[str, str] = {}
    for indent, name in lines:
        depth = len(indent) // 4 + 1
        drawn[name] = parents[depth - 1]
        parents[depth:] = [name]
    assert drawn == {kind.__name__: kind.__mro__[1].__name__ for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_is_itself_after_a_journey(kind: type[StepwellError]) -> None:
    """Pickled to another process, and revived from the wire: kind, message and details."""
    error = kind("what to do", plan_id="x", count=3)
    assert getattr(sw, kind.__name__) is kind
    for copy in (pickle.loads(pickle.dumps(error)), revive(error.kind, error.message, error.details)):  # noqa: S301
        assert (type(copy), copy.message, copy.details, str(copy)) == (kind, "what to do", error.details, "what to do")


def test_retry_says_whether_trying_again_can_help() -> None:
    """Only what may be gone by itself the next time."""
    assert {kind.__name__ for kind in KINDS if kind.retry} == {
        "Busy",
        "CircuitOpen",
        "Conflict",
        "PoolEmpty",
        "TreeInUse",
        "TreeQueued",
    }


def test_failed_validation_says_what_failed() -> None:
    """By attributes of a type that is known, also after a journey and without a result."""
    error = sw.ValidationFailed("no", command=["pytest", "-q"], exit_code=1, output="1 failed")
    for copy in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert (copy.command, copy.exit_code, copy.output) == (("pytest", "-q"), 1, "1 failed")
    assert (sw.ValidationFailed("no").command, sw.ValidationFailed("no").exit_code) == ((), None)
    assert sw.ValidationFailed("no").output == ""


def test_builtin_kin() -> None:
    """Who catches the builtin that fits catches ours."""
    assert issubclass(sw.InvalidArgument, ValueError)
    assert issubclass(sw.NotFound, LookupError)
