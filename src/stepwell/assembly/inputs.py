"""The inputs of an assembly: a request, the results of strategies, and the view that all of them looked at.

The client takes the view before it asks the strategies, and passes the same view here. So a fragment that a strategy
names exists, unless the strategy is wrong; only its body may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo, StrategyView

Count = Callable[[str], int]
"""A function that returns the exact number of tokens of a text."""

Key = tuple[str, str]
"""A project, and the id of a fragment in it."""

Rows = Mapping[Key, FragmentRow]
"""The rows of fragments, by key."""


class Failure(Struct, frozen=True):
    """A strategy that was asked and gave no usable result. `kind` is the name of the error."""

    strategy: str
    kind: str
    message: str


class AssemblyInputs(Struct, frozen=True):
    """Everything that an answer depends on.

    `offers` describes the strategies that workers offer. Of a strategy that is not among them nothing is assumed.
    """

    request: ContextRequest
    view: StrategyView
    results: tuple[StrategyResult, ...]
    count: Count
    failures: tuple[Failure, ...] = ()
    offers: tuple[StrategyInfo, ...] = ()
