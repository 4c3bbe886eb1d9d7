"""One question to many fragments: the assembled answer, compared with two engines that only search for words.

bm25s and SQLite's FTS5 run in the same process and give ids. `client.assemble` asks every strategy that the workers
offer, in two processes, fuses and packs what they find, renders it and keeps a receipt; `keyword` is that one strategy
alone, asked in the same way. What is timed: the first answer, with all that has to be indexed for it; further ones; and
those after 100 fragments were added, and after 100 were changed, with the adding and the changing.

A million fragments are short ones, in one worker, beside FTS5 alone, and none is added or changed: everything else
would take more than 6 GB and several minutes. There, `semantic` finds nothing (`limits.SEMANTIC_FRAGMENTS_MAX`).

The memory is that of the index of words: the arrays that a worker has of it, without rows and bodies, which the manager
and the view have, and without the indexes of other strategies.
"""

from __future__ import annotations

import re
import sqlite3
import statistics
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Final, Protocol, cast

import bm25s
import numpy as np
from msgspec import Struct

import stepwell as sw
from benchmarks.fill import store_all
from benchmarks.section import Figures, Goal, Section
from benchmarks.vocabulary import spelled
from stepwell.strategies.index.index_cache import Bm25IndexCache
from stepwell.strategies.protocol import StrategyView

CHANGES: Final = 100
QUESTIONS: Final = 20  # in each round
RESULTS: Final = 100

INDEX_SHARE_MAX: Final = 1.5
"""The memory of the index of words, as a multiple of the text."""
ADDING_SHARE_MAX: Final = 0.1
"""The share of the first answer's time that adding and asking may take. Rebuilding the index would take all of it."""

_ASSEMBLE, _KEYWORD, _BM25S, _FTS5 = "stepwell, assemble", "stepwell, keyword", "bm25s", "SQLite FTS5"
_FIRST, _WARM, _ADDED, _CHANGED = "the first question", "a further one", f"{CHANGES} added", f"{CHANGES} changed"
_COMMON: Final = (
    *("the", "of", "and", "to", "in", "is", "it", "that", "for", "what", "did", "they", "about", "as", "with", "was"),
    *("how", "where", "does", "are", "when"),
)

_WORDS: Final = "index of words"
_DEADLINE_SECONDS: Final = (
    300.0  # of a strategy: the first question to a million fragments takes long on a busy machine
)
_TEXTS_AT_ONCE: Final = 10_000

Texts = dict[str, str]
Values = dict[tuple[str, str], list[float]]  # by work and contender


class Size(Struct, frozen=True, kw_only=True):
    """Fragments to ask, and how: `contenders` take part, and `is_changed` is true if fragments are added and changed.

    `question_ms_max` is the goal of a further question, if there is one.
    """

    fragments: int
    words: int = 100
    workers: int = 2
    contenders: tuple[str, ...] = (_ASSEMBLE, _KEYWORD, _BM25S, _FTS5)
    is_changed: bool = True
    question_ms_max: float | None = None

    @property
    def works(self) -> tuple[str, ...]:
        return (_FIRST, _WARM, _ADDED, _CHANGED) if self.is_changed else (_FIRST, _WARM)

    def __str__(self) -> str:
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        return f"Questions to {self.fragments:,} fragments of {self.words} words, {workers}"


def million(fragments: int = 1_000_000) -> Size:
    """Return the size at which only one worker and one peer take part."""
    return Size(
        fragments=fragments,
        words=20,
        workers=1,
        contenders=(_ASSEMBLE, _FTS5),
        is_changed=False,
        question_ms_max=300.0,
    )


SIZES: Final = (Size(fragments=10_000), Size(fragments=100_000, question_ms_max=60.0), million())


class Engine(Protocol):
    """A search engine: `add` stores new texts or replaces known ones, `ask` searches them."""

    def add(self, texts: Texts) -> None: ...
    def ask(self, question: str) -> int:
        """Return the number of texts that were found."""
        ...


