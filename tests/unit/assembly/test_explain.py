"""Explaining: why, and what is different."""

import pytest

import stepwell as sw
from stepwell.assembly.answer import Answer
from stepwell.assembly.explain import diff, why
from stepwell.assembly.inputs import Failure
from stepwell.domain.tiers.source_outline import Outline
from tests.support.assembly import answer, meeting, request, result, stored, turn
from tests.support.strategy_views import Store


def test_why_kept() -> None:
    found = answer(
        meeting().view(), result("keyword", {"t3": 7.5}), result("semantic", {"t3": 0.25}), asked=request("number")
    )
    told = why(found.receipt, "t3")
    assert told.startswith("t3 (p, s) is in the answer: it was among the best that fit.\n")
    assert "keyword: rank 1, score 7.5" in told
    assert "semantic: rank 1, score 0.25" in told
    assert "rank 1 of 12: relevance 1.000, hierarchy" in told
    assert "shown at depth full in" in told
    assert "no strategy has named it; it stands near t3" in why(found.receipt, "t4")


def test_why_not() -> None:
    """Cut, with what the last that was kept has; shortened; a copy; or never named."""
    store = meeting(40)
    long = "def f(): ...\n" * 500
    for name in ("copy", "original"):
        stored(store, name, long, kind="code", source=f"{name}.py", outline=Outline(lines=(1, 500)))
    scores = result("keyword", {"t3": 1.0, "t30": 0.1, "original": 0.9, "copy": 0.2})
    found = answer(
        store.view(),
        scores,
        asked=request("unheard", budget_tokens=60),
        failures=[Failure("graph", "TaskFailed", "")],
        components={"depth": "full"},
    )
    assert "t30 (p, s) is not in the answer: there was no room for it." in why(found.receipt, "t30")
    assert "the last that was kept has a score of" in why(found.receipt, "t30")
    assert "original (p, original.py:1-500) is not in the answer" in why(found.receipt, "original")
    assert "is not in the answer: it has the body of original in p." in why(found.receipt, "copy")
    with pytest.raises(sw.NotFound, match=r"no strategy has named it \(graph failed\)"):
        why(found.receipt, "nobody")


def test_why_in_two_projects() -> None:
    store = Store()
    for project in ("p", "q"):
        stored(store, "a", f"body in {project}", project=project)
    found = answer(
        store.view("p", "q"),
        result("one", {"a": 1.0}),
        result("two", {"a": 1.0}, project="q"),
        asked=request(projects=["p", "q"]),
    )
    assert why(found.receipt, "a").count("is in the answer") == 2
    assert why(found.receipt, "a", "q").startswith("a (q, s)")


def changes(before: Answer, after: Answer) -> dict[str, str]:
    return {each.fragment_id: each.change for each in diff(before.receipt, after.receipt).differences}


def shown(store: Store, scores: dict[str, float], order: str = "worth") -> Answer:
    return answer(
        store.view(), result("mine", scores), asked=request(""), components={"order": order, "expand": "alone"}
    )


def test_came_and_went() -> None:
    """Each with the reason."""
    store = meeting()
    before, after = shown(store, {"t1": 1.0, "t2": 0.5}), shown(store, {"t1": 1.0, "t3": 0.5})
    found = diff(before.receipt, after.receipt)
    assert [(each.fragment_id, each.change) for each in found.differences] == [("t3", "came"), ("t2", "went")]
    assert found.differences[0].reason == "at revision 12, no strategy has named it"
    assert found.unchanged == 1
    assert str(found).endswith(f"1 unchanged; {before.total_tokens} tokens before, {after.total_tokens} after")


def test_moved() -> None:
    """As few as can be said to have moved."""
    store = meeting()
    for number in range(12):
        stored(store, f"t{number}", f"about {number}", outline=turn(number), at_ms=1)
    names = ["t1", "t2", "t3", "t4", "t5"]
    before = shown(store, {name: 1 - number / 10 for number, name in enumerate(names)})
    after = shown(store, {name: 1 - number / 10 for number, name in enumerate(["t5", *names[:4]])})
    assert changes(before, after) == {"t5": "moved"}
    assert changes(before, before) == {}


def test_changed_and_deepened() -> None:
    store = meeting()
    stored(store, "f", "def f(): ...\n" * 200, kind="code", source="f.py", outline=Outline(name="f", lines=(1, 200)))
    small = answer(store.view(), result("mine", {"f": 1.0}))
    large = answer(store.view(), result("mine", {"f": 1.0}), asked=request(budget_tokens=5_000))
    assert changes(small, large) == {"f": "deepened"}
    assert changes(large, small) == {"f": "shortened"}
    stored(store, "f", "def g(): ...\n" * 200, kind="code", source="f.py", outline=Outline(name="f", lines=(1, 200)))
    assert changes(large, answer(store.view(), result("mine", {"f": 1.0}), asked=request(budget_tokens=5_000))) == {
        "f": "changed"
    }
