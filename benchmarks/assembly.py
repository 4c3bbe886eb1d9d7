"""A question to 100,000 fragments: the whole answer, next to two engines that only look for its words.

bm25s and SQLite's FTS5 run in the same process and give ids. `client.assemble` asks every strategy that the workers
offer, in two processes, fuses and packs what they find, renders it and keeps a receipt; `keyword` is that one strategy
alone, asked in the same way. What is timed: the first answer, with all that has to be indexed for it; further ones; and
the one after 100 fragments were added, with the adding.
"""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import statistics
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Protocol

import bm25s
import numpy as np
from rich.console import Console
from rich.table import Table

import stepwell as sw

FRAGMENTS: Final = 100_000
WORDS_PER_FRAGMENT: Final = 100
ADDED: Final = 100
QUESTIONS: Final = 20  # in each round
WORKERS: Final = 2
RESULTS: Final = 100

QUESTION_SECONDS_MAX: Final = 0.1
ADDING_SHARE_MAX: Final = 0.1
"""What adding and asking may take of the first answer: one that builds its index anew takes all of it."""

_ASSEMBLE, _KEYWORD, _BM25S, _FTS5 = "stepwell, assemble", "stepwell, keyword", "bm25s", "SQLite FTS5"
_PHASES: Final = ("first", "warm", "added")
_COMMON: Final = (
    *("the", "of", "and", "to", "in", "is", "it", "that", "for", "what", "did", "they", "about", "as", "with", "was"),
    *("how", "where", "does", "are", "when"),
)

Texts = dict[str, str]
Seconds = dict[str, dict[str, list[float]]]


class Engine(Protocol):
    """Is given texts, and finds some of them."""

    def add(self, texts: Texts) -> None: ...
    def ask(self, question: str) -> int:
        """How many it has found."""
        ...


class Corpus:
    """Texts in which few words are most, as in any language; the same at each run."""

    def __init__(self, words: int = 50_000) -> None:
        self._random = np.random.default_rng(6)
        self._vocabulary = np.array([*_COMMON, *(_spelled(number) for number in range(words - len(_COMMON)))])
        weights = 1 / (np.arange(words) + 2.7)
        self._shares = weights / weights.sum()
        self._count = 0

    def texts(self, count: int) -> Texts:
        """So many more, with their ids."""
        chosen = self._random.choice(self._vocabulary, (count, WORDS_PER_FRAGMENT), p=self._shares)
        first, self._count = self._count, self._count + count
        return {f"doc/{number // 100}#{number}": " ".join(words) for number, words in enumerate(chosen.tolist(), first)}

    def question(self) -> str:
        """Some words that are not in every text, among those that are."""
        common = self._random.choice(_COMMON, 5).tolist()
        return " ".join([*common, *self._random.choice(self._vocabulary[100:10_000], 4).tolist()]) + "?"


