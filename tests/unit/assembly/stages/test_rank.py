"""Rank: what every strategy ranks first, then matches, then their surroundings; and what is not shown at all."""

import pytest

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.stages.rank import BELOW_STOP, NO_MATCH
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.protocol import ContextRequest
from tests.support.assembly import answer, ids, meeting, request, result, stored
from tests.support.strategy_views import Store


def library(*names: str, kind: str = "code") -> Store:
    """Return a store with functions, each in a file of its own."""
    store = Store()
    for name in names:
        body = f"def {name}():\n    return {name}\n"
        stored(store, name, body, kind=kind, source=f"{name}.py", outline=Outline(name=name, lines=(1, 2), order=0))
    return store


def asked(query: str = "what", stop_score: float = limits.STOP_SCORE, budget_tokens: int = 800) -> ContextRequest:
    return ContextRequest(projects=["p"], query=query, stop_score=stop_score, budget_tokens=budget_tokens)


def reasons(found: Answer) -> dict[str, str]:
    return {entry.fragment_id: entry.reason for entry in found.receipt.entries if entry.decision == "cut"}


def test_first_of_all_strategies() -> None:
    """It is in the file that is shown first, although it is long and a test, and so has a lower score."""
    store = library("a", "b")
    body = "def test_it():\n" + "    assert it()\n" * 200
    stored(store, "test_it", body, kind="code", source="tests/test_it.py", outline=Outline(name="test_it", order=0))
    keyword = result("keyword", {"test_it": 1.0, "a": 0.99, "b": 0.98})
    semantic = result("semantic", {"test_it": 0.5, "b": 0.499, "a": 0.498})
    blind = result("recency", {"a": 1.0, "test_it": 0.9})
    found = answer(store.view(), keyword, semantic, blind, asked=asked(budget_tokens=4_000))
    assert found.fragments[0].fragment_id == "test_it"
    assert found.fragments[0].score < found.fragments[1].score
    assert found.receipt.entries[0].fragment_id == "test_it"
    divided = answer(store.view(), keyword, result("semantic", {"a": 0.5, "test_it": 0.49}), asked=asked())
    assert divided.fragments[0].fragment_id == "a"


def test_the_stop_score() -> None:
    """A match with less than half of the best score is left out, though there is room; 0 shows all, 1 only the best."""
    view = library("a", "b", "c", "d").view()
    scores = result("keyword", {"a": 20.0, "b": 19.0, "c": 1.0, "d": 0.9})
    found = answer(view, scores, asked=asked())
    assert ids(found) == ["a", "b"]
    assert reasons(found) == {"c": BELOW_STOP, "d": BELOW_STOP}
    assert ids(answer(view, scores, asked=asked(stop_score=0))) == ["a", "b", "c", "d"]
    assert ids(answer(view, scores, asked=asked(stop_score=1))) == ["a"]
    assert ids(answer(view, scores, asked=asked(), components={"rank": "score"})) == ["a", "b", "c", "d"]


def test_surroundings_come_after_matches() -> None:
    """Only if the budget is to be filled, and never before a match."""
    store = Store()
    for number in range(6):
        stored(store, f"f{number}", f"def f{number}(): ...", kind="code", source="a.py", outline=Outline(order=number))
    scores = result("keyword", {"f2": 1.0, "f3": 0.9})
    assert ids(answer(store.view(), scores, asked=asked("unheard"))) == ["f2", "f3"]
    filled = answer(store.view(), scores, asked=asked("unheard", stop_score=0))
    assert ids(filled) == [f"f{number}" for number in range(6)]
    assert [entry.fragment_id for entry in filled.receipt.entries][:2] == ["f2", "f3"]


def test_turns_do_not_stop() -> None:
    """The evidence of a conversation is spread over turns that score little."""
    scores = result("keyword", {"t3": 20.0, "t9": 0.1})
    assert len(answer(meeting().view(), scores, asked=asked("number")).fragments) == 12


@pytest.mark.parametrize("kind", ["code", "turn"])
def test_no_match(kind: str) -> None:
    """What only strategies name that ignore the question, or find something similar to every question, is none."""
    view = library("a", "b", kind=kind).view()
    others = result("recency", {"a": 1.0, "b": 0.5}), result("semantic", {"b": 0.4})
    found = answer(view, result("keyword", {}, confidence=0.0), *others, asked=asked())
    assert (found.fragments, found.text) == ((), "")
    assert reasons(found) == {"a": NO_MATCH, "b": NO_MATCH}
    filled = answer(view, result("keyword", {}, confidence=0.0), *others, asked=asked(stop_score=0))
    assert sorted(ids(filled)) == ["a", "b"]


def test_the_same_meaning() -> None:
    """It is a match beside one with the same words, and where no strategy has looked for the words."""
    view = library("a", "b").view()
    meaning = result("semantic", {"b": 0.4})
    assert ids(answer(view, result("keyword", {"a": 1.0}), meaning, asked=asked())) == ["a", "b"]
    assert ids(answer(view, meaning, asked=asked())) == ["b"]


def test_nothing_was_asked() -> None:
    """Then every strategy answers."""
    view = library("a", "b").view()
    assert len(answer(view, result("recency", {"a": 1.0, "b": 0.9}), asked=asked("")).fragments) == 2
    assert answer(view, result("recency", {"a": 1.0}), asked=request("what")).fragments == ()
