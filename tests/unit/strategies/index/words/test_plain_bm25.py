"""Plain BM25: the floor of evaluations."""

from stepwell.strategies.index.words.plain_bm25 import PlainBm25


def test_ranking() -> None:
    """More of the words and rarer ones come first, in a shorter text; what has none of them does not come."""
    floor = PlainBm25(["red green", "red", "green green green blue", "nothing", "red " * 9])
    assert floor.ranking("red") == [4, 1, 0]
    assert floor.ranking("BLUE red")[0] == 2
    assert floor.ranking("unheard") == []
    assert PlainBm25([]).ranking("red") == []
    assert PlainBm25(["", ""]).ranking("red") == []
