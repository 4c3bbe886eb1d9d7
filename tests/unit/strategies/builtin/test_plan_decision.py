"""Plan-decision: what the decisions of a plan and its ancestors speak of."""

import pytest
from msgspec.structs import replace

from stepwell.strategies.builtin.plan_decision import (
    CONFIDENCE,
    DECAY,
    IN_NAMED_SOURCE,
    NAMED,
    SHARES_WORDS,
    PlanDecisionStrategy,
)
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, PlanSeen, Strategy
from tests.support.strategy_views import Store, ask, found, ids


@pytest.fixture
def strategy() -> PlanDecisionStrategy:
    return PlanDecisionStrategy()


def decided(*decisions: tuple[str, int], kinds: tuple[str, ...] = ()) -> ContextRequest:
    """By text and depth."""
    made = [DecisionSeen(f"D{at}", f"P{depth}", text, "", "", depth) for at, (text, depth) in enumerate(decisions)]
    return replace(ask(kinds=kinds), plan=PlanSeen("P0", "execute", made))


def code() -> Store:
    store = Store()
    for order, name in enumerate(["Index.catch_up", "Index.best", "helper"]):
        outline = {"name": name, "order": str(order)}
        store.store(f"src/index.py#{name}", "zzz", source="src/index.py", metadata=outline, kind="code")
    store.store("note", "about budgets", source="notes.md", kind="markdown")
    store.store("other", "unrelated", source="other.md", kind="markdown")
    return store


@pytest.mark.parametrize(
    "text, named",
    [
        ("keep Index.catch_up as it is", ["src/index.py#Index.catch_up"]),
        ("keep catch_up, though", ["src/index.py#Index.catch_up"]),
        ("see src/index.py#Index.best.", ["src/index.py#Index.best"]),
        ("call `helper` once", ["src/index.py#helper"]),
        ("be a helper", []),
        ("what `note` says", ["note"]),
    ],
)
def test_what_is_named(strategy: PlanDecisionStrategy, text: str, named: list[str]) -> None:
    """By id or by name; a word of a sentence is no name, unless it is in backticks."""
    results = [each for each in found(strategy, decided((text, 0)), code().view()) if each.score >= NAMED]
    assert ids(results) == named
    assert all(each.reason == "named by decision D0" for each in results)


@pytest.mark.parametrize("text", ["rewrite src/index.py", "rewrite index.py"])
def test_sources(strategy: PlanDecisionStrategy, text: str) -> None:
    """All parts of a source that is named, also by the end of its path."""
    results = found(strategy, decided((text, 0)), code().view())
    assert len(results) == 3
    assert all(IN_NAMED_SOURCE <= each.score <= IN_NAMED_SOURCE + SHARES_WORDS for each in results)


def test_words(strategy: PlanDecisionStrategy) -> None:
    """What has the rare words of a decision, without being named."""
    (only,) = found(strategy, decided(("how are budgets kept", 0)), code().view())
    assert only.fragment_id == "note"
    assert only.score == SHARES_WORDS
    assert only.reason == "decisions of plan P0 have budgets"


def test_nearer_plans_count_more(strategy: PlanDecisionStrategy) -> None:
    """Each generation half as much as its child; what several speak of gets all of it."""
    store = code()
    scores = []
    for depth in (0, 1, 2):
        request = decided(("`helper` it is", depth))
        scores.append(found(strategy, request, store.view())[0].score)
    assert scores == [(NAMED + SHARES_WORDS) * DECAY**depth for depth in (0, 1, 2)]
    both = decided(("`helper` it is", 1), ("`helper` it is", 0))
    assert found(strategy, both, store.view())[0].score == scores[0] + scores[1]
    assert found(strategy, decided(("`helper`", 5)), store.view())[0].reason == "named by decision D0"


def test_kinds(strategy: PlanDecisionStrategy) -> None:
    store = code()
    store.store("file:src/index.py", "Index.catch_up", source="src/index.py", kind="file")
    request = decided(("src/index.py and budgets", 0))
    assert "file:src/index.py" not in ids(found(strategy, request, store.view()))
    markdown = decided(("src/index.py and budgets", 0), kinds=("markdown",))
    assert ids(found(strategy, markdown, store.view())) == ["note"]


def test_confidence(strategy: PlanDecisionStrategy) -> None:
    """Nothing to say without a plan, without decisions, and where there is nothing."""
    view = code().view()
    assert strategy.can_handle(decided(("anything", 0)), view) == CONFIDENCE
    assert strategy.can_handle(ask("query"), view) == 0
    assert strategy.can_handle(replace(ask(), plan=PlanSeen("P", "execute")), view) == 0
    assert strategy.can_handle(decided(("anything", 0)), Store().view()) == 0
    assert found(strategy, ask("query"), view) == ()


def test_its_interface(strategy: PlanDecisionStrategy) -> None:
    assert isinstance(strategy, Strategy)
    assert "decisions of the plan" in strategy.explain()
