"""The score stage: the value of a candidate, as a weighted sum.

Relevance counts 0.4, hierarchy (the parts around it) 0.3, quality 0.2 and recency 0.1. Quality is density: a short
fragment leaves room for another one. A test says much the same as the code that it tests, in more words, and a function
has several tests; unless the query asks for tests, they count less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, exp2
from typing import Final

from stepwell.assembly.candidate import Candidate, ScoredCandidate, Scores
from stepwell.assembly.inputs import Key
from stepwell.domain.tiers.model import HOT, FragmentRow
from stepwell.strategies.protocol import ContextRequest

RELEVANCE: Final = 0.4
HIERARCHY: Final = 0.3
QUALITY: Final = 0.2
RECENCY: Final = 0.1

LONG_TOKENS: Final = 600.0  # a fragment of this length has 1/e of the quality
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
        quality = exp(-each.row.tokens / LONG_TOKENS)
        if _is_test(each.row.source):
            quality *= test_quality
        recency = exp2(-max(0, now_ms - at_ms) / HALF_LIFE_MS)
        total = RELEVANCE * each.relevance + HIERARCHY * each.hierarchy + QUALITY * quality + RECENCY * recency
        scored.append(ScoredCandidate(each, Scores(total, each.relevance, each.hierarchy, quality, recency)))
    return _ranked(scored)


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
