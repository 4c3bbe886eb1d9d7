"""The search finds an order if there is one, keeps real time, and gives up at its bound."""

import pytest

from stepwell.prove.history import Accepted, Declined, GetCall, RecordedCall, ReplaceCall, StoreCall
from stepwell.prove.models import FragmentModel
from stepwell.prove.search import SearchResult, search
from tests.support.prove.calls import made, saw


def result(*calls: RecordedCall, steps_max: int = 1_000) -> SearchResult:
    model = FragmentModel(["x"])
    return search(calls, model, model.initial(), steps_max=steps_max)


STORE = made(0, 10, StoreCall("x", "1"), Accepted())


@pytest.mark.parametrize(
    "calls, expected",
    [
        ([], "legal"),
        ([STORE, made(11, 12, GetCall("x"), saw("1"))], "legal"),
        ([STORE, made(11, 12, GetCall("x"), saw(None))], "illegal"),
        ([STORE, made(5, 12, GetCall("x"), saw(None))], "legal"),
        ([STORE, made(10, 12, GetCall("x"), saw(None))], "legal"),  # the same nanosecond: they overlap
        ([STORE, made(1, 2, GetCall("x"), saw("1")), made(3, 4, GetCall("x"), saw(None))], "illegal"),
        ([made(0, None, StoreCall("x", "1")), made(50, 51, GetCall("x"), saw("1"))], "legal"),
        ([made(0, None, StoreCall("x", "1")), made(50, 51, GetCall("x"), saw(None))], "legal"),
        ([made(60, None, StoreCall("x", "1")), made(50, 51, GetCall("x"), saw("1"))], "illegal"),
        (
            [
                made(0, 9, ReplaceCall("x", None, "1"), Accepted()),
                made(0, 9, ReplaceCall("x", None, "2"), Declined()),
                made(0, 9, ReplaceCall("x", None, "3"), Accepted()),
            ],
            "illegal",
        ),
    ],
)
def test_result(calls: list[RecordedCall], expected: str) -> None:
    """Each history is judged as its definition says."""
    assert result(*calls) == expected


def test_bound() -> None:
    """Past the bound of its steps a search is undecided, and never wrong."""
    writes = [made(0, 100, StoreCall("x", str(number)), Accepted()) for number in range(6)]
    assert result(*writes, made(101, 102, GetCall("x"), saw("none"))) == "illegal"
    assert result(*writes, made(101, 102, GetCall("x"), saw("none")), steps_max=10) == "undecided"


def test_many_overlapping_calls() -> None:
    """The cache keeps the search of a long legal history short: each call is placed about once."""
    calls = [made(0, 1_000, StoreCall("x", str(number)), Accepted()) for number in range(200)]
    assert result(*calls, steps_max=200) == "legal"
