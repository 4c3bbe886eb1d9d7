"""Pack: as much as fits, the best of it, and something of what does not."""

import pytest

from stepwell.assembly import texts
from stepwell.assembly.candidate import DepthName
from stepwell.assembly.stages.pack import NAMED
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, ScoredFragment
from tests.support.assembly import answer, count, ids, meeting, request, result, stored, turn
from tests.support.strategy_views import Store

LONG = "def run(self) -> None:\n" + "    step = self.advance(step)\n" * 60


def library(sizes: dict[str, int]) -> Store:
    store = Store()
    for number, (name, size) in enumerate(sizes.items()):
        body = f"def {name}():\n" + "    work()\n" * size
        stored(
            store,
            name,
            body,
            kind="code",
            source=f"{name}.py",
            outline=Outline(name=name, lines=(1, size + 1), order=number),
        )
    return store


def test_the_budget_is_filled() -> None:
    """What is too large is passed over for what fits."""
    view = library({"best": 20, "huge": 500, "small": 5, "tiny": 1}).view()
    scores = result("keyword", {"best": 1.0, "huge": 0.95, "small": 0.9, "tiny": 0.85})
    found = answer(view, scores, asked=request(budget_tokens=160), components={"depth": "full"})
    assert ids(found) == ["best", "small", "tiny"]
    (entry,) = found.receipt.find("huge")
    assert (entry.decision, entry.reason) == ("cut", "there was no room for it")


def test_further_files_are_named() -> None:
    """By the signature of the best match of each, if it is code and not far below the stop score; up to ten files."""
    store = library({f"f{number}": 60 for number in range(14)} | {"best": 30})
    scores = {"best": 20.0, "f0": 19.5} | {f"f{number}": 14.0 - number / 10 for number in range(1, 14)}
    found = answer(store.view(), result("keyword", scores), asked=request(budget_tokens=2_000, stop_score=0.8))
    depths = {each.fragment_id: each.depth for each in found.fragments}
    assert depths == {"best": "full", "f0": "full"} | {f"f{number}": "signature" for number in range(1, 9)}
    (entry,) = found.receipt.find("f1")
    assert (entry.decision, entry.reason) == ("shortened", NAMED)
    assert [*depths] == ["best", *(f"f{number}" for number in range(9))], "files in the order of their ranks"
    alone = answer(store.view(), result("keyword", scores), asked=request(budget_tokens=2_000, stop_score=1))
    assert ids(alone) == ["best"]


def test_documents_do_not_count_as_files_of_code() -> None:
    """Sections of ten documents leave room for the names of files of code."""
    store = library({"best": 30, "further": 60})
    for number in range(10):
        stored(store, f"d{number}", f"Section {number} is about it.", kind="text", source=f"d{number}.md")
    scores = {"best": 20.0, **{f"d{number}": 19.0 for number in range(10)}, "further": 14.0, "least": 10.0}
    stored(store, "least", "def least():\n    pass\n", kind="code", source="least.py")
    found = answer(store.view(), result("keyword", scores), asked=request(budget_tokens=2_000, stop_score=0.8))
    assert {"best": "full", "further": "signature"}.items() <= {
        each.fragment_id: each.depth for each in found.fragments
    }.items()


def test_turns_fill_the_budget_to_the_last_tokens() -> None:
    view = meeting(100).view()
    scores = result("keyword", {f"t{number}": 1 + number / 100 for number in range(100)})
    for budget in range(100, 400, 37):
        found = answer(view, scores, asked=request("number", budget_tokens=budget))
        assert found.total_tokens > budget - 14, budget


def test_a_good_one_that_is_too_large_is_shortened() -> None:
    """It is named rather than dropped, before what is worse takes the room."""
    view = library({"huge": 500, "small": 5, "other": 40}).view()
    found = answer(view, result("keyword", {"huge": 1.0, "small": 0.5, "other": 0.1}), asked=request(budget_tokens=120))
    shown = {each.fragment_id: each.depth for each in found.fragments}
    assert shown["huge"] == "signature"
    assert shown["small"] == "full"
    (entry,) = found.receipt.find("huge")
    assert (entry.decision, entry.depth) == ("shortened", "signature")
    assert "def huge(): …" in found.text


