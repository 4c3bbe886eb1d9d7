"""Preamble: what came from where and what is missing, where there is room to say it."""

from stepwell.assembly.inputs import Failure
from stepwell.assembly.stages.preamble import AnswerSummary, brief, room_tokens
from stepwell.strategies.protocol import DecisionSeen, PlanSeen
from tests.support.assembly import answer, meeting, request, result
from tests.support.measurement import untraced

BROKEN = Failure("graph", "TaskFailed", "strategy 'graph' raised")
SCORES = {f"t{number}": 1.0 for number in range(12)}


def test_what_came_from_where() -> None:
    found = answer(meeting().view(), result("keyword", SCORES), asked=request("number", budget_tokens=800))
    assert found.text.startswith("> 12 of 12 fragments: keyword 12.\n\n### s\n")


def test_neighbours_are_told() -> None:
    found = answer(meeting().view(), result("keyword", {"t3": 1.0}), asked=request("unheard", budget_tokens=800))
    assert found.text.startswith("> 12 of 12 fragments: keyword 1, their neighbours 11.\n\n")


def test_what_is_missing() -> None:
    """It is said where there is little room for more."""
    found = answer(meeting().view(), result("keyword", SCORES), asked=request(budget_tokens=800), failures=[BROKEN])
    assert "Missing: graph (TaskFailed)." in found.text
    small = answer(meeting().view(), result("keyword", SCORES), asked=request(budget_tokens=90), failures=[BROKEN])
    assert small.text.startswith("> Missing: graph.\n\n")
    tiny = answer(meeting().view(), result("keyword", SCORES), asked=request(budget_tokens=30), failures=[BROKEN])
    assert tiny.text.startswith("### s\n")
    assert [each.strategy for each in tiny.failures] == ["graph"]


def test_shortened_ones_are_told() -> None:
    found = answer(
        meeting().view(), result("keyword", SCORES), asked=request(budget_tokens=800), components={"preamble": "silent"}
    )
    assert found.text.startswith("### s\n")
    (longest, *_) = brief(AnswerSummary(3, 2, 5, {"keyword": 3}, 0, ()))
    assert longest == "> 3 of 5 fragments, 2 of them shortened: keyword 3."


@untraced()
def test_a_larger_budget_has_more_room_for_fragments() -> None:
    """The room of the preamble grows by no more than the budget does, up to its longest text."""
    for has_failures in (False, True):
        rooms = [room_tokens(budget, [31, 9], has_failures=has_failures) for budget in range(1, 2_000)]
        left = [budget - max(0, room) for budget, room in enumerate(rooms, 1)]
        assert left == sorted(left)
        assert rooms[-1] == 31
    view = meeting(60).view()
    scores = result("keyword", {f"t{number}": 1.0 for number in range(60)})
    decisions = tuple(DecisionSeen(f"d{number}", "p1", "Which?", "This one, of all.", "") for number in range(9))
    for plan in (None, PlanSeen("p1", "execute", decisions)):
        asked = [request(budget_tokens=budget, plan=plan) for budget in range(150, 500)]
        shown = [len(answer(view, scores, asked=each).fragments) for each in asked]
        assert shown == sorted(shown)


def test_nothing_to_introduce() -> None:
    assert answer(meeting().view(), asked=request(budget_tokens=800)).text == ""
