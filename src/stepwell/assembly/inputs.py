"""What is assembled from: a request, what strategies answered to it, and the view that all of them looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from stepwell.domain.tiers.model import FragmentRow
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo, StrategyView

Count = Callable[[str], int]
"""How many tokens a text is, exactly."""

Key = tuple[str, str]
"""A project and an id in it."""

Rows = Mapping[Key, FragmentRow]


class Failure(Struct, frozen=True):
    """A strategy that was asked and gave nothing that could be used, and why."""

    strategy: str
    kind: str
    message: str


class AssemblyInputs(Struct, frozen=True):
    """All that an answer depends on."""

    request: ContextRequest
    view: StrategyView
    results: tuple[StrategyResult, ...]
    count: Count
    failures: tuple[Failure, ...] = ()
    offers: tuple[StrategyInfo, ...] = ()  # what is known of the strategies; of others, nothing is assumed
