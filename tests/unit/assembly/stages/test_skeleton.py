"""Skeleton: what was decided above a plan, and what its parent has seen, small enough to be carried along."""

from stepwell.assembly.stages.skeleton import SHARE, decisions_first, none
from stepwell.strategies.protocol import DecisionSeen, PlanSeen
from tests.support.assembly import answer, count, meeting, request, result

DECISIONS = (
    DecisionSeen("d1", "parent", "Which store?", "SQLite.", "It is compiled in.", 1),
    DecisionSeen("d2", "own", "Which lock?", "None.", "", 0),
)
PLAN = PlanSeen("own", "execute", DECISIONS, "a.py:\n- 1-2 def f(): ...")


def test_decisions_then_what_the_parent_has_seen() -> None:
    """The plan's own first."""
    assert decisions_first(PLAN, 1_000, count).splitlines() == [
        "### Plan",
        "- Which lock? None.",
        "- Which store? SQLite. (It is compiled in.)",
        "a.py:",
        "- 1-2 def f(): ...",
    ]


def test_as_much_as_fits() -> None:
    """Of what does not fit nothing is said, not even that there is a plan."""
    assert decisions_first(PLAN, 12, count) == "### Plan\n- Which lock? None."
    assert decisions_first(PLAN, 5, count) == ""
    assert decisions_first(PlanSeen("own", "execute"), 1_000, count) == ""
    assert none(PLAN, 1_000, count) == ""


def test_in_an_answer() -> None:
    """It takes its share of the budget and no more."""
    many = tuple(DecisionSeen(f"d{number}", "own", f"Question {number}?", "Yes.", "", 0) for number in range(100))
    asked = request("number", budget_tokens=400, plan=PlanSeen("own", "execute", many))
    found = answer(meeting(60).view(), result("keyword", {"t1": 1.0}), asked=asked)
    plan, _, rest = found.text.partition("\n\n### s\n")
    assert "- Question 0? Yes." in plan
    assert count(plan) <= SHARE * 400 + 20
    assert rest
    assert answer(meeting().view(), asked=request(plan=PLAN)).text.startswith("### Plan\n")
