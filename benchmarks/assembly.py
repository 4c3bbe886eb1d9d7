"""One question to many fragments: the assembled answer, compared with two engines that only search for words.

bm25s and SQLite's FTS5 run in the same process and give ids. `client.assemble` asks every strategy that the workers
offer, in two processes, fuses and packs what they find, renders it and keeps a receipt; `keyword` is that one strategy
alone, asked in the same way. What is timed: the first answer, with all that has to be indexed for it; further ones; and
those after 100 fragments were added, and after 100 were changed, with the adding and the changing.
"""

from __future__ import annotations

import re
import sqlite3
import statistics
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Protocol

import bm25s
import numpy as np

import stepwell as sw
from benchmarks.fill import store_all
from benchmarks.section import Figures, Goal, Section

FRAGMENTS: Final = (10_000, 100_000)
WORDS_PER_FRAGMENT: Final = 100
CHANGES: Final = 100
QUESTIONS: Final = 20  # in each round
WORKERS: Final = 2
RESULTS: Final = 100

QUESTION_MS_MAX: Final = 100.0
ADDING_SHARE_MAX: Final = 0.1
"""The share of the first answer's time that adding and asking may take. Rebuilding the index would take all of it."""

_ASSEMBLE, _KEYWORD, _BM25S, _FTS5 = "stepwell, assemble", "stepwell, keyword", "bm25s", "SQLite FTS5"
_FIRST, _WARM, _ADDED, _CHANGED = "the first question", "a further one", f"{CHANGES} added", f"{CHANGES} changed"
_COMMON: Final = (
    *("the", "of", "and", "to", "in", "is", "it", "that", "for", "what", "did", "they", "about", "as", "with", "was"),
    *("how", "where", "does", "are", "when"),
)

Texts = dict[str, str]
Values = dict[tuple[str, str], list[float]]  # by work and contender


class Engine(Protocol):
    """A search engine: `add` stores new texts or replaces known ones, `ask` searches them."""

    def add(self, texts: Texts) -> None: ...
    def ask(self, question: str) -> int:
        """Return the number of texts that were found."""
        ...


class Corpus:
    """A generator of texts whose words are distributed as in a natural language; the same in each run."""

    def __init__(self, words: int = 50_000) -> None:
        self._random = np.random.default_rng(6)
        self._vocabulary = np.array([*_COMMON, *(_spelled(number) for number in range(words - len(_COMMON)))])
        weights = 1 / (np.arange(words) + 2.7)
        self._shares = weights / weights.sum()
        self._count = 0

    def texts(self, count: int) -> Texts:
        """Return `count` new texts, by id."""
        first, self._count = self._count, self._count + count
        return self._texts(range(first, first + count))

    def changed(self, count: int) -> Texts:
        """Return new texts for `count` of the existing ids."""
        return self._texts(self._random.choice(self._count, count, replace=False).tolist())

    def _texts(self, numbers: Sequence[int]) -> Texts:
        chosen = self._random.choice(self._vocabulary, (len(numbers), WORDS_PER_FRAGMENT), p=self._shares)
        ids = (f"doc/{number // 100}#{number}" for number in numbers)
        return dict(zip(ids, map(" ".join, chosen.tolist()), strict=True))

    def question(self) -> str:
        """Return a few words of medium frequency among common ones."""
        common = self._random.choice(_COMMON, 5).tolist()
        return " ".join([*common, *self._random.choice(self._vocabulary[100:10_000], 4).tolist()]) + "?"


