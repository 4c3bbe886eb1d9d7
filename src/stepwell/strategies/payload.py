"""The message that carries a request to a worker, and the one that carries its result back.

The client encodes a `StrategyTask`, the manager stores and forwards it as bytes that it does not decode, and the worker
answers with an encoded `StrategyResult`. Both are arrays of positional fields: a new field needs a default and goes
last.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from stepwell.protocol.handles import CatalogueEnd
from stepwell.strategies.protocol import ContextRequest, ScoredFragment
from stepwell.text import brief_repr


class ViewAt(Struct, frozen=True, array_like=True):
    """The position of the view that a strategy has to look at.

    The client takes it once for a request, so that all strategies and the client itself look at the same revision,
    however much is stored meanwhile. `catalogues` says where the list of each project's fragments ends in shared
    memory.
    """

    epoch: str
    revision: int
    catalogues: tuple[CatalogueEnd, ...]


class Share(Struct, frozen=True, array_like=True):
    """The number of a share of a view, counted from 0, and the number of shares."""

    part: int
    parts: int


class StrategyTask(Struct, frozen=True, array_like=True):
    """A request for one strategy.

    There are three kinds. With a `view` and no `share`, the strategy looks at the whole view. With a `share`, it looks
    at that share. With `shares`, there is no view: the worker merges results that other workers returned for their
    shares.
    """

    request: ContextRequest
    budget_tokens: int
    view: ViewAt | None = None
    share: Share | None = None
    shares: tuple[tuple[ScoredFragment, ...], ...] | None = None


class StrategyResult(Struct, frozen=True, array_like=True):
    """The fragments that a strategy would show, the best first, and the revision of the view that it looked at.

    `seconds` is the time that the worker spent on it, without the time in the queue.
    """

    strategy: str
    fragments: tuple[ScoredFragment, ...]
    revision: int
    confidence: float
    explanation: str = ""
    seconds: float = 0.0

    __repr__ = brief_repr


encoder = Encoder()
task_decoder: Decoder[StrategyTask] = Decoder(StrategyTask)
result_decoder: Decoder[StrategyResult] = Decoder(StrategyResult)
