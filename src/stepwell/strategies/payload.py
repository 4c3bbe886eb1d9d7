"""What a client gives to a worker and gets back: the manager carries it, and does not look into it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from stepwell.protocol.handles import CatalogueEnd
from stepwell.strategies.protocol import ContextRequest, ScoredFragment


class ViewAt(Struct, frozen=True, array_like=True):
    """The view that a strategy has to look at: that of its client, and of the other strategies of the same request."""

    epoch: str
    revision: int
    catalogues: tuple[CatalogueEnd, ...]


class Share(Struct, frozen=True, array_like=True):
    """Which part of how many of a view."""

    part: int
    parts: int


class StrategyTask(Struct, frozen=True, array_like=True):
    """A request for one strategy. `shares` are to be merged, in place of looking at anything."""

    request: ContextRequest
    budget_tokens: int
    view: ViewAt | None = None
    share: Share | None = None
    shares: tuple[tuple[ScoredFragment, ...], ...] | None = None


class StrategyResult(Struct, frozen=True, array_like=True):
    """What a strategy would show, the best first, and on which state."""

    strategy: str
    fragments: tuple[ScoredFragment, ...]
    revision: int
    confidence: float
    explanation: str = ""
    seconds: float = 0.0  # of work


encoder = Encoder()
task_decoder: Decoder[StrategyTask] = Decoder(StrategyTask)
result_decoder: Decoder[StrategyResult] = Decoder(StrategyResult)
