"""Score: what a candidate is worth, and for what.

0.4 for its relevance, 0.3 for its hierarchy (what it stands among), 0.2 for its quality and 0.1 for its recency.
Quality is how much of it is to the point: who takes a short one has room for another. A test says much the same as
what it tests, in more words, and of that one there are several: unless tests are asked for, it counts less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, exp2
from typing import Final

from stepwell.assembly.candidate import Candidate, Scored, Scores
from stepwell.assembly.inputs import Key
from stepwell.domain.tiers.model import HOT, FragmentRow
from stepwell.strategies.protocol import ContextRequest

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
    """All four. The best first; ties by project and id. Now is, if it is not given, when the newest was written."""
    written_ms = [_written_ms(each.row) for each in candidates]
    now_ms = max(written_ms, default=0) if request.as_of_ms is None else request.as_of_ms
    test_quality = 1.0 if _ASKS_FOR_TESTS.search(request.query) else TEST_QUALITY
    scored: list[Scored] = []
    for each, at_ms in zip(candidates, written_ms, strict=True):
        quality = exp(-each.row.tokens / LONG_TOKENS)
        if _is_test(each.row.source):
            quality *= test_quality
        recency = exp2(-max(0, now_ms - at_ms) / HALF_LIFE_MS)
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


@lru_cache(maxsize=1_024)  # many have the same source
def _is_test(source: str) -> bool:
    return _TEST.search(source) is not None


def _written_ms(row: FragmentRow) -> int:
    """As well as a row can tell: what is hot was written or used when it came there; any other move is no news."""
    return row.placed_at_ms if row.tier is HOT else row.created_at_ms


COMPONENTS: Final[dict[str, Score]] = {"balanced": balanced, "relevance": relevance}
