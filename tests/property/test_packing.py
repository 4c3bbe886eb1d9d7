"""What is shown at one budget is shown at every larger one, unless something better takes its room there."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stepwell.assembly.answer import Answer
from stepwell.assembly.inputs import AssemblyInputs
from stepwell.assembly.pipeline import assemble
from stepwell.assembly.receipt import ReceiptEntry
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, PlanSeen, ScoredFragment
from tests.support.assembly import count, stored
from tests.support.strategy_views import Store

WORDS = st.sampled_from(
    ["red", "green", "日本語", "a.b_c", "é", "🙂", "budget", "of", "(x)", "7", "```", "\n\n", "### x"]
)
TEXTS = st.lists(WORDS, max_size=60).map(lambda words: " ".join(["It", *words]))
NAMES = ["f", "run_all", "Budget.enforce", ""]
SPEAKERS = ["", "Ada", "Project Manager", "Pia Meyer", "User Interface"]
RESERVED = 0.75  # of a budget is for fragments, whatever the preamble and the decisions of a plan need
PLAN = PlanSeen(
    "p1", "execute", tuple(DecisionSeen(f"d{n}", "p1", "Which?", "This one, of all.", "") for n in range(9))
)


@st.composite
def codes(draw: st.DrawFn) -> str:
    """Return a function with or without a docstring, sometimes a method."""
    indent = draw(st.sampled_from(["", "    "]))
    documented = draw(st.booleans())
    lines = [f"def {draw(st.sampled_from(['f', 'run_all']))}(a, b):"]
    if documented:
        lines += ['    """Does it.', "", *[f"    {draw(WORDS).strip() or 'x'} and so on." for _ in range(8)], '    """']
    lines += ["    work(a, b)" for _ in range(draw(st.integers(1, 40)))]
    return "\n".join(f"{indent}{line}" for line in lines)


@st.composite
def questions(draw: st.DrawFn) -> AssemblyInputs:
    store = Store()
    ids = [f"f{number}" for number in range(draw(st.integers(4, 14)))]
    for number, fragment_id in enumerate(ids):
        source = draw(st.sampled_from(["", "a/long/path/of/some_module.py", "b.py", "c.md", "talk"]))
        kind = "code" if source.endswith(".py") else "turn" if source == "talk" else "markdown"
        outline = Outline(
            order=number,
            lines=(10 * number + 1, 10 * number + 9) if draw(st.booleans()) else None,
            name=draw(st.sampled_from(NAMES)),
            speaker=draw(st.sampled_from(SPEAKERS)) if kind == "turn" else "",
        )
        stored(
            store, fragment_id, draw(codes() if kind == "code" else TEXTS), source=source, kind=kind, outline=outline
        )
    view = store.view()
    scores = st.floats(0.01, 50)

    def result(name: str) -> StrategyResult:
        found = dict(zip(draw(st.permutations(ids)), draw(st.lists(scores, min_size=0, max_size=14)), strict=False))
        if draw(st.booleans()):
            found = {fragment_id: 50 - len(fragment_id) - place for place, fragment_id in enumerate(ids)} | found
        fragments = tuple(ScoredFragment("p", fragment_id, score, 1, 1) for fragment_id, score in found.items())
        return StrategyResult(name, fragments, 1, 1.0)

    results = tuple(result(name) for name in draw(st.sampled_from([["keyword"], ["keyword", "semantic", "recency"]])))
    request = ContextRequest(
        projects=["p"],
        query="red",
        plan=draw(st.none() | st.just(PLAN)),
        stop_score=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return AssemblyInputs(request, view, results, count)


def at(question: AssemblyInputs, budget: int) -> Answer:
    request = msgspec.structs.replace(question.request, budget_tokens=budget)
    answer = assemble(msgspec.structs.replace(question, request=request))
    assert count(answer.text) == answer.total_tokens <= budget
    return answer


def shown_tokens(entry: ReceiptEntry) -> int:
    return 0 if entry.shown is None else entry.shown.tokens


@given(questions(), st.integers(1, 900) | st.integers(200, 250), st.sampled_from([1, 1, 7]))
def test_only_what_is_better_takes_the_room(question: AssemblyInputs, smallest: int, step: int) -> None:
    """So the best match, once it is shown, is shown at every larger budget."""
    answers = [at(question, budget) for budget in range(smallest, smallest + 40 * step, step)]
    for number, smaller in enumerate(answers):
        for larger in answers[number + 1 :]:
            before = {entry.key: entry for entry in smaller.receipt.entries}
            keys = [entry.key for entry in larger.receipt.entries]
            assert keys == [*before], "the order does not depend on the budget"
            grown = [shown_tokens(entry) > shown_tokens(before[entry.key]) for entry in larger.receipt.entries]
            for rank, entry in enumerate(larger.receipt.entries):
                if entry.shown is None and before[entry.key].shown is not None:
                    assert any(grown[:rank]), (smaller.budget_tokens, larger.budget_tokens, entry.key)


@given(questions(), st.integers(150, 4_000))
def test_the_best_match_is_always_there(question: AssemblyInputs, budget: int) -> None:
    """In full, without its docstrings, as a signature or by its name: with what any source needs for a heading."""
    answer = at(question, budget)
    entries = answer.receipt.entries
    if any(vote.strategy == "keyword" for entry in entries for vote in entry.votes):
        assert entries[0].shown is not None
        assert answer.fragments
    elif question.request.stop_score:
        assert not answer.fragments


@given(questions(), st.integers(20, 700))
def test_docstrings_are_cut_only_for_another_match(question: AssemblyInputs, budget: int) -> None:
    """Where all matches have room as they are, none is cut."""
    answer, roomy = at(question, budget), at(question, 100_000)
    assert all(each.depth != "cut" for each in roomy.fragments)
    if any(each.depth == "cut" for each in answer.fragments):
        whole = {entry.key: entry.tokens for entry in roomy.receipt.entries}
        restored = answer.total_tokens + sum(
            whole[each.project, each.fragment_id] - count(each.text) for each in answer.fragments if each.depth == "cut"
        )
        assert restored > RESERVED * budget
