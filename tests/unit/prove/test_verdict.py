"""The verdict counts every partition, and shows the clearest illegal part."""

import pytest

from stepwell.prove import verdict
from stepwell.prove.history import Accepted, GetCall, History, SnapshotCall, StoreCall, TrialHeader
from stepwell.prove.search import SearchResult
from stepwell.prove.verdict import judge
from tests.support.prove.calls import made, saw
from tests.support.prove.simulated import simulated_history

HEADER = TrialHeader("s", 1, 1, 1, 1.0)


def test_legal() -> None:
    """A history that was made one request at a time is legal, lost answers included."""
    seen: list[tuple[int, int]] = []
    found = judge(simulated_history(5, lost=0.2), lambda done, total: seen.append((done, total)))
    assert (found.result, found.illegal, found.counterexample) == (SearchResult.LEGAL, 0, None)
    assert found.unknown > 0
    assert found.watched > 0
    assert seen[-1] == (found.histories, found.histories)


def test_illegal() -> None:
    """Of several illegal partitions one without a snapshot is shown."""
    calls = (
        made(0, 1, SnapshotCall(("a", "b")), saw("1", None)),
        made(0, 1, StoreCall("x", "1"), Accepted()),
        made(2, 3, GetCall("x"), saw(None)),
        made(4, 5, GetCall("x"), saw("1")),
        made(0, 1, StoreCall("y", "1"), Accepted()),
    )
    found = judge(History(HEADER, calls))
    assert (found.result, found.histories, found.illegal) == (SearchResult.ILLEGAL, 3, 2)
    assert found.counterexample is not None
    assert found.counterexample.keys == ("x",)


def test_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that was given up is no proof."""
    monkeypatch.setattr(verdict, "result_of", lambda _partition: SearchResult.UNDECIDED)
    found = judge(simulated_history(5))
    assert (found.result, found.undecided) == (SearchResult.UNDECIDED, found.histories)
