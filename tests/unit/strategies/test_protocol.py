"""A request that exists is valid."""

from collections.abc import Callable

import msgspec
import pytest

from stepwell import limits
from stepwell.errors import InvalidArgument
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, PlanSeen

make: Callable[..., ContextRequest] = ContextRequest
make_plan: Callable[..., PlanSeen] = PlanSeen
"""As a caller does who has no type checker."""


def decision(number: int, depth: int = 0, text: str = "") -> DecisionSeen:
    return DecisionSeen(f"D{number}", "P", "which?", "this", text, depth)


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
        ("plan", "a plan", "plan is a PlanSeen, not a str"),
        ("stop_score", -0.1, "a stop score is a part of the best score, from 0"),
        ("stop_score", 1.1, "to 1"),
        ("stop_score", float("nan"), "stop_score"),
    ],
)
def test_bounds(field: str, value: object, advice: str) -> None:
    """Every field has its bound, and whoever exceeds it is told which."""
    given: dict[str, object] = {"projects": ("p",), field: value}
    with pytest.raises(InvalidArgument, match=advice):
        make(**given)


def test_a_plan_travels_with_its_request() -> None:
    """What a worker decodes is what was asked."""
    request = make(projects=["p"], plan=make_plan("P", "execute", [decision(1, 2)], "what was seen"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=ContextRequest) == request


@pytest.mark.parametrize(
    "decisions, advice",
    [
        (["a text"], "decisions are DecisionSeen, not a str"),
        ([decision(1)] * (limits.DECISIONS_SEEN_MAX + 1), "at most 256 decisions"),
        ([decision(1, text="x" * 40_000)] * 2, "80024 characters, at most 64000 go with a request"),
    ],
)
def test_bounds_of_a_plan(decisions: list[object], advice: str) -> None:
    with pytest.raises(InvalidArgument, match=advice):
        make_plan("P", "execute", decisions)


def test_a_decision_is_near() -> None:
    with pytest.raises(InvalidArgument, match="up to 8"):
        decision(1, depth=9)


def test_the_nearest_decisions_go_along() -> None:
    """The nearest plan's first, of these the latest; what is too long leaves room for others; their order stays."""
    many = [decision(number, depth=number % 2) for number in range(2 * limits.DECISIONS_SEEN_MAX)]
    assert PlanSeen.bounded("P", "execute", many).decisions == tuple(each for each in many if each.depth == 0)
    wordy = [decision(0, text="x" * 40_000), decision(1, text="y" * 40_000), decision(2), decision(3, 1)]
    seen = PlanSeen.bounded("P", "execute", wordy, "z" * 100_000)
    assert [each.decision_id for each in seen.decisions] == ["D1", "D2", "D3"]
    assert len(seen.skeleton) == limits.TEXT_CHARS_MAX