class Corpus:
    """A generator of texts whose words are distributed as in a natural language; the same in each run."""

    def __init__(self, words_per_text: int, words: int = 50_000) -> None:
        self._words_per_text = words_per_text
        self._random = np.random.default_rng(6)
        self._vocabulary = np.array([*_COMMON, *(spelled(number) for number in range(words - len(_COMMON)))])
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
        found: Texts = {}
        for first in range(0, len(numbers), _TEXTS_AT_ONCE):
            some = numbers[first : first + _TEXTS_AT_ONCE]
            chosen = self._random.choice(self._vocabulary, (len(some), self._words_per_text), p=self._shares)
            ids = (f"doc/{number // 100}#{number}" for number in some)
            found |= zip(ids, map(" ".join, chosen.tolist()), strict=True)
        return found

    def question(self) -> str:
        """Return a few words of medium frequency among common ones."""
        common = self._random.choice(_COMMON, 5).tolist()
        return " ".join([*common, *self._random.choice(self._vocabulary[100:10_000], 4).tolist()]) + "?"


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
        request = sw.ContextRequest(projects=self._client.projects or (), query=question)
        answer = self._client.assemble(request, deadline_s=_DEADLINE_SECONDS)
        assert not any(each.failure for each in answer.strategies), answer.strategies
        return len(answer.fragments)

    def index_bytes(self) -> int:
        """Return the size of the index of words, as a worker makes it of the same fragments."""
        assert self._client.projects is not None
        (project,) = self._client.projects
        view = cast("StrategyView", self._client.view())
        return Bm25IndexCache().content(view, project).array_bytes


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
def engines(size: Size) -> Generator[dict[str, Engine]]:
    """Yield the engines that take part, empty. Each stepwell engine has its own workers."""
    found: dict[str, Engine] = {}
    with ExitStack() as stack:
        for name in size.contenders:
            if name == _BM25S:
                found[name] = Bm25s()
            elif name == _FTS5:
                found[name] = Fts5(stack.enter_context(closing(sqlite3.connect(":memory:"))))
            else:
                budget = sw.TierBudget(hot_tokens=100_000_000)
                runtime = stack.enter_context(sw.Runtime.start(workers=size.workers, budget=budget))
                kind = Assemble if name == _ASSEMBLE else Keyword
                found[name] = kind(stack.enter_context(runtime.client(projects=["p"])))
        yield found


def run(rounds: int, sizes: Sequence[Size] = SIZES, questions: int = QUESTIONS) -> list[Section]:
    """Return the milliseconds per question, the time after changes as a share of the first, and the index's memory."""
    return [section for size in sizes for section in _sections(size, _measured(rounds, size, questions))]


def _sections(size: Size, values: Values) -> Iterator[Section]:
    """Yield the tables of one size."""
    title, has_goals = str(size), size.question_ms_max is not None
    share = Figures(_WORDS, _KEYWORD, tuple(values.pop((_WORDS, _KEYWORD), ())))
    figures = tuple(Figures(*key, tuple(found)) for key, found in values.items())
    warm = [Goal(_WARM, _ASSEMBLE, "at most", size.question_ms_max)] if size.question_ms_max is not None else []
    yield Section(title=title, unit="ms", figures=figures, goals=tuple(warm))
    if not size.is_changed:
        return
    medians = {each.contender: each.median for each in figures if each.work == _FIRST}
    shares = tuple(
        Figures(each.work, each.contender, tuple(value / medians[each.contender] for value in each.values))
        for each in figures
        if each.work in {_ADDED, _CHANGED}
    )
    adding = Goal(_ADDED, _ASSEMBLE, "at most", ADDING_SHARE_MAX)
    yield Section(title=title, unit="of the first", figures=shares, goals=(adding,) if has_goals else ())
    memory = Goal(_WORDS, _KEYWORD, "at most", INDEX_SHARE_MAX)
    yield Section(title=f"{title}: memory", unit="of the text", figures=(share,), goals=(memory,))


def _measured(rounds: int, size: Size, questions: int) -> Values:
    """Measure each engine with each question. The first indexing counts; storing the first fragments does not.

    There is only one first question for each engine, and one index, so these have one value.
    """
    corpus = Corpus(size.words)
    with engines(size) as found:
        values: Values = {(work, name): [] for work in size.works for name in found}
        texts, question = corpus.texts(size.fragments), corpus.question()
        for name, engine in found.items():
            is_ours = isinstance(engine, Assemble)
            if is_ours:
                engine.add(texts)
            values[_FIRST, name].append(_timed_ms(engine, {} if is_ours else texts, question))
            if is_ours:
                _warm(engine, [corpus.question() for _ in range(questions)], size.workers)
            if isinstance(engine, Keyword):
                values[_WORDS, name] = [engine.index_bytes() / sum(map(len, texts.values()))]
        texts.clear()
        for _ in range(rounds):
            asked = [corpus.question() for _ in range(questions)]
            taken = [[_timed_ms(engine, {}, each) for engine in found.values()] for each in asked]
            for name, milliseconds in zip(found, zip(*taken, strict=True), strict=True):
                values[_WARM, name].append(statistics.median(milliseconds))
            if size.is_changed:
                _change(corpus, found, values)
    return values


def _change(corpus: Corpus, found: Mapping[str, Engine], values: Values) -> None:
    """Add fragments, and ask; change some, and ask again."""
    for work, texts in ((_ADDED, corpus.texts(CHANGES)), (_CHANGED, corpus.changed(CHANGES))):
        question = corpus.question()
        for name, engine in found.items():
            values[work, name].append(_timed_ms(engine, texts, question))


def _warm(engine: Engine, questions: list[str], workers: int) -> None:
    """Ask so many questions at once that every worker runs every strategy, because each worker has its own indexes."""
    with ThreadPoolExecutor(2 * workers) as executor:
        for _ in executor.map(engine.ask, questions):
            pass


def _timed_ms(engine: Engine, texts: Texts, question: str) -> float:
    begun = time.perf_counter()
    if texts:
        engine.add(texts)
    count = engine.ask(question)
    assert count
    return (time.perf_counter() - begun) * 1000
