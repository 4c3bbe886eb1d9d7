"""Whatever strategies say of whatever fragments: an answer is within its budget, and is what its receipt says."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stepwell.assembly.answer import Answer
from stepwell.assembly.candidate import SelectedResult
from stepwell.assembly.components import NAMED, named
from stepwell.assembly.explain import diff, why
from stepwell.assembly.inputs import AssemblyInputs, Count, Failure
from stepwell.assembly.pipeline import assemble
from stepwell.assembly.receipt import Receipt
from stepwell.assembly.replay import replay
from stepwell.assembly.stages.allocate import UNDECLARED_SHARE, proportional
from stepwell.assembly.stages.fuse import COMPONENTS as FUSE
from stepwell.assembly.stages.fuse import Fuse
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, PlanSeen, ScoredFragment
from stepwell.strategies.ranking import has_requested_kind
from tests.support.assembly import count
from tests.support.strategy_views import MemoryView, Store

PROJECTS = ("p", "q")
NAMES = ["keyword", "semantic", "graph", "recency", "someone"]
KEYS = st.tuples(st.sampled_from(PROJECTS), st.integers(0, 14).map("f{}".format))
CODE = "def {0}(a,\n    b):\n    '''Does {0}.'''\n    return a\n\nclass {0}:\n    def run(self): pass\n"
WORDS = st.sampled_from(
    ["red", "green", "日本語", "a.b_c", "\n", "\n\n", "```", "### x", "…", "é", "7", "  ", "🙂", "\r\n"]
)
BODIES = (
    st.lists(WORDS, max_size=30).map(" ".join)
    | st.sampled_from(["red", "green"]).map(CODE.format)
    | st.integers(1, 400).map(lambda times: "long words " * times)
).map(str.encode) | st.sampled_from([b"\xff red", b"", b"same", b"   \n"])
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "order": st.integers(0, 20).map(str) | st.just("x"),
        "lines": st.sampled_from(["1-3", "4-4", "9-2", "x"]),
        "name": st.sampled_from(["f", "Class.method", "a\nb"]),
        "speaker": st.sampled_from(["Ada", "Project Manager", "Prof M", "A\nB"]),
    },
)


@st.composite
def views(draw: st.DrawFn) -> MemoryView:
    store = Store()
    for project, fragment_id in draw(st.lists(KEYS, max_size=20, unique=True)):
        body = draw(BODIES)
        store.store(
            fragment_id,
            body,
            project=project,
            source=draw(st.sampled_from(["", "a.py", "b.md", "odd\nname" * 40])),
            kind=draw(st.sampled_from(["code", "markdown", "turn", "text", "file"])),
            tokens=draw(st.just(max(1, len(body) // 4)) | st.integers(1, 500)),
            metadata=draw(METADATA),
        )
        if draw(st.integers(0, 9)) == 0:
            store.lose_body(fragment_id, project=project)
    return store.view(*PROJECTS)


def result(draw: st.DrawFn, name: str, view: MemoryView, asked: ContextRequest) -> StrategyResult:
    known = [row for project in asked.projects for row in view.rows(project)]
    rows = draw(st.lists(st.sampled_from(known), max_size=20)) if known else []
    scores = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1)
    fragments = tuple(ScoredFragment(*row.key, draw(scores), row.tokens, row.revision) for row in rows)
    return StrategyResult(name, fragments, view.revision, draw(st.floats(0, 1)), "", draw(st.floats(0, 9)))


DECISIONS = st.lists(st.sampled_from(["Which?", "Why?"]), max_size=5).map(
    lambda questions: tuple(DecisionSeen(f"d{n}", "p1", text, "This.", "", n) for n, text in enumerate(questions))
)
PLANS = st.builds(PlanSeen, st.just("p1"), st.just("execute"), DECISIONS, st.sampled_from(["", "a.py:\n- 1-2 def f"]))
REQUESTS = st.builds(
    ContextRequest,
    projects=st.sampled_from([("p",), ("q",), ("p", "q")]),
    query=st.sampled_from(["", "red"]),
    kinds=st.sampled_from([(), ("code",), ("turn", "file")]),
    strategies=st.sampled_from([(), ("semantic",)]),
    budget_tokens=st.integers(1, 40) | st.integers(1, 600),
    as_of_ms=st.none() | st.integers(0, 100),
    plan=st.none() | PLANS,
)
COMPONENTS = st.fixed_dictionaries({stage: st.sampled_from([*known]) for stage, known in NAMED.items()})


def steep(text: str) -> int:
    """Counts more for a text than for its parts: what is packed by parts is too much."""
    return len(text) // 4 + len(text) ** 2 // 3_000


def blunt(text: str) -> int:
    """Counts less for a text than for its parts, which cost 5 each."""
    return 5 + len(text) // 6 if text else 0


COUNTS: st.SearchStrategy[Count] = st.sampled_from([count, steep, blunt])


@st.composite
def questions(draw: st.DrawFn) -> AssemblyInputs:
    view, asked = draw(views()), draw(REQUESTS)
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    results = tuple(result(draw, name, view, asked) for name in names)
    failures = draw(st.sampled_from([(), (Failure("broken", "TaskFailed", "strategy 'broken' raised"),)]))
    return AssemblyInputs(asked, view, results, draw(COUNTS), failures)


def same(one: Answer, other: Answer) -> None:
    assert one.text == other.text
    assert msgspec.msgpack.encode(one.receipt) == msgspec.msgpack.encode(other.receipt)


@given(questions(), st.just({}) | COMPONENTS)
def test_within_the_budget(question: AssemblyInputs, names: dict[str, str]) -> None:
    """The exact count of the text, preamble and all, is the total, and no more than the budget, by any pipeline."""
    answer = assemble(question, named(names))
    assert question.count(answer.render()) == answer.total_tokens <= question.request.budget_tokens


@given(questions(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_show(question: AssemblyInputs, random: object) -> None:
    """Nor does the time that a strategy took."""
    later = [msgspec.structs.replace(each, seconds=99.0) for each in question.results]
    getattr(random, "shuffle")(later)  # noqa: B009 - hypothesis' own type of it is private
    same(assemble(question), assemble(msgspec.structs.replace(question, results=tuple(later))))


@given(questions())
def test_the_receipt_is_of_what_was_delivered(question: AssemblyInputs) -> None:
    """What it says was kept is what is in the text, and everything that was named has an entry, once."""
    answer = assemble(question)
    entries = {entry.key: entry for entry in answer.receipt.entries}
    assert len(entries) == len(answer.receipt.entries)
    weights = {each.strategy: each.weight for each in answer.receipt.strategies}
    used = [each for each in question.results if weights[each.strategy] > 0]
    named_keys = {(each.project, each.fragment_id) for result in used for each in result.fragments}
    rows = {row.key: row for project in question.request.projects for row in question.view.rows(project)}
    assert {key for key in named_keys if has_requested_kind(question.request, rows[key])} <= entries.keys()
    shown = [entry.key for entry in answer.receipt.delivered]
    assert shown == [(each.project, each.fragment_id) for each in answer.fragments]
    for entry in answer.receipt.entries:
        assert (entry.shown is not None) == (entry.decision in {"kept", "shortened"})
        assert (entry.decision == "kept") == (entry.depth == "full")
        assert why(answer.receipt, entry.fragment_id, entry.project)
    assert all(each.text in answer.text for each in answer.fragments)
    assert answer.receipt.total_tokens == answer.total_tokens
    if not answer.fragments:
        assert len(answer.receipt.sections) <= 1  # of a plan, its decisions
    assert not diff(answer.receipt, answer.receipt).differences


@given(questions())
def test_a_receipt_is_replayed(question: AssemblyInputs) -> None:
    """The same bytes and the same fragments, also from what was written down, in either format."""
    answer = assemble(question)
    for encoded, decode in (
        (msgspec.json.encode(answer.receipt), msgspec.json.decode),
        (msgspec.msgpack.encode(answer.receipt), msgspec.msgpack.decode),
    ):
        receipt = decode(encoded, type=Receipt)
        assert receipt == answer.receipt
        replayed = replay(receipt, question.view, question.count)
        assert (replayed.text, replayed.total_tokens) == (answer.text, answer.total_tokens)
        assert replayed.fragments == answer.fragments


IDS = st.integers(0, 14).map("f{}".format)
SCORES = st.floats(allow_nan=False, allow_infinity=False) | st.floats(0, 1) | st.integers(-3, 3).map(float)


@given(
    found=st.dictionaries(IDS, st.floats(0.001, 50), min_size=1),
    nonsense=st.lists(st.dictionaries(IDS, SCORES, min_size=1), min_size=1, max_size=3),
    confidences=st.tuples(st.floats(0.01, 1), st.floats(0, 1)),
    fuse=st.sampled_from([*FUSE.values()]),
)
def test_nonsense_does_not_displace_the_best_hit(
    found: dict[str, float], nonsense: list[dict[str, float]], confidences: tuple[float, float], fuse: Fuse
) -> None:
    """Functions may say anything of anything, on any scale: what only they name stays behind the best hit of `keyword`,
    and in front of it comes, if anything, another hit that is nearly as good.
    """
    store = Store()
    rows = {row.key: row for row in (store.store(f"f{number}", "red") for number in range(15))}

    def chosen(name: str, scores: dict[str, float], confidence: float) -> SelectedResult:
        fragments = tuple(ScoredFragment("p", fragment_id, score, 1, 1) for fragment_id, score in scores.items())
        return SelectedResult(StrategyResult(name, fragments, 1, confidence), confidence)

    keyword = chosen("keyword", found, confidences[0])
    functions = [chosen(f"z{number}", scores, confidences[1]) for number, scores in enumerate(nonsense)]
    asked = ContextRequest(projects=["p"], query="red")
    alone, together = (
        {each.key[1]: each.relevance for each in fuse(rows, proportional(asked, results, ()))}
        for results in ([keyword], [keyword, *functions])
    )
    best = min(found, key=lambda fragment_id: (-found[fragment_id], fragment_id))
    for fragment_id, relevance in together.items():
        if fragment_id not in found:
            assert relevance <= UNDECLARED_SHARE * together[best] + 1e-9
        elif relevance > together[best] + 1e-9:
            assert alone[fragment_id] >= 1 - UNDECLARED_SHARE - 1e-9


RUBBISH = st.sampled_from(
    [
        ("nobody", 1.0, 1, "p"),
        ("f0", math.nan, 1, "p"),
        ("f0", math.inf, 1, "p"),
        ("f0", 1.0, -1, "p"),
        ("f0", 1.0, 1, "elsewhere"),
    ]
)


@given(questions(), RUBBISH, st.booleans())
def test_rubbish_costs_only_itself(
    question: AssemblyInputs,
    rubbish: tuple[str, float, int, str],
    is_unsure: bool,  # noqa: FBT001 - drawn
) -> None:
    """A strategy that says what cannot be true is named, and the others' answer is what it was."""
    fragment_id, score, tokens, project = rubbish
    bad = StrategyResult(
        "bad", (ScoredFragment(project, fragment_id, score, tokens, 1),), 1, math.nan if is_unsure else 1
    )
    silent = named({"preamble": "silent"})
    with_it = assemble(msgspec.structs.replace(question, results=(bad, *question.results)), silent)
    assert [each.strategy for each in with_it.failures if each.kind == "InvalidResult"] == ["bad"]
    assert with_it.text == assemble(question, silent).text


@given(questions())
def test_nothing_that_was_not_asked_for(question: AssemblyInputs) -> None:
    """Of another project or kind, not even as a neighbour."""
    answer = assemble(question)
    assert {each.project for each in answer.receipt.entries} <= {*question.request.projects}
    kinds = question.request.kinds or {"code", "markdown", "turn", "text"}
    assert {each.kind for each in answer.fragments} <= {*kinds}
