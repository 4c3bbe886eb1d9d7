"""A plain function as a strategy: what a notebook tries before it becomes a package."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Final

from stepwell.domain.checks import require_instance
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView

StrategyFunction = Callable[[ContextRequest, StrategyView, int], Sequence[ScoredFragment]]


class FunctionStrategy:
    """A function of request, view and budget in tokens. It is sure of itself: whoever gave it wants it to be asked."""

    def __init__(self, function: StrategyFunction, name: str | None = None) -> None:
        own = getattr(function, "__name__", type(function).__name__)
        self.name: str = own.strip("_").replace("_", "-") if name is None else name
        self.capabilities: frozenset[str] = frozenset()
        self._function: Final = function

    def can_handle(self, request: ContextRequest, view: StrategyView) -> float:  # noqa: ARG002 - only it could tell
        """Always 1."""
        return 1.0

    def assemble(self, request: ContextRequest, view: StrategyView, budget_tokens: int) -> Sequence[ScoredFragment]:
        """What the function returns."""
        scored = tuple(self._function(request, view, budget_tokens))
        for each in scored:
            require_instance(each, (ScoredFragment,), f"{self.name} is to return ScoredFragments")
        return scored

    def explain(self) -> str:
        """The first lines of the function's own docstring."""
        documented = inspect.getdoc(self._function) or f"The function {self.name}."
        return documented.partition("\n\n")[0].replace("\n", " ")
