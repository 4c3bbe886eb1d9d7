"""The rank stage: the order in which candidates are packed, and the candidates that are not shown at all.

- A fragment that every strategy ranks first is the first.
- Matches come next, by score. A match is a fragment that a strategy which looks at the question has named. What is only
  similar in meaning is a match beside others: some fragment is the most similar one to every question.
- Other parts of the same sources come last: beside a better-scored match they would only take its room.

The stop score ends an answer before its budget is filled with what does not matter: a match with less than that part
of the best score is left out, and so is all that is no match. A short and recent fragment has much of its score without
regard to the question, so a match also needs `EVIDENCE_PART` of that part of what the best one has from relevance and
hierarchy. Turns of a conversation are an exception: they rank by score alone and never stop, because the evidence of a
conversation is spread over many turns, each with a low score.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.assembly.candidate import Allotment, Candidate, ScoredCandidate, Scores
from stepwell.assembly.inputs import Key
from stepwell.assembly.stages.allocate import capabilities_by_name
from stepwell.assembly.stages.dedupe import TURN
from stepwell.assembly.stages.score import HIERARCHY, RELEVANCE
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo

VOICE_MIN: Final = 0.05  # of the largest weight: a strategy with less has no say in which fragment is the first
NAMED_PART: Final = 0.25  # of the stop score: a file whose best match reaches it may be named
EVIDENCE_PART: Final = 0.4  # times the stop score; measured: it costs no hit, and stops after a single good match

QUERY: Final = "query"
MEANING: Final = "meaning"
"""The capabilities of strategies that look for the words of a question, and for the same meaning in other words."""

NO_MATCH: Final = "it does not match the question"
BELOW_STOP: Final = "its score is below the stop score"


class RankedCandidates(Struct, frozen=True):
    """The candidates in the order of packing, of which the first `matches` are matches.

    `left_out` has the others, which are not to be shown, and `reasons` says why, by key. `further` has those of them
    that are not far below the stop score: their files may be named.
    """

    order: tuple[ScoredCandidate, ...]
    matches: int
    left_out: tuple[ScoredCandidate, ...] = ()
    reasons: Mapping[Key, str] = {}
    further: tuple[ScoredCandidate, ...] = ()


class RankContext(Struct, frozen=True):
    """The inputs of ranking besides the candidates.

    `results` are all that strategies returned, also without any fragment; `allotments` are those that are used.
    """

    request: ContextRequest
    results: Sequence[StrategyResult]
    allotments: Sequence[Allotment]
    offers: Sequence[StrategyInfo]


Rank = Callable[[RankContext, Sequence[ScoredCandidate]], RankedCandidates]
"""A function to the order of packing from all candidates, the best first."""


def matches_first(context: RankContext, scored: Sequence[ScoredCandidate]) -> RankedCandidates:
    """Return the matches whose scores reach the stop score; with a stop score of 0, everything."""
    request, answering = context.request, _answering(context)
    voices = _voices(context.allotments, answering)
    leader = next((each for each in scored if _is_first_for_all(each.candidate, voices)), None)
    is_match = [any(vote.strategy in answering for vote in each.candidate.votes) for each in scored]
    has_match = any(is_match)
    stop = _Stop(request.stop_score, [each.scores for each, matches in zip(scored, is_match, strict=True) if matches])
    first: list[ScoredCandidate] = [] if leader is None else [leader]
    others: list[ScoredCandidate] = []
    left_out: list[ScoredCandidate] = []
    reasons: dict[Key, str] = {}
    for each, matches in zip(scored, is_match, strict=True):
        if each is leader:
            continue
        is_turn = each.candidate.row.kind == TURN and has_match
        reason = "" if is_turn else stop.reason(each.scores, is_match=matches)
        if reason:
            left_out.append(each)
            reasons[each.candidate.key] = reason
        elif matches or is_turn:
            first.append(each)
        else:
            others.append(each)
    further = tuple(each for each in left_out if stop.is_near(each.scores, reasons[each.candidate.key]))
    return RankedCandidates((*first, *others), len(first), tuple(left_out), reasons, further)


def by_score(context: RankContext, scored: Sequence[ScoredCandidate]) -> RankedCandidates:  # noqa: ARG001 - the others' signature
    """Return all candidates by score alone."""
    return RankedCandidates(tuple(scored), len(scored))


def _answering(context: RankContext) -> frozenset[str]:
    """Return the strategies whose fragments are matches; none if the words of the question occur nowhere."""
    known = capabilities_by_name(context.offers)
    answering = {
        each.result.strategy: known.get(each.result.strategy, frozenset())
        for each in context.allotments
        if each.answers
    }
    unmatched = (known.get(each.strategy, frozenset()) for each in context.results if not each.fragments)
    is_searched_in_vain = any(QUERY in each and MEANING not in each for each in unmatched)
    if is_searched_in_vain and all(MEANING in capabilities for capabilities in answering.values()):
        return frozenset()
    return frozenset(answering)


def _voices(allotments: Sequence[Allotment], answering: Container[str]) -> frozenset[str]:
    """Return the strategies whose fragments are matches and that have a say in which fragment is the first."""
    weights = {each.result.strategy: each.weight for each in allotments if each.result.strategy in answering}
    largest = max(weights.values(), default=0.0)
    return frozenset(name for name, weight in weights.items() if weight >= VOICE_MIN * largest)


def _is_first_for_all(candidate: Candidate, voices: frozenset[str]) -> bool:
    """Return True if every strategy that has a say ranks the candidate first."""
    return bool(voices) and voices <= {vote.strategy for vote in candidate.votes if vote.rank == 1}


class _Stop:
    """The scores that a match has to reach. It lives for one call."""

    def __init__(self, stop_score: float, matches: Sequence[Scores]) -> None:
        self._stop_score: Final = stop_score
        self._total_min: Final = stop_score * max((each.total for each in matches), default=0.0)
        self._evidence_min: Final = EVIDENCE_PART * stop_score * max(map(_evidence, matches), default=0.0)

    def reason(self, scores: Scores, *, is_match: bool) -> str:
        """Return why a candidate with these scores is left out; empty if it is not."""
        if not self._stop_score:
            return ""
        if not is_match:
            return NO_MATCH
        is_good = scores.total >= self._total_min and _evidence(scores) >= self._evidence_min
        return "" if is_good else BELOW_STOP

    def is_near(self, scores: Scores, reason: str) -> bool:
        """Return True if a candidate that is left out for a reason is a match not far below the stop score.

        A stop score of 1 asks for the best match alone.
        """
        return reason is BELOW_STOP and self._stop_score < 1 and scores.total >= NAMED_PART * self._total_min


def _evidence(scores: Scores) -> float:
    """Return the part of a score that depends on the question."""
    return RELEVANCE * scores.relevance + HIERARCHY * scores.hierarchy


COMPONENTS: Final[dict[str, Rank]] = {"matches": matches_first, "score": by_score}
