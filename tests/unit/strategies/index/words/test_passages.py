"""The passages of conversations: the words of a query in the turns around a turn."""

from array import array

import numpy as np
import pytest

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.index.words.passages import COUNTED_MAX, REACH_TOKENS, SATURATION, Passages
from stepwell.strategies.index.words.postings import Occurrences
from tests.support.seeds import seeded
from tests.support.strategy_views import Store, ask, found, ids


def say(
    store: Store, turn: str, text: str, *, source: str = "talk", tokens: int = 10, order: int | None = None
) -> None:
    metadata = {} if order is None else {"order": str(order)}
    store.store(turn, text, source=source, kind="turn", tokens=tokens, metadata=metadata)


def order_of(store: Store, query: str) -> list[str]:
    return ids(found(KeywordStrategy(), ask(query), store.view()))


def test_the_words_around_a_turn() -> None:
    """Of two turns that say the same, the one among turns with the other words comes first."""
    store = Store()
    for turn, text in enumerate(["apart", "the budget", *["nothing"] * 9, "the budget", "a remote", *["nothing"] * 9]):
        say(store, f"{turn:02}", text, tokens=200)
    assert order_of(store, "remote budget").index("11") < order_of(store, "remote budget").index("01")


def test_several_words_are_better_than_one_again_and_again() -> None:
    """A passage with each word once is better than one that has a word twice."""
    store = Store()
    for turn, text in enumerate(["budget", "the price", "budget", *["nothing"] * 9, "cost", "the price", "budget"]):
        say(store, f"{turn:02}", text, tokens=200)
    assert order_of(store, "price cost budget").index("13") < order_of(store, "price cost budget").index("01")


def test_other_conversations_are_apart() -> None:
    """A turn of another conversation is in no passage, even if it was stored just before."""
    scores: list[float] = []
    for epoch, source in enumerate(("talk", "other")):
        store = Store(str(epoch))
        say(store, "a", "remote budget")
        say(store, "b", "the budget")
        say(store, "c", "a remote", source=source)
        say(store, "d", "nothing", source=source)
        scores.append(
            next(
                each.score
                for each in found(KeywordStrategy(), ask("remote budget"), store.view())
                if each.fragment_id == "b"
            )
        )
    assert scores[0] > scores[1]


def test_the_order_is_the_declared_one() -> None:
    """Turns that arrive in any order have the same scores, to the last bit."""
    random = seeded(7)
    said = [(f"{turn:02}", random.choice(["budget", "remote", "nothing", "budget price"]), turn) for turn in range(30)]
    orders: list[dict[str, float]] = []
    for epoch in range(3):
        store = Store(str(epoch))
        for turn, text, place in said:
            say(store, turn, text, order=place, tokens=100 + place)
        orders.append(
            {
                each.fragment_id: each.score
                for each in found(KeywordStrategy(), ask("remote budget price"), store.view())
            }
        )
        random.shuffle(said)
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_as_one_by_one(seed: int) -> None:
    """Sums of all turns give what comparing each turn with each other one gives."""
    random = seeded(seed)
    store = Store()
    for turn in range(60):
        say(store, f"{turn}", "", source=random.choice(["one", "two"]), tokens=random.choice([0, 1, 40, 400, 3_000]))
    rows = [*store.view().rows("p")]
    alive = bytearray(random.choice([0, 1, 1]) for _ in rows)
    slots = [slot for slot in range(60) if alive[slot] and random.random() < 0.3]
    counts = [random.randint(0, 5) for _ in slots]
    passages = Passages.of(rows, alive)
    assert passages is not None
    occurrences = Occurrences(np.array(slots, dtype=np.int32), np.array(counts), np.array(counts))
    shares = dict(zip(passages.turns.tolist(), passages.share(occurrences).tolist(), strict=True))
    assert set(shares) == {slot for slot in range(60) if alive[slot]}
    for slot, share in shares.items():
        near = sum(
            min(COUNTED_MAX, count) * max(0.0, 1 - distance(rows, alive, slot, other) / REACH_TOKENS)
            for other, count in zip(slots, counts, strict=True)
            if rows[other].source == rows[slot].source
        )
        assert share == pytest.approx(near / (near + SATURATION))


def distance(rows: list[FragmentRow], alive: bytearray, one: int, other: int) -> float:
    """The tokens between the middles of two turns of a conversation."""
    first, last = sorted((one, other))
    between = [slot for slot in range(first, last + 1) if alive[slot] and rows[slot].source == rows[one].source]
    return sum(rows[slot].tokens for slot in between) - (rows[first].tokens + rows[last].tokens) / 2


def test_nothing_to_compare() -> None:
    """Code, and turns that are all of their source, have no passages."""
    store = Store()
    store.store("code", "x", source="a.py", kind="code")
    store.store("more", "x", source="a.py", kind="code")
    say(store, "turn", "x", source="one")
    say(store, "lone", "x", source="")
    say(store, "last", "x", source="")
    assert Passages.of(store.view().rows("p"), array("B", [1] * 5)) is None
