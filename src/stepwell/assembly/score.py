"""Score: what a candidate is worth, and for what.

0.4 for its relevance, 0.3 for its hierarchy (what it stands among), 0.2 for its quality and 0.1 for its recency.
Quality is how much of it is to the point: who takes a short one has room for another. A test says much the same as
what it tests, in more words, and of that one there are several: unless tests are asked for, it counts less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import exp, exp2
from typing import Final

from stepwell.assembly.candidate import Candidate, Scored, Scores
from stepwell.assembly.question import Key
from stepwell.domain.fragment import FragmentRow
from stepwell.domain.tier import HOT
from stepwell.strategies.base import ContextRequest

RELEVANCE: Final = 0.4
HIERARCHY: Final = 0.3
QUALITY: Final = 0.2
RECENCY: Final = 0.1

LONG_TOKENS: Final = 600.0  # what is as long as this has 1/e of the quality
TEST_QUALITY: Final = 0.4  # of what it would have
HALF_LIFE_MS: Final = 24 * 60 * 60 * 1000

_TEST: Final = re.compile(
    r"(?:^|/)(?:tests?|specs?|__tests__|testdata|fixtures|features)/|(?:^|/)(?:test_[^/]*|[^/]*[._-](?:test|spec))\.\w+$",
    re.IGNORECASE,
)
_ASKS_FOR_TESTS: Final = re.compile(r"\b(?:tests?|tested|testing|specs?|scenarios?|fixtures?)\b", re.IGNORECASE)

Score = Callable[[ContextRequest, Sequence[Candidate]], tuple[Scored, ...]]


def balanced(request: ContextRequest, candidates: Sequence[Candidate]) -> tuple[Scored, ...]:
    """All four. The best first; ties by project and id."""
    now_ms = _now_ms(request, candidates)
    test_quality = 1.0 if _ASKS_FOR_TESTS.search(request.query) else TEST_QUALITY
    scored: list[Scored] = []
    for each in candidates:
        quality = exp(-each.row.tokens / LONG_TOKENS)
        if _TEST.search(each.row.source):
            quality *= test_quality
        recency = exp2(-max(0, now_ms - _written_ms(each.row)) / HALF_LIFE_MS)
        total = RELEVANCE * each.relevance + HIERARCHY * each.hierarchy + QUALITY * quality + RECENCY * recency
        scored.append(Scored(each, Scores(total, each.relevance, each.hierarchy, quality, recency)))
    return _ranked(scored)


def relevance(request: ContextRequest, candidates: Sequence[Candidate]) -> tuple[Scored, ...]:  # noqa: ARG001 - the others' signature
    """What strategies think of it, and nothing else."""
    return _ranked([Scored(each, Scores(each.relevance, each.relevance, 0.0, 0.0, 0.0)) for each in candidates])


def _ranked(scored: list[Scored]) -> tuple[Scored, ...]:
    return tuple(sorted(scored, key=_rank))


def _rank(scored: Scored) -> tuple[float, float, Key]:
    return -scored.scores.total, -scored.scores.relevance, scored.candidate.key


def _now_ms(request: ContextRequest, candidates: Sequence[Candidate]) -> int:
    """What counts as now: what was asked for, or when the newest of them was written."""
    if request.as_of_ms is not None:
        return request.as_of_ms
    return max((_written_ms(each.row) for each in candidates), default=0)


def _written_ms(row: FragmentRow) -> int:
    """As well as a row can tell: what is hot was written or used when it came there; any other move is no news."""
    return row.placed_at_ms if row.tier is HOT else row.created_at_ms


COMPONENTS: Final[dict[str, Score]] = {"balanced": balanced, "relevance": relevance}
