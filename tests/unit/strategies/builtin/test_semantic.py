"""Semantic: what means the same, by the model that is the extra."""

import importlib.util
import logging

import numpy as np
import pytest

from stepwell import limits
from stepwell.errors import BodyGone
from stepwell.strategies.builtin.semantic import CONFIDENCE, CONFIDENCE_IN_CODE, SemanticStrategy
from stepwell.strategies.index import embeddings
from stepwell.strategies.index.embeddings import DIMENSIONS, EmbeddingIndex, WordEmbedder, load
from stepwell.strategies.protocol import Strategy
from tests.support.strategy_views import Store, ask, found, ids

TEXTS = {
    "cat": "The kitten sleeps on the sofa.",
    "money": "We have to reduce the cost of the project by ten percent.",
    "code": "def parse_header(line): return line.split(':')",
}


@pytest.fixture
def strategy() -> SemanticStrategy:
    return SemanticStrategy()


def library() -> Store:
    store = Store()
    for fragment_id, text in TEXTS.items():
        store.store(fragment_id, text, kind="code" if fragment_id == "code" else "prose")
    return store


@pytest.mark.parametrize(
    "query, best", [("a cat is napping", "cat"), ("budget cuts", "money"), ("function that reads headers", "code")]
)
def test_other_words(strategy: SemanticStrategy, query: str, best: str) -> None:
    """What means the same comes first, though it shares no word."""
    results = found(strategy, ask(query), library().view())
    assert ids(results)[0] == best
    assert results[0].reason == f"similarity {results[0].score:.2f}"
    assert 0 < results[0].score < 1


def test_the_same_text(strategy: SemanticStrategy) -> None:
    """Nothing is more similar than what is asked, whatever stands beside it."""
    results = found(strategy, ask(TEXTS["money"]), library().view())
    assert results[0].score == pytest.approx(1)


def test_as_the_model_does() -> None:
    """Cut into words, a text points where the model itself has it; the whole numbers cost little."""
    text = "We have to reduce the cost of this project by ten percent before the end of the year"
    own = embeddings._model().embed(text)[0]
    ours = load()(text).astype(np.float64)
    assert own @ ours / np.linalg.norm(own) / np.linalg.norm(ours) > 0.99


def test_a_vector_depends_on_its_text_alone() -> None:
    """Not on what was met before, nor on what had to be forgotten for it."""
    small = WordEmbedder(embeddings._model(), limits.EMBEDDED_BYTES_MAX + 256)
    texts = [f"{text} {number}" for number in range(50) for text in TEXTS.values()]
    lengthy = " ".join(f"word{number}" for number in range(2_000))
    first = [small.embed(text) for text in texts]
    for _ in range(3):
        small.embed(lengthy)
    again = [small.embed(text) for text in reversed(texts)]
    assert np.array_equal(first, again[::-1])
    assert len(small._numbers) <= limits.EMBEDDED_BYTES_MAX + 256


def test_kinds_and_files(strategy: SemanticStrategy) -> None:
    store = library()
    store.store("file:a", TEXTS["cat"], kind="file")
    assert ids(found(strategy, ask("a cat", kinds=["code"]), store.view())) == ["code"]
    assert "file:a" not in ids(found(strategy, ask("a cat"), store.view()))


def test_ties(strategy: SemanticStrategy) -> None:
    """By project and id."""
    store = Store()
    for project, fragment_id in [("q", "a"), ("p", "b"), ("p", "a")]:
        store.store(fragment_id, TEXTS["cat"], project=project)
    results = found(strategy, ask("cat", "p", "q"), store.view("q", "p"))
    assert [(each.project, each.fragment_id) for each in results] == [("p", "a"), ("p", "b"), ("q", "a")]
    assert len({each.score for each in results}) == 1


def test_what_has_no_words(strategy: SemanticStrategy) -> None:
    """Bodies that are empty or not UTF-8 point nowhere, and neither does a query of signs."""
    store = library()
    store.store("empty", "")
    store.store("binary", b"\xff cat")
    store.store("cut", ("x" * (limits.EMBEDDED_BYTES_MAX - 1)).encode() + "é cat".encode())
    assert {"empty", "binary"}.isdisjoint(ids(found(strategy, ask("a cat"), store.view())))
    assert found(strategy, ask("?!"), store.view()) == ()


def test_names_count() -> None:
    """A part is found by what it is called, also if its body does not say it; another name is another vector."""
    store, kept = Store(), EmbeddingIndex("p", load())
    store.store("a", "return 1", metadata={"name": "Budget"})
    kept.catch_up(store.view())
    before = kept.similarities("budget")[0]
    store.store("a", "return 1", metadata={"name": "Weather"})
    kept.catch_up(store.view())
    assert before > kept.similarities("budget")[0]


def test_only_what_changed_is_read(strategy: SemanticStrategy) -> None:
    """Another tier is no other meaning: the body is not looked at again."""
    store = library()
    expected = found(strategy, ask("a cat"), store.view())
    store.demote("cat")
    store.lose_body("cat")
    assert found(strategy, ask("a cat"), store.view()) == expected
    with pytest.raises(BodyGone):
        found(SemanticStrategy(), ask("a cat"), store.view())


def test_confidence(strategy: SemanticStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Less in a project with code, and nothing to say without a query, and where there is nothing or too much."""
    view = library().view()
    assert CONFIDENCE_IN_CODE < strategy.can_handle(ask("a cat"), view) < CONFIDENCE
    assert strategy.can_handle(ask(" "), view) == 0
    assert strategy.can_handle(ask("a cat"), Store().view()) == 0
    monkeypatch.setattr(limits, "SEMANTIC_FRAGMENTS_MAX", 2)
    assert strategy.can_handle(ask("a cat"), view) == 0
    assert found(strategy, ask("a cat"), view) == ()


def test_without_a_model(strategy: SemanticStrategy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and how to get one, and nothing else."""
    assert "pip install" not in strategy.explain()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    view = library().view()
    assert strategy.can_handle(ask("a cat"), view) == 0
    assert found(strategy, ask("a cat"), view) == ()
    assert "pip install 'stepwell[semantic]'" in strategy.explain()


def test_other_libraries_stay_silent() -> None:
    """The model's package would have every library's messages on standard error."""
    before = list(logging.getLogger().handlers)
    load()
    assert logging.getLogger().handlers == before


def test_its_interface(strategy: SemanticStrategy) -> None:
    assert isinstance(strategy, Strategy)
    assert "means the same" in strategy.explain()
    assert load()("").tolist() == [0] * DIMENSIONS
