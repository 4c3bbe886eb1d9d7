"""Strategies by name: built in, from installed packages, and given by a program or an operator.

An installed package that cannot be loaded costs its own strategy only: the reason is kept in `problems`, and a client
that asks for that strategy reads it. A mistake of the caller, such as a name that is taken, is raised.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import Final, TypeGuard, cast

import msgspec

from stepwell import limits
from stepwell.domain.bounded_types import StrategyName
from stepwell.errors import InvalidArgument, NotFound
from stepwell.strategies.builtin.graph import GraphStrategy
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.builtin.plan_decision import PlanDecisionStrategy
from stepwell.strategies.builtin.recency import RecencyStrategy
from stepwell.strategies.builtin.semantic import SemanticStrategy
from stepwell.strategies.builtin.tiered import TieredStrategy
from stepwell.strategies.function_strategy import FunctionStrategy, StrategyFunction
from stepwell.strategies.index.index_cache import Bm25IndexCache, IndexCache
from stepwell.strategies.index.keyword_hits import KeywordSearch
from stepwell.strategies.index.proximity import ProximityIndex
from stepwell.strategies.index.timeline import TimelineIndex
from stepwell.strategies.protocol import Partitioned, Strategy, StrategyInfo

GROUP: Final = "stepwell.strategies"
"""The group of entry points under which packages offer strategies."""

_ADVICE: Final = (
    "give an object with name, capabilities, can_handle, assemble and explain, its class, a function that makes one, "
    "or a function of request, view and budget_tokens"
)
_METHODS: Final = ("can_handle", "assemble", "explain")


def built_in() -> tuple[Strategy, ...]:
    """Return the strategies that come with stepwell.

    They share one cache for each kind of index, so that a project is indexed once for all of them. That needs no lock,
    because a worker gives its strategies one request at a time.
    """
    indexes, neighbours, timelines = Bm25IndexCache(), IndexCache(ProximityIndex), IndexCache(TimelineIndex)
    hits = KeywordSearch(indexes)
    return (
        KeywordStrategy(indexes),
        RecencyStrategy(timelines),
        GraphStrategy(hits, neighbours),
        SemanticStrategy(),
        TieredStrategy(hits, timelines),
        PlanDecisionStrategy(hits, neighbours),
    )


class Registry:
    """The strategies of one process, by name.

    A worker has one registry, with an instance of each strategy that it offers. Only the worker's thread uses it.
    """

    def __init__(self, candidates: Iterable[object] | None = None) -> None:
        """Register the built-in strategies, or `candidates` in place of them."""
        self._strategies: dict[str, Strategy] = {}
        self.problems: Final[dict[str, str]] = {}
        """The reasons of all entry points and texts that could not be loaded, by name."""
        for candidate in built_in() if candidates is None else candidates:
            self.add(candidate)

    def __len__(self) -> int:
        return len(self._strategies)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._strategies))

    def __contains__(self, name: str) -> bool:
        return name in self._strategies

    def __getitem__(self, name: str) -> Strategy:
        """Return a strategy. Raise `NotFound` with the reason, if it is one that could not be loaded."""
        if name not in self._strategies:
            reason = self.problems.get(name)
            known = ", ".join(self) or "none"
            raise NotFound(f"there is no strategy {name!r}: " + (reason or f"there are {known}"))
        return self._strategies[name]

    def describe(self) -> tuple[StrategyInfo, ...]:
        """Return the descriptions of all strategies, by name."""
        return tuple(_info(self[name]) for name in self)

    def add(self, candidate: object) -> Strategy:
        """Register a strategy and return it.

        The candidate is a strategy, its class, a function without arguments that makes one, or a function of request,
        view and budget. Raise `InvalidArgument` if it is none of these, if its name is taken, or if there are too many.
        """
        strategy = _as_strategy(candidate)
        if strategy.name in self._strategies:
            raise InvalidArgument(f"there is a strategy {strategy.name!r} already: give this one another name")
        if len(self) == limits.STRATEGIES_MAX:
            raise InvalidArgument(f"there are {limits.STRATEGIES_MAX} strategies already: leave some out")
        self._strategies[strategy.name] = strategy
        return strategy

    def load_entry_points(self) -> None:
        """Register the strategies of installed packages. A failure becomes a problem.

        The order is that of their names, so that it does not depend on the order of installation which of two equal
        names wins.
        """
        for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
            try:
                self.add(point.load())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an installed package may raise anything
                self.problems[point.name] = _reason(error)

    def load(self, text: str) -> Strategy | None:
        """Register the strategy that the text `module:attribute` names, and return it.

        Return None, and record a problem, if it cannot be imported or made. Raise `InvalidArgument` if the text or the
        strategy is malformed.
        """
        module, colon, path = text.partition(":")
        if not (module and colon and path):
            raise InvalidArgument(f"{text!r} is not 'module:attribute': give for instance 'package.module:MyStrategy'")
        try:
            found: object = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
            return self.add(found)
        except InvalidArgument:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an operator's module may raise anything
            self.problems[text] = _reason(error)
            return None


def _info(strategy: Strategy) -> StrategyInfo:
    return StrategyInfo(strategy.name, tuple(sorted(strategy.capabilities)), isinstance(strategy, Partitioned))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[: limits.ERROR_CHARS_MAX]


def _as_strategy(candidate: object) -> Strategy:
    """Return the strategy that a candidate is, or makes. Raise `InvalidArgument` if it is none."""
    if not isinstance(candidate, type) and isinstance(candidate, Strategy):
        return _validated(candidate)
    if _is_strategy_function(candidate):
        return _validated(FunctionStrategy(candidate))
    made = _built(candidate)
    if isinstance(made, type) or not isinstance(made, Strategy):
        raise InvalidArgument(f"{candidate!r:.200} is no strategy: {_ADVICE}")
    return _validated(made)


def _is_strategy_function(candidate: object) -> TypeGuard[StrategyFunction]:
    """Return True if the candidate can be called with request, view and budget. Raise if it is a coroutine."""
    if inspect.iscoroutinefunction(candidate):
        raise InvalidArgument(f"{candidate!r:.200} is a coroutine: a worker calls a strategy, and does not await it")
    return not isinstance(candidate, type) and _accepts_arguments(candidate, 3)


def _built(candidate: object) -> object:
    """Return the object that a class or a factory makes; None if the candidate cannot be called without arguments."""
    return cast("Callable[[], object]", candidate)() if _accepts_arguments(candidate, 0) else None


def _accepts_arguments(candidate: object, count: int) -> bool:
    """Return True if the candidate can be called with `count` positional arguments."""
    if not callable(candidate):
        return False
    try:
        inspect.signature(candidate).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _validated(strategy: Strategy) -> Strategy:
    """Return a strategy, or raise `InvalidArgument` for mistakes that a type checker would have found.

    The `Protocol` check of `isinstance` looks at names only; an attribute of the wrong type would fail later, in a
    worker.
    """
    try:
        msgspec.convert(strategy.name, StrategyName)
        msgspec.convert(strategy.capabilities, frozenset[str])
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"the name {strategy.name!r:.80} or the capabilities of a strategy are malformed ({error}): a name is 1 to "
            "64 lower case letters, digits and hyphens, and capabilities are a frozenset of texts"
        ) from None
    for method in _METHODS:
        if not callable(getattr(strategy, method)):
            raise InvalidArgument(f"{method} of the strategy {strategy.name!r} is no method: {_ADVICE}")
    return strategy