def _spelled(number: int) -> str:
    """A word that can be pronounced, another one for each number."""
    word = ""
    while True:
        number, part = divmod(number, 80)
        word += "bcdfglmnprstvzkh"[part // 5] + "aeiou"[part % 5]
        if not number:
            return word + "n"


class Assemble:
    """All strategies, and everything that is done with what they find."""

    def __init__(self, client: sw.Client) -> None:
        self._client = client

    def add(self, texts: Texts) -> None:
        self._client.tiers.store_many(
            sw.Fragment(fragment_id=each, source=each.partition("#")[0], body=body, tokens=len(body) // 4)
            for each, body in texts.items()
        )

    def ask(self, question: str) -> int:
        answer = self._client.assemble(sw.ContextRequest(projects=self._client.projects or (), query=question))
        assert not any(each.failure for each in answer.strategies), answer.strategies
        return len(answer.fragments)


class Keyword(Assemble):
    """One strategy."""

    def ask(self, question: str) -> int:
        request = sw.ContextRequest(projects=self._client.projects or (), query=question)
        return len(self._client.strategies.submit("keyword", request).result().fragments)


class Bm25s:
    """Computes all scores when it is made, and has to be made again for another text."""

    def __init__(self) -> None:
        self._tokens: list[list[str]] = []
        self._made: bm25s.BM25 | None = None

    def add(self, texts: Texts) -> None:
        self._tokens += map(_words, texts.values())
        self._made = bm25s.BM25(method="lucene")
        self._made.index(self._tokens, show_progress=False)

    def ask(self, question: str) -> int:
        assert self._made is not None
        scores = self._made.get_scores(_words(question))
        best = np.argpartition(scores, -RESULTS)[-RESULTS:]
        return int(np.count_nonzero(scores[best]))


class Fts5:
    """In memory."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute("CREATE VIRTUAL TABLE texts USING fts5(id UNINDEXED, body)")

    def add(self, texts: Texts) -> None:
        with self._connection:
            self._connection.executemany("INSERT INTO texts VALUES (?, ?)", texts.items())

    def ask(self, question: str) -> int:
        query = "SELECT id FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?"
        return len(self._connection.execute(query, (" OR ".join(_words(question)), RESULTS)).fetchall())


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@contextmanager
def engines() -> Generator[dict[str, Engine]]:
    """All of them, empty. Each of ours has workers of its own."""
    found: dict[str, Engine] = {}
    with ExitStack() as stack:
        for name, kind in ((_ASSEMBLE, Assemble), (_KEYWORD, Keyword)):
            budget = sw.TierBudget(hot_tokens=100_000_000)
            runtime = stack.enter_context(sw.Runtime.start(workers=WORKERS, budget=budget))
            found[name] = kind(stack.enter_context(runtime.client(projects=["p"])))
        found[_BM25S] = Bm25s()
        found[_FTS5] = Fts5(stack.enter_context(closing(sqlite3.connect(":memory:"))))
        yield found


def measure(rounds: int, fragments: int = FRAGMENTS) -> Seconds:
    """Everybody has their turn with each question. Storing the first fragments does not count for us, but indexing."""
    corpus = Corpus()
    with engines() as found:
        seconds: Seconds = {name: {phase: [] for phase in _PHASES} for name in found}
        texts, question = corpus.texts(fragments), corpus.question()
        for name, engine in found.items():
            is_ours = isinstance(engine, Assemble)
            if is_ours:
                engine.add(texts)
            seconds[name]["first"].append(_timed(engine, {} if is_ours else texts, question))
            if is_ours:
                _warm(engine, [corpus.question() for _ in range(QUESTIONS)])
        for _ in range(rounds):
            for question in [corpus.question() for _ in range(QUESTIONS)]:
                for name, engine in found.items():
                    seconds[name]["warm"].append(_timed(engine, {}, question))
            texts, question = corpus.texts(ADDED), corpus.question()
            for name, engine in found.items():
                seconds[name]["added"].append(_timed(engine, texts, question))
    return seconds


def _warm(engine: Engine, questions: list[str]) -> None:
    """So many at once that every worker has to answer with every strategy: each has indexes of its own."""
    with ThreadPoolExecutor(2 * WORKERS) as executor:
        for _ in executor.map(engine.ask, questions):
            pass


def _timed(engine: Engine, texts: Texts, question: str) -> float:
    begun = time.perf_counter()
    if texts:
        engine.add(texts)
    count = engine.ask(question)
    assert count
    return time.perf_counter() - begun


def report(seconds: Seconds) -> None:
    """A table on the terminal."""
    machine = f"{WORKERS} workers, {os.cpu_count()} cores, Python {platform.python_version()}"
    table = Table(title=f"questions to {FRAGMENTS:,} fragments of {WORDS_PER_FRAGMENT} words, {machine}")
    table.add_column("who answers")
    for column in ("first, s", "median ms", "90 % ms", f"{ADDED} added, median ms"):
        table.add_column(column, justify="right")
    for name, phases in seconds.items():
        table.add_row(
            name,
            f"{statistics.median(phases['first']):.1f}",
            f"{statistics.median(phases['warm']) * 1000:.1f}",
            f"{statistics.quantiles(phases['warm'], n=10)[-1] * 1000:.1f}",
            f"{statistics.median(phases['added']) * 1000:.1f}",
        )
    Console(width=120).print(table)


def run(rounds: int) -> tuple[Seconds, list[str]]:
    """Measure and report; the seconds, and what is past its bound."""
    seconds = measure(rounds)
    report(seconds)
    return seconds, [*_past(seconds[_ASSEMBLE])]


def _past(phases: dict[str, list[float]]) -> Iterable[str]:
    first, warm, added = (statistics.median(phases[phase]) for phase in _PHASES)
    if warm > QUESTION_SECONDS_MAX:
        yield f"a question to {FRAGMENTS:,} fragments took {warm:.3f} s, {QUESTION_SECONDS_MAX} is wanted"
    if added > ADDING_SHARE_MAX * first:
        yield f"{ADDED} more fragments and a question took {added:.3f} s, the first one {first:.1f}: it was built anew"
