"""A strategy that logs with structlog, as we do: a module of its own, because the test is about loading it."""

import os
from collections.abc import Sequence

import structlog

from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView


def talkative(request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Says something, and dies of it."""
    structlog.get_logger().debug("nobody.wants_to_know")
    structlog.get_logger().warning("strategy.said", query=request.query)
    os._exit(7)
