"""A request that exists is valid."""

from collections.abc import Callable

import pytest

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.strategies.base import ContextRequest

make: Callable[..., ContextRequest] = ContextRequest
"""As a caller does who has no type checker."""


def test_lists_are_taken_for_tuples() -> None:
    request = make(projects=["p"], kinds=iter(["code"]), focus=["a.py"])
    assert request == ContextRequest(projects=("p",), kinds=("code",), focus=("a.py",))
    assert {request: 1}


@pytest.mark.parametrize(
    "field, value, advice",
    [
        ("projects", (), "give 1 to 64 projects"),
        ("projects", ("p",) * 65, "give 1 to 64 projects"),
        ("projects", ("not a name",), "projects is malformed: give 1 to 64 projects, each of"),
        ("projects", "p", r"projects is a sequence: give \['p'\]"),
        ("projects", 5, "projects was refused"),
        ("query", "x" * (limits.TEXT_CHARS_MAX + 1), "give at most 64000 characters"),
        ("query", None, "query"),
        ("focus", ("a",) * (limits.PAGE_ROWS_MAX + 1), "at most 1000 ids or sources"),
        ("focus", ("x" * 5_000,), "each of at most 4096 characters"),
        ("kinds", ("a",) * (limits.PAGE_ROWS_MAX + 1), "at most 1000 kinds"),
        ("kinds", ("not a kind",), "kinds is malformed: .* each of 1 to 64 letters"),
        ("breadth", -1, "a breadth is a whole number from 0 to 1000"),
        ("depth", 65, "a depth is a whole number from 0 to 64"),
        ("budget_tokens", 0, "a budget is at least one token"),
        ("strategies", ("a",) * (limits.STRATEGIES_MAX + 1), "at most 256 names"),
        ("strategies", ("Not A Name",), "each of lower case letters"),
        ("as_of_ms", -1, "a moment is in milliseconds since 1970"),
        ("as_of_ms", "now", "as_of_ms was refused"),
    ],
)
def test_bounds(field: str, value: object, advice: str) -> None:
    """Every field has its bound, and whoever exceeds it is told which."""
    given: dict[str, object] = {"projects": ("p",), field: value}
    with pytest.raises(InvalidArgument, match=advice):
        make(**given)
