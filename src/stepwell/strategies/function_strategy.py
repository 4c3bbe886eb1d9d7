"""A plain function as a strategy, for experiments in a notebook or a test.

`Registry.add` wraps any function of request, view and budget in a `FunctionStrategy`. A function declares nothing about
itself, so it weighs less than the built-in strategies beside it: see `assembly.stages.allocate`. A strategy that is
worth a package has a class of its own, with capabilities, and with a `can_handle` that knows when to be silent.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Final

from stepwell.domain.checks import require_instance
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView

CONFIDENCE: Final = 0.4  # as much as the least sure of the built-in strategies that look at the query

StrategyFunction = Callable[[ContextRequest, StrategyView, int], Sequence[ScoredFragment]]


class FunctionStrategy:
    """A strategy made of one function of request, view and budget in tokens.

    Its name is that of the function, with hyphens for underscores. Its confidence is always `CONFIDENCE`, because only
    the function could tell how much it has to say.

    The scores of the function can be on any scale, because the fusion compares them with each other only. All functions
    together have at most a quarter of the weight of the strongest strategy that declares that it looks at what is
    asked: they move hits of about the same score, and add fragments behind them. A request that names a function alone,
    in `strategies`, is answered by it alone.
    """

    def __init__(self, function: StrategyFunction, name: str | None = None) -> None:
        own = getattr(function, "__name__", type(function).__name__)
        self.name: str = own.strip("_").replace("_", "-") if name is None else name
        self.capabilities: frozenset[str] = frozenset()
        self._function: Final = function

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:  # noqa: ARG002 - the protocol's signature
        """Return `CONFIDENCE`."""
        return CONFIDENCE

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """Return the result of the function.

        Raise `InvalidArgument` if an element is no `ScoredFragment`: here the message can still name the strategy,
        while in the client it would be a decoding error of a worker's message.
        """
        scored = tuple(self._function(request, view, budget_tokens))
        for each in scored:
            require_instance(each, (ScoredFragment,), f"{self.name} is to return ScoredFragments")
        return scored

    def explain(self) -> str:
        """Return the first paragraph of the function's docstring, on one line."""
        documented = inspect.getdoc(self._function) or f"The function {self.name}."
        return documented.partition("\n\n")[0].replace("\n", " ")
