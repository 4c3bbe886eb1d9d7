"""The allocate stage: the weight of each strategy, and the tokens that it may bring in alone.

A strategy that ignores the query (recency, say) has an opinion on every fragment. Beside a strategy that looks at the
query it gets next to no weight: it fills the room that is left, and displaces no hit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stepwell.assembly.candidate import Allotment, SelectedResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo

QUALITIES: Final[Mapping[str, float]] = {"semantic": 0.8}
"""The weight of a strategy's opinion beside that of one that finds the very words; measured."""
UNFOCUSED: Final[Mapping[str, float]] = {"graph": 0.1}
"""The same for a request without a focus: then the graph starts from the hits of others, and has little to add."""

QUERY_CAPABILITIES: Final = frozenset({"query", "focus", "plan"})
"""A strategy with one of these capabilities looks at what is asked."""
QUERY_BLIND: Final[Mapping[str, frozenset[str]]] = {"recency": frozenset({"time"}), "tiered": frozenset({"tiers"})}
"""The capabilities of the built-in strategies that ignore the query, for requests whose offers are not known."""
QUERY_BLIND_QUALITY: Final = 0.02  # enough to order the fragments that no other strategy names
WORTH_MIN: Final = 1e-9  # of all strategies together: below it, all get the same weight
SLACK: Final = 2.0  # times its share of the budget: the tokens that a strategy may bring in alone at first

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
    """Return weights in proportion to confidence and quality.

    With `SLACK` a strategy that has half of the weight may fill the whole budget.
    """
    known = {**QUERY_BLIND, **{each.name: frozenset(each.capabilities) for each in offers}}
    worth = [each.confidence * _quality(request, each.result.strategy, known) for each in chosen]
    return _shared(request, chosen, worth)


def equal(
    request: ContextRequest,
    chosen: Sequence[SelectedResult],
    offers: Sequence[StrategyInfo],  # noqa: ARG001 - the others' signature
) -> tuple[Allotment, ...]:
    """Return the same weight for each strategy, whatever its confidence is."""
    return _shared(request, chosen, [1.0] * len(chosen))


def _shared(request: ContextRequest, chosen: Sequence[SelectedResult], worth: Sequence[float]) -> tuple[Allotment, ...]:
    """Return the allotments of strategies whose contributions are worth so much."""
    total = sum(worth)
    if total < WORTH_MIN:
        worth, total = [1.0] * len(chosen), float(len(chosen))
    budget = request.budget_tokens
    return tuple(
        Allotment(each.result, each.confidence, part / total, min(budget, int(SLACK * budget * part / total)))
        for each, part in zip(chosen, worth, strict=True)
    )


def _quality(request: ContextRequest, name: str, known: Mapping[str, frozenset[str]]) -> float:
    """Return the quality of a strategy. One that declares no capabilities gets the best, because a program added it."""
    capabilities = known.get(name, frozenset())
    is_asked = bool(request.query.strip() or request.focus or request.plan)
    if is_asked and capabilities and not capabilities & QUERY_CAPABILITIES:
        return QUERY_BLIND_QUALITY
    qualities = QUALITIES if request.focus else {**QUALITIES, **UNFOCUSED}
    return qualities.get(name, 1.0)


COMPONENTS: Final[dict[str, Allocate]] = {"proportional": proportional, "equal": equal}