def test_the_deepest_that_fits() -> None:
    """A listing where there is no room for more."""
    store = Store()
    stored(store, "a", LONG, kind="code", source="a.py", outline=Outline(name="run", lines=(1, 61)))
    view, scores = store.view(), result("keyword", {"a": 1.0})
    depths = {
        budget: [each.depth for each in answer(view, scores, asked=request(budget_tokens=budget)).fragments]
        for budget in (1, 100, 10_000)
    }
    assert depths == {1: [], 100: ["signature"], 10_000: ["full"]}


def test_bodies_that_cannot_be_shown() -> None:
    """Gone, no text, or empty: the receipt says which."""
    store = Store()
    for name, body in (("gone", b"x"), ("binary", b"\xff\xfe"), ("empty", b"\n  \n"), ("good", b"good")):
        store.store(name, body, tokens=1)
    store.lose_body("gone")
    names = ("gone", "binary", "empty", "good")
    found = answer(store.view(), result("mine", dict.fromkeys(names, 1.0)))
    assert ids(found) == ["good"]
    reasons = {name: found.receipt.find(name)[0].reason for name in names[:3]}
    assert reasons == {"gone": texts.GONE, "binary": texts.NO_TEXT, "empty": texts.EMPTY}


def test_what_a_row_says_of_its_tokens_is_not_believed() -> None:
    """A caller may count as it likes; the answer is counted as it is."""
    store = Store()
    store.store("liar", "many words " * 400, tokens=1)
    store.store("modest", "few words", tokens=150)
    found = answer(store.view(), result("mine", {"liar": 1.0, "modest": 0.8}), asked=request(budget_tokens=200))
    assert [(each.fragment_id, each.depth) for each in found.fragments] == [("liar", "signature"), ("modest", "full")]


