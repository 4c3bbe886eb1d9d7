"""Allocate: how much each strategy counts, and how much of the budget it may take alone.

A strategy that does not look at what is asked (recency, say) has an opinion on everything. With a query it is worth
next to nothing beside one that does: it fills what is left, and displaces no hit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from stepwell.assembly.candidate import Allotment, Chosen
from stepwell.strategies.protocol import ContextRequest, StrategyInfo

QUALITIES: Final[Mapping[str, float]] = {"semantic": 0.8}
"""What a strategy's opinion is worth beside that of one that finds the very words: measured."""
UNFOCUSED: Final[Mapping[str, float]] = {"graph": 0.1}
"""The same for a request without a focus: then the graph begins at the hits of others, and has little to add."""

SEEING: Final = frozenset({"query", "focus", "plan"})  # capabilities of strategies that look at what is asked
BLIND: Final[Mapping[str, frozenset[str]]] = {"recency": frozenset({"time"}), "tiered": frozenset({"tiers"})}
BLIND_QUALITY: Final = 0.02
LEAST: Final = 1e-9  # all together: where nobody is sure of anything, all are equally sure
SLACK: Final = 2.0  # times its share of the budget is what a strategy may bring in alone, at first

CANDIDATE_TOKENS_MIN: Final = 16_384
"""What a strategy is asked for at the least: where hits lie close together shows only if there are enough of them."""
CANDIDATE_RATIO: Final = 4  # times the budget, otherwise

Allocate = Callable[[ContextRequest, Sequence[Chosen], Sequence[StrategyInfo]], tuple[Allotment, ...]]


def candidate_tokens(budget_tokens: int) -> int:
    """How many tokens of fragments each strategy is asked for, so that there is a choice."""
    return max(CANDIDATE_RATIO * budget_tokens, CANDIDATE_TOKENS_MIN)


def proportional(
    request: ContextRequest, chosen: Sequence[Chosen], offers: Sequence[StrategyInfo]
) -> tuple[Allotment, ...]:
    """In proportion to confidence and quality. A share that is half of all is as good as all."""
    known = {**BLIND, **{each.name: frozenset(each.capabilities) for each in offers}}
    worth = [each.confidence * _quality(request, each.result.strategy, known) for each in chosen]
    return _shared(request, chosen, worth)


def equal(request: ContextRequest, chosen: Sequence[Chosen], offers: Sequence[StrategyInfo]) -> tuple[Allotment, ...]:  # noqa: ARG001 - the others' signature
    """The same for each, whatever it thinks of itself."""
    return _shared(request, chosen, [1.0] * len(chosen))


def _shared(request: ContextRequest, chosen: Sequence[Chosen], worth: Sequence[float]) -> tuple[Allotment, ...]:
    total = sum(worth)
    if total < LEAST:
        worth, total = [1.0] * len(chosen), float(len(chosen))
    budget = request.budget_tokens
    return tuple(
        Allotment(each.result, each.confidence, part / total, min(budget, int(SLACK * budget * part / total)))
        for each, part in zip(chosen, worth, strict=True)
    )


def _quality(request: ContextRequest, name: str, known: Mapping[str, frozenset[str]]) -> float:
    """Of whoever has declared nothing, the best is assumed: somebody wanted it to be asked."""
    capabilities = known.get(name, frozenset())
    is_asked = bool(request.query.strip() or request.focus or request.plan)
    if is_asked and capabilities and not capabilities & SEEING:
        return BLIND_QUALITY
    qualities = QUALITIES if request.focus else {**QUALITIES, **UNFOCUSED}
    return qualities.get(name, 1.0)


COMPONENTS: Final[dict[str, Allocate]] = {"proportional": proportional, "equal": equal}
