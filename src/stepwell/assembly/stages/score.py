"""The score stage: the value of a candidate, as a weighted sum.

Relevance counts 0.4, hierarchy (the parts around it) 0.3, quality 0.2 and recency 0.1. Quality is density: a short
fragment leaves room for another one. A test says much the same as the code that it tests, in more words, and a function
has several tests; unless the query asks for tests, they count less.

That holds for turns of a conversation. Of code and prose, relevance counts nearly alone, and the other parts only
decide between equals: a definition or a section is written to be read alone, and neither its length nor its age tells
whether it is the one that is wanted. One rule for both keeps weak matches in documents from displacing code.

The quality of a turn of a conversation is the part of its tokens that is its own text: its speaker and its line take
room, too, and in a budget many turns of a word or two show less than a few longer ones.

A fragment that every strategy ranks first is first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, exp2, inf, nextafter
from typing import Final

from msgspec.structs import replace

from stepwell.assembly.candidate import Candidate, ScoredCandidate, Scores
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.dedupe import TURN
from stepwell.domain.tiers.model import HOT, FragmentRow
from stepwell.strategies.protocol import ContextRequest

RELEVANCE: Final = 0.4
HIERARCHY: Final = 0.3
QUALITY: Final = 0.2
RECENCY: Final = 0.1
ALONE_RELEVANCE: Final = 0.95  # of a fragment that is written to be read alone
ALONE_OTHER: Final = 0.05  # of the other parts together, each in proportion to its weight above

LONG_TOKENS: Final = 600.0  # a fragment of this length has 1/e of the quality
TURN_LAYOUT_TOKENS: Final = 4.0  # that a turn takes besides its text: the speaker, and the end of the line
TEST_QUALITY: Final = 0.4  # times the quality of other code
HALF_LIFE_MS: Final = 24 * 60 * 60 * 1000

_TEST: Final = re.compile(
    r"(?:^|/)(?:tests?|specs?|__tests__|testdata|fixtures|features)/|(?:^|/)(?:test_[^/]*|[^/]*[._-](?:test|spec))\.\w+$",
    re.IGNORECASE,
)
_ASKS_FOR_TESTS: Final = re.compile(r"\b(?:tests?|tested|testing|specs?|scenarios?|fixtures?)\b", re.IGNORECASE)

Score = Callable[[ContextRequest, Sequence[Candidate]], tuple[ScoredCandidate, ...]]
"""A function of the request and the candidates to scored candidates, the best first."""


def balanced(request: ContextRequest, candidates: Sequence[Candidate]) -> tuple[ScoredCandidate, ...]:
    """Return all candidates with all four parts, the best first; ties by project and id.

    Without `as_of_ms`, now is the latest write of all candidates.
    """
    written_ms = [_written_ms(each.row) for each in candidates]
    now_ms = max(written_ms, default=0) if request.as_of_ms is None else request.as_of_ms
    test_quality = 1.0 if _ASKS_FOR_TESTS.search(request.query) else TEST_QUALITY
    scored: list[ScoredCandidate] = []
    for each, at_ms in zip(candidates, written_ms, strict=True):
        quality = _density(each.row) * (test_quality if _is_test(each.row.source) else 1.0)
        recency = exp2(-max(0, now_ms - at_ms) / HALF_LIFE_MS)
        total = _total(each, quality, recency)
        scored.append(ScoredCandidate(each, Scores(total, each.relevance, each.hierarchy, quality, recency)))
    return _ranked(_with_unanimous_first(scored))


def _density(row: FragmentRow) -> float:
    """Return the quality of a fragment by its length: of a turn, the part that is text; else less if it is long."""
    if row.kind == TURN:
        return row.tokens / (row.tokens + TURN_LAYOUT_TOKENS)
    return exp(-row.tokens / LONG_TOKENS)


def _total(candidate: Candidate, quality: float, recency: float) -> float:
    """Return the sum of the four parts."""
    if candidate.row.kind == TURN:
        return RELEVANCE * candidate.relevance + HIERARCHY * candidate.hierarchy + QUALITY * quality + RECENCY * recency
    others = HIERARCHY * min(1.0, candidate.hierarchy) + QUALITY * quality + RECENCY * recency
    return ALONE_RELEVANCE * candidate.relevance + ALONE_OTHER * others


def _with_unanimous_first(scored: Sequence[ScoredCandidate]) -> list[ScoredCandidate]:
    """Return the candidates, the one that every strategy ranks first with a total above all others, if there is one."""
    strategies = {vote.strategy for each in scored for vote in each.candidate.votes}
    best = max((each.scores.total for each in scored), default=0.0)
    found: list[ScoredCandidate] = []
    for each in scored:
        firsts = {vote.strategy for vote in each.candidate.votes if vote.rank == 1}
        is_unanimous = bool(strategies) and firsts == strategies and each.scores.total <= best
        total = nextafter(best, inf) if is_unanimous else each.scores.total
        found.append(replace(each, scores=replace(each.scores, total=total)) if is_unanimous else each)
    return found


def relevance(request: ContextRequest, candidates: Sequence[Candidate]) -> tuple[ScoredCandidate, ...]:  # noqa: ARG001 - the others' signature
    """Return all candidates with their relevance as the only part."""
    return _ranked(
        [ScoredCandidate(each, Scores(each.relevance, each.relevance, 0.0, 0.0, 0.0)) for each in candidates]
    )


def _ranked(scored: list[ScoredCandidate]) -> tuple[ScoredCandidate, ...]:
    return tuple(sorted(scored, key=_rank))


def _rank(scored: ScoredCandidate) -> tuple[float, float, Key]:
    return -scored.scores.total, -scored.scores.relevance, scored.candidate.key


@lru_cache(maxsize=1_024)
def _is_test(source: str) -> bool:
    """Return True if a source is a test, by its path. The cache helps because many fragments have the same source."""
    return _TEST.search(source) is not None


def _written_ms(row: FragmentRow) -> int:
    """Return the time of the last write, as exactly as one row can tell.

    A hot fragment was written or used when it arrived in its tier; any other arrival is a demotion, which is no write.
    """
    return row.placed_at_ms if row.tier is HOT else row.created_at_ms


COMPONENTS: Final[dict[str, Score]] = {"balanced": balanced, "relevance": relevance}