def test_large_bodies_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot fit costs nothing."""
    store = library({f"f{number}": 400 for number in range(50)})
    stored(store, "small", "small")
    read: list[str] = []

    def reading(_view: object, row: object, bytes_max: int | None = None) -> texts.Unreadable:
        read.append(f"{getattr(row, 'fragment_id')} {bytes_max}")  # noqa: B009 - whatever it is
        return texts.Unreadable("")

    monkeypatch.setattr("stepwell.assembly.stages.pack.read", reading)
    scores = {f"f{number}": 1.0 for number in range(50)} | {"small": 0.1}
    answer(store.view(), result("keyword", scores), components={"depth": "full"})
    assert [each for each in read if each.endswith("None")] == ["small None"]


def test_the_best_hits_come_in_first() -> None:
    """Whatever stands around others: a fusion has the first hits of its members also where there is room for few."""
    store = meeting(40)
    stored(store, "alone", "a hit that stands alone", source="elsewhere", outline=turn(0))
    scores = {"alone": 1.0} | {f"t{number}": 0.95 for number in range(10, 30)}
    found = answer(store.view(), result("keyword", scores), asked=request("unheard of", budget_tokens=70))
    assert "alone" in ids(found)


def test_the_share_of_one_that_stands_alone() -> None:
    """What only a strategy of little weight has named does not fill the budget while others have something."""
    scores = {f"t{number}": 1.0 for number in range(20)}
    flood = result("flood", {f"t{number}": 1.0 for number in range(20, 60)}, confidence=0.1)
    found = answer(
        meeting(60).view(),
        result("keyword", scores),
        flood,
        asked=request("unheard", budget_tokens=200),
        components={"expand": "alone"},
    )
    assert sum(int(name[1:]) >= 20 for name in ids(found)) <= 2


def test_tokens_of_what_is_shown() -> None:
    """Of each fragment by itself; together about what the answer has."""
    found = answer(
        meeting().view(),
        result("keyword", {f"t{number}": 1.0 for number in range(12)}),
        asked=request(budget_tokens=500),
    )
    assert all(abs(each.tokens - count(each.text)) <= 6 for each in found.fragments)


def test_one_strategy_naming_one_twice() -> None:
    twice = StrategyResult("a", (ScoredFragment("p", "t1", 1.0, 1, 1), ScoredFragment("p", "t1", 2.0, 1, 1)), 1, 1.0)
    assert ids(answer(meeting().view(), twice, components={"expand": "alone"})) == ["t1"]


def documented(store: Store, name: str, calls: int) -> None:
    """Store a function of some calls with a docstring that has about 60 tokens."""
    docstring = "\n".join(f"    Line {number} of what it does." for number in range(8))
    body = f'def {name}():\n    """Does it.\n\n{docstring}\n    """\n' + "    work()\n" * calls
    lines = (101, 113 + calls)
    stored(store, name, body, kind="code", source=f"{name}.py", outline=Outline(name=name, lines=lines, order=0))


def test_docstrings_make_room_for_another_match() -> None:
    """They are cut where both would not fit with them; the better one gets its own back first."""
    store = Store()
    documented(store, "a", 10)
    documented(store, "b", 10)
    view, scores = store.view(), result("keyword", {"a": 1.0, "b": 0.99})
    depths: list[list[DepthName]] = []
    for budget in range(60, 400, 2):
        found = answer(view, scores, asked=request(budget_tokens=budget))
        shown = {each.fragment_id: each.depth for each in found.fragments}
        if (in_order := [shown[name] for name in sorted(shown)]) not in depths:
            depths.append(in_order)
        for entry in found.receipt.delivered:
            if entry.depth == "cut":
                assert '"""… (lines 102-112)"""' in found.text
                assert (entry.decision, entry.reason) == ("shortened", "its docstrings made room for another match")
                assert f"{entry.source}:101-123" in found.text
    assert depths[-3:] == [["cut", "cut"], ["full", "cut"], ["full", "full"]]


def test_docstrings_are_not_cut_for_surroundings() -> None:
    """What is no match has the room that is left, and no more."""
    store = Store()
    documented(store, "a", 10)
    stored(store, "near", "def near():\n" + "    work()\n" * 20, kind="code", source="a.py", outline=Outline(order=1))
    asked = ContextRequest(projects=["p"], query="unheard", budget_tokens=180, stop_score=0)
    found = answer(store.view(), result("keyword", {"a": 1.0}), asked=asked)
    assert [(each.fragment_id, each.depth) for each in found.fragments] == [("a", "full")]


def test_the_only_match_is_always_there() -> None:
    """By its name, as a signature and in full: the longer, the larger the budget."""
    store = Store()
    stored(store, "a", LONG, kind="code", source="some/where/a.py", outline=Outline(name="run", lines=(1, 61), order=0))
    view, scores = store.view(), result("keyword", {"a": 1.0})
    found = [answer(view, scores, asked=request(budget_tokens=budget)) for budget in range(1, 600)]
    shown = [each.fragments[0].depth if each.fragments else "" for each in found]
    assert list(dict.fromkeys(shown)) == ["", "listing", "signature", "full"]
    assert shown.index("listing") < 20
    assert shown.index("signature") < 45


def test_what_does_not_fit_is_skipped() -> None:
    """What is worse and fits has its turn; what is better keeps its room."""
    view = library({"best": 20, "large": 60, "small": 5}).view()
    scores = result("keyword", {"best": 1.0, "large": 0.8, "small": 0.7})
    shown = {
        budget: ids(answer(view, scores, asked=request(budget_tokens=budget), components={"depth": "full"}))
        for budget in (140, 200, 400)
    }
    assert shown == {140: ["best", "small"], 200: ["best", "small"], 400: ["best", "large", "small"]}
