"""Neighbours: what stands around a hit, and how much that counts."""

import pytest

from stepwell import limits
from stepwell.assembly.candidate import Candidate, FusedFragment, Vote
from stepwell.assembly.stages import expand
from stepwell.assembly.stages.expand import alone, nearby
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.protocol import StrategyView
from tests.support.assembly import answer, ids, meeting, request, result, stored, turn
from tests.support.strategy_views import Store

UNHEARD = "what was never said by anybody"


def around(view: StrategyView, hits: dict[str, float], query: str = UNHEARD) -> dict[str, Candidate]:
    rows = {row.fragment_id: row for project in view.projects for row in view.rows(project)}
    fused = [FusedFragment(rows[name].key, rows[name], score, (Vote("a", 1, 1.0),)) for name, score in hits.items()]
    return {each.key[1]: each for each in nearby(request(query), view, fused)}


def test_the_nearer_the_more() -> None:
    """What is beside a hit becomes a candidate, and says which hit that is; itself it does not count."""
    found = around(meeting().view(), {"t5": 1.0})
    assert found["t4"].hierarchy == found["t6"].hierarchy > found["t7"].hierarchy > found["t9"].hierarchy > 0
    assert (found["t4"].near, found["t4"].votes, found["t4"].relevance) == ("t5", (), 0.0)
    assert (found["t5"].hierarchy, found["t5"].near) == (0.0, "")


def test_several_hits_count_for_more() -> None:
    view = meeting().view()
    assert around(view, {"t4": 1.0, "t6": 1.0})["t5"].hierarchy > around(view, {"t4": 1.0})["t5"].hierarchy
    assert around(view, {"t4": 1.0, "t6": 0.9})["t5"].near == "t4"
    assert around(view, {"t4": 0.8, "t6": 0.9})["t5"].near == "t6"


def test_a_weak_hit_says_less_than_its_share() -> None:
    view = meeting().view()
    assert around(view, {"t4": 0.5})["t5"].hierarchy == around(view, {"t4": 1.0})["t5"].hierarchy / 4


def test_distance_is_in_tokens() -> None:
    """Over a long part hardly anything is carried."""
    store = Store()
    for number, body in enumerate(["red", "long " * 2_000, "blue"]):
        stored(store, f"f{number}", body, outline=turn(number))
    assert "f2" not in around(store.view(), {"f0": 1.0})


def test_one_that_has_all_the_words_needs_nobody() -> None:
    """The more of a question is in one of the best hits, the less its neighbours count."""
    view = meeting().view()
    worths = [around(view, {"t5": 1.0}, query)["t4"].hierarchy for query in (UNHEARD, "number unheard", "number 5", "")]
    assert worths[0] > worths[1] > worths[2] == worths[3]
    assert 0 < worths[3] < 0.05


def test_only_within_a_source_and_a_project() -> None:
    """What has no source has no neighbours."""
    store = Store()
    for name, source, project in (
        ("a", "s", "p"),
        ("b", "s", "p"),
        ("c", "z", "p"),
        ("d", "s", "q"),
        ("e", "", "p"),
        ("f", "", "p"),
    ):
        stored(store, name, f"body {name}", source=source, project=project)
    assert around(store.view("p", "q"), {"a": 1.0, "e": 1.0}).keys() == {"a", "b", "e"}


def test_kinds() -> None:
    """A neighbour is of a kind that was asked for."""
    store = meeting()
    stored(store, "file", "a listing", kind="file", outline=turn(3))
    stored(store, "code", "some code", kind="code", outline=turn(3))
    found = answer(store.view(), result("a", {"t3": 1.0}), asked=request(UNHEARD, kinds=["turn"], budget_tokens=500))
    assert {each.kind for each in found.fragments} == {"turn"}
    assert len(found.fragments) == 12


def test_without_an_order_it_is_that_of_storing() -> None:
    """Also if what is said of the order makes no sense."""
    store = Store()
    for number in (2, 0, 1):
        stored(store, f"f{number}", f"body {number}")
    found = around(store.view(), {"f2": 1.0})
    assert found["f0"].hierarchy > found["f1"].hierarchy
    assert [found[name].place for name in ("f2", "f0", "f1")] == [0, 1, 2]
    row = stored(store, "odd", "body", outline=Outline(speaker="x"))
    assert expand.place_of(row, 7) == 7


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many parts, those of the best sources are looked at; of too many that are added, the nearest."""
    store = Store()
    for number in range(30):
        stored(store, f"f{number}", f"body {number}", source=f"s{number // 10}", outline=turn(number % 10))
    hits = {"f5": 1.0, "f15": 0.9, "f25": 0.8}
    monkeypatch.setattr(limits, "EXPAND_PARTS_MAX", 20)
    assert {name for name in around(store.view(), hits) if name.startswith("f2") and len(name) == 3} == {"f25"}
    monkeypatch.setattr(limits, "EXPAND_ADDED_MAX", 2)
    assert around(store.view(), hits).keys() == {*hits, "f4", "f6"}
    monkeypatch.setattr(limits, "EXPAND_SOURCES_MAX", 0)
    assert around(store.view(), hits).keys() == hits.keys()


def test_neighbours_help() -> None:
    """A turn that has none of the words, between two that have them, comes before one far away that has one."""
    view = meeting(60).view()
    scores = {"t4": 1.0, "t6": 0.95, "t50": 0.3}
    found = answer(view, result("keyword", scores), asked=request(UNHEARD, budget_tokens=60))
    assert "t5" in ids(found)
    assert "t50" not in ids(found)
    plain = answer(
        view, result("keyword", scores), asked=request(UNHEARD, budget_tokens=60), components={"expand": "alone"}
    )
    assert ids(plain) == ["t4", "t6", "t50"]
    assert alone(request(), view, ()) == ()