def _spelled(number: int) -> str:
    """Return a pronounceable word, a different one for each number."""
    word = ""
    while True:
        number, part = divmod(number, 80)
        word += "bcdfglmnprstvzkh"[part // 5] + "aeiou"[part % 5]
        if not number:
            return word + "n"


class Assemble:
    """`client.assemble` with all strategies."""

    def __init__(self, client: sw.Client) -> None:
        self._client = client

    def add(self, texts: Texts) -> None:
        fragments = (
            sw.Fragment(fragment_id=each, source=each.partition("#")[0], body=body, tokens=len(body) // 4)
            for each, body in texts.items()
        )
        store_all(self._client, fragments)

    def ask(self, question: str) -> int:
        answer = self._client.assemble(sw.ContextRequest(projects=self._client.projects or (), query=question))
        assert not any(each.failure for each in answer.strategies), answer.strategies
        return len(answer.fragments)


class Keyword(Assemble):
    """The keyword strategy alone."""

    def ask(self, question: str) -> int:
        request = sw.ContextRequest(projects=self._client.projects or (), query=question)
        return len(self._client.strategies.submit("keyword", request).result().fragments)


class Bm25s:
    """bm25s: it computes all scores when its index is built, and has to be rebuilt for each new text."""

    def __init__(self) -> None:
        self._tokens: dict[str, list[str]] = {}
        self._made: bm25s.BM25 | None = None

    def add(self, texts: Texts) -> None:
        self._tokens |= {each: _words(text) for each, text in texts.items()}
        self._made = bm25s.BM25(method="lucene")
        self._made.index([*self._tokens.values()], show_progress=False)

    def ask(self, question: str) -> int:
        assert self._made is not None
        scores = self._made.get_scores(_words(question))
        best = np.argpartition(scores, -RESULTS)[-RESULTS:]
        return int(np.count_nonzero(scores[best]))


class Fts5:
    """SQLite's FTS5, in memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE VIRTUAL TABLE texts USING fts5(id UNINDEXED, body)")

    def add(self, texts: Texts) -> None:
        rows = ((int(each.rpartition("#")[2]), each, text) for each, text in texts.items())
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO texts (rowid, id, body) VALUES (?, ?, ?)", rows)

    def ask(self, question: str) -> int:
        query = "SELECT id FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?"
        return len(self._connection.execute(query, (" OR ".join(_words(question)), RESULTS)).fetchall())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@contextmanager
def engines() -> Generator[dict[str, Engine]]:
    """Yield all engines, empty. Each stepwell engine has its own workers."""
    found: dict[str, Engine] = {}
    with ExitStack() as stack:
        for name, kind in ((_ASSEMBLE, Assemble), (_KEYWORD, Keyword)):
            budget = sw.TierBudget(hot_tokens=100_000_000)
            runtime = stack.enter_context(sw.Runtime.start(workers=WORKERS, budget=budget))
            found[name] = kind(stack.enter_context(runtime.client(projects=["p"])))
        found[_BM25S] = Bm25s()
        found[_FTS5] = Fts5(stack.enter_context(closing(sqlite3.connect(":memory:"))))
        yield found


def run(rounds: int, sizes: Sequence[int] = FRAGMENTS, questions: int = QUESTIONS) -> list[Section]:
    """Return the milliseconds per question. Goals bound the time after changes, as a share of the first."""
    sections: list[Section] = []
    for size in sizes:
        values = _measured(rounds, size, questions)
        medians = {contender: statistics.median(values[_FIRST, contender]) for _, contender in values}
        shares = [
            Figures(work, contender, tuple(each / medians[contender] for each in found))
            for (work, contender), found in values.items()
            if work in {_ADDED, _CHANGED}
        ]
        figures = tuple(Figures(*key, tuple(found)) for key, found in values.items())
        title = f"Questions to {size:,} fragments of {WORDS_PER_FRAGMENT} words, {WORKERS} workers"
        warm, adding = (
            Goal(work, _ASSEMBLE, "at most", value)
            for work, value in ((_WARM, QUESTION_MS_MAX), (_ADDED, ADDING_SHARE_MAX))
        )
        is_last = size == sizes[-1]
        sections += (
            Section(title=title, unit="ms", figures=figures, goals=(warm,) if is_last else ()),
            Section(title=title, unit="of the first", figures=tuple(shares), goals=(adding,) if is_last else ()),
        )
    return sections


def _measured(rounds: int, fragments: int, questions: int) -> Values:
    """Measure each engine with each question. The first indexing counts; storing the first fragments does not.

    There is only one first question for each engine, so it has one value.
    """
    corpus = Corpus()
    with engines() as found:
        values: Values = {(work, name): [] for work in (_FIRST, _WARM, _ADDED, _CHANGED) for name in found}
        texts, question = corpus.texts(fragments), corpus.question()
        for name, engine in found.items():
            is_ours = isinstance(engine, Assemble)
            if is_ours:
                engine.add(texts)
            values[_FIRST, name].append(_timed_ms(engine, {} if is_ours else texts, question))
            if is_ours:
                _warm(engine, [corpus.question() for _ in range(questions)])
        for _ in range(rounds):
            asked = [corpus.question() for _ in range(questions)]
            taken = [[_timed_ms(engine, {}, each) for engine in found.values()] for each in asked]
            for name, milliseconds in zip(found, zip(*taken, strict=True), strict=True):
                values[_WARM, name].append(statistics.median(milliseconds))
            for work, texts in ((_ADDED, corpus.texts(CHANGES)), (_CHANGED, corpus.changed(CHANGES))):
                question = corpus.question()
                for name, engine in found.items():
                    values[work, name].append(_timed_ms(engine, texts, question))
    return values


def _warm(engine: Engine, questions: list[str]) -> None:
    """Ask so many questions at once that every worker runs every strategy, because each worker has its own indexes."""
    with ThreadPoolExecutor(2 * WORKERS) as executor:
        for _ in executor.map(engine.ask, questions):
            pass


def _timed_ms(engine: Engine, texts: Texts, question: str) -> float:
    begun = time.perf_counter()
    if texts:
        engine.add(texts)
    count = engine.ask(question)
    assert count
    return (time.perf_counter() - begun) * 1000
