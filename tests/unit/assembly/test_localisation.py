"""Localisation: which reports are read, and what an answer has of one."""

import json

import pytest

import stepwell as sw
from stepwell.assembly.localisation import (
    BugReport,
    Localised,
    LocalisedShare,
    is_localisation,
    localise,
    localise_ranking,
    parse_reports,
    shares,
    wanted_bodies,
)
from tests.support.assembly import answer, request, result
from tests.support.strategy_views import Store

LINE = {
    "id": "b1",
    "package": "app",
    "version": "1.0rc1",
    "query": "it fails",
    "files": ["src/b.py"],
    "functions": ["Budget.keep"],
}


def report(**changes: object) -> BugReport:
    (found,) = parse_reports([json.dumps({**LINE, **changes}).encode(), b"\n"])
    return found


def test_what_is_read() -> None:
    assert report().directory == "app-1.0rc1"
    assert report(functions=[]).functions == ()
    assert is_localisation(json.dumps(LINE).encode())
    assert not is_localisation(b'{"type": "document", "project": "p", "id": "1", "text": "x"}')
    assert not is_localisation(b"{")
    assert not is_localisation(b"")


@pytest.mark.parametrize("changes", [{"files": []}, {"query": 5}, {"package": "../up"}, {"version": "a/b"}])
def test_what_is_malformed(changes: dict[str, object]) -> None:
    """It is refused, with the number of the line; a name cannot lead out of the directory of the sources."""
    with pytest.raises(sw.InvalidArgument, match="line 1: "):
        report(**changes)


def sources() -> Store:
    store = Store()
    for part, name in (("a.py#f", "f"), ("b.py#keep", "Budget.keep"), ("b.py#keep~2", "Budget.keep")):
        store.store(part, f"def x(): budget  # {part}", source=f"src/{part[:4]}", kind="code", metadata={"name": name})
    store.store("README.md#0", "budget", source="README.md", kind="markdown")
    return store


def test_an_answer() -> None:
    """Files of code count in the order of the text, and a function only if all of its parts are shown."""
    view = sources().view()
    bodies = wanted_bodies(report(), view.rows("p"))
    assert bodies == [frozenset({"b.py#keep", "b.py#keep~2"})]
    half = answer(
        view,
        result("mine", {"README.md#0": 3.0, "a.py#f": 2.9, "b.py#keep": 2.8}),
        asked=request("budget"),
        components={"expand": "alone", "score": "relevance"},
    )
    assert localise(report(), bodies, half) == Localised(1, has_body=False)
    whole = answer(
        view,
        result("mine", {"b.py#keep": 3.0, "b.py#keep~2": 2.9}),
        asked=request("budget"),
        components={"expand": "alone", "score": "relevance"},
    )
    assert localise(report(), bodies, whole) == Localised(0, has_body=True)
    assert localise(report(files=["src/c.py"], functions=[]), [], whole) == Localised(None, None)


def test_shares() -> None:
    """Reports without a known function do not count for the bodies."""
    found = [
        localise_ranking(report(), [frozenset({"x"})], ["src/a.py", "src/b.py"], {"x", "y"}),
        localise_ranking(report(), [frozenset({"x"})], ["src/a.py"], set()),
        localise_ranking(report(functions=[]), [], ["src/b.py"], set()),
    ]
    assert shares(found) == LocalisedShare({1: 1 / 3, 3: 2 / 3, 5: 2 / 3, 10: 2 / 3}, 1 / 2)
    assert shares([]) == LocalisedShare(dict.fromkeys((1, 3, 5, 10), 0.0), 0.0)
