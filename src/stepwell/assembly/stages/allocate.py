"""The allocate stage: the weight of each strategy.

A strategy that ignores the query (recency, say) has an opinion on every fragment. Beside a strategy that looks at the
query it gets next to no weight: it fills the room that is left, and displaces no hit.

A strategy that declares no capabilities, such as a plain function, may look at the query or not. All of them together
weigh at most `UNDECLARED_SHARE` of the strongest strategy that declares that it looks at what is asked. Each opinion is
at most 1, whatever the scale of the scores is. So a fragment that only undeclared strategies name stays behind the best
hit of the strongest one, and only a hit that is nearly as good can overtake that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Final

from stepwell.assembly.candidate import Allotment, SelectedResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo

QUALITIES: Final[Mapping[str, float]] = {"semantic": 0.8}
"""The weight of a strategy's opinion beside that of one that finds the very words; measured."""
UNFOCUSED: Final[Mapping[str, float]] = {"graph": 0.1}
"""The same for a request without a focus: then the graph starts from the hits of others, and has little to add."""

QUERY_CAPABILITIES: Final = frozenset({"query", "focus", "plan"})
"""A strategy with one of these capabilities looks at what is asked."""
BUILT_IN: Final[Mapping[str, frozenset[str]]] = {
    "graph": frozenset({"focus", "query"}),
    "keyword": frozenset({"query"}),
    "plan-decision": frozenset({"plan"}),
    "recency": frozenset({"time"}),
    "semantic": frozenset({"meaning", "query"}),
    "tiered": frozenset({"tiers"}),
}
"""The capabilities of the built-in strategies that matter here, for requests whose offers are not known."""
QUERY_BLIND_QUALITY: Final = 0.02  # enough to order the fragments that no other strategy names
UNDECLARED_SHARE: Final = 0.25  # of the strongest other strategy: enough to reorder hits that are nearly as good
WORTH_MIN: Final = 1e-9  # of all strategies together: below it, none is surer than another

CANDIDATE_TOKENS_MIN: Final = 16_384
"""The tokens of fragments that a strategy is asked for, at least.

Clusters of hits show only if there are enough hits, and a small budget would ask for few.
"""
CANDIDATE_RATIO: Final = 4  # times the budget: the tokens that a strategy is asked for, otherwise

Allocate = Callable[[ContextRequest, Sequence[SelectedResult], Sequence[StrategyInfo]], tuple[Allotment, ...]]
"""A function of the request, the selected results and the offers to allotments, in the order of the results."""


def candidate_tokens(budget_tokens: int) -> int:
    """Return how many tokens of fragments each strategy is asked for, so that the later stages have a choice."""
    return max(CANDIDATE_RATIO * budget_tokens, CANDIDATE_TOKENS_MIN)


def proportional(
    request: ContextRequest, chosen: Sequence[SelectedResult], offers: Sequence[StrategyInfo]
) -> tuple[Allotment, ...]:
    """Return weights in proportion to confidence and quality."""
    standings = _standings(request, chosen, offers)
    worth = [
        each.confidence * _quality(request, each.result.strategy, standing)
        for each, standing in zip(chosen, standings, strict=True)
    ]
    if sum(worth) < WORTH_MIN:
        worth = [1.0] * len(chosen)
    return _shared(chosen, _bounded(worth, standings), standings)


def equal(
    request: ContextRequest,
    chosen: Sequence[SelectedResult],
    offers: Sequence[StrategyInfo],
) -> tuple[Allotment, ...]:
    """Return the same weight for each strategy, whatever its confidence is."""
    return _shared(chosen, [1.0] * len(chosen), _standings(request, chosen, offers))


def capabilities_by_name(offers: Sequence[StrategyInfo]) -> Mapping[str, frozenset[str]]:
    """Return the capabilities of the offered strategies and, where they are not offered, of the built-in ones."""
    return {**BUILT_IN, **{each.name: frozenset(each.capabilities) for each in offers}}


class _Standing(Enum):
    """The relation of a strategy to the question: by its capabilities it looks at it, ignores it, or does not tell."""

    ANSWERS = auto()
    IGNORES = auto()
    UNDECLARED = auto()


def _shared(
    chosen: Sequence[SelectedResult], worth: Sequence[float], standings: Sequence[_Standing]
) -> tuple[Allotment, ...]:
    """Return the allotments of strategies whose contributions are worth so much."""
    total = sum(worth)
    return tuple(
        Allotment(each.result, each.confidence, part / total, standing is not _Standing.IGNORES)
        for each, part, standing in zip(chosen, worth, standings, strict=True)
    )


def _standings(
    request: ContextRequest, chosen: Sequence[SelectedResult], offers: Sequence[StrategyInfo]
) -> list[_Standing]:
    """Return the standing of each strategy, by the capabilities that it offers."""
    known = capabilities_by_name(offers)
    return [_standing(request, known.get(each.result.strategy, frozenset())) for each in chosen]


def _standing(request: ContextRequest, capabilities: frozenset[str]) -> _Standing:
    """Return the standing of a strategy. Without a question, all that declare anything answer as well as they can."""
    if not capabilities:
        return _Standing.UNDECLARED
    is_asked = bool(request.query.strip() or request.focus or request.plan)
    return _Standing.IGNORES if is_asked and not capabilities & QUERY_CAPABILITIES else _Standing.ANSWERS


def _quality(request: ContextRequest, name: str, standing: _Standing) -> float:
    """Return the quality of a strategy."""
    if standing is _Standing.IGNORES:
        return QUERY_BLIND_QUALITY
    qualities = QUALITIES if request.focus else {**QUALITIES, **UNFOCUSED}
    return qualities.get(name, 1.0)


def _bounded(worth: Sequence[float], standings: Sequence[_Standing]) -> list[float]:
    """Return what each strategy is worth, with all undeclared ones together bounded by the strongest that answers.

    Where no strategy answers, there is no hit that an undeclared one could displace.
    """
    judged = list(zip(worth, standings, strict=True))
    strongest = max((part for part, standing in judged if standing is _Standing.ANSWERS), default=0.0)
    undeclared = sum(part for part, standing in judged if standing is _Standing.UNDECLARED)
    is_bounded = strongest > 0 and undeclared > UNDECLARED_SHARE * strongest
    ratio = UNDECLARED_SHARE * strongest / undeclared if is_bounded else 1.0
    return [ratio * part if standing is _Standing.UNDECLARED else part for part, standing in judged]


COMPONENTS: Final[dict[str, Allocate]] = {"proportional": proportional, "equal": equal}
