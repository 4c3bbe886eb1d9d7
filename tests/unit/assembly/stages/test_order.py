"""Order: the best source first, its parts as they stand in it."""

import pytest

from tests.support.assembly import answer, ids, request, result, stored, turn
from tests.support.strategy_views import Store


@pytest.mark.parametrize(
    "name, expected",
    [
        ("coherent", ["b0", "b2", "a0", "a1"]),
        ("source", ["a0", "a1", "b0", "b2"]),
        ("worth", ["b2", "a1", "a0", "b0"]),
    ],
)
def test_orders(name: str, expected: list[str]) -> None:
    store = Store()
    for source, number in (("a", 0), ("a", 1), ("b", 0), ("b", 2)):
        stored(store, f"{source}{number}", f"body of {source} {number}", source=source, outline=turn(number), at_ms=1)
    scores = result("mine", {"b2": 1.0, "a1": 0.8, "a0": 0.6, "b0": 0.1})
    found = answer(store.view(), scores, asked=request(""), components={"order": name, "expand": "alone"})
    assert ids(found) == expected
    assert [found.text.index(f"body of {each[0]} {each[1]}") for each in expected] == sorted(
        found.text.index(f"body of {each[0]} {each[1]}") for each in expected
    )
