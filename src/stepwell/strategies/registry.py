"""Strategies by name: built in, from installed packages, and given by a program or an operator.

An installed package that cannot be loaded costs its own strategy only: the reason is in `problems`, which workers
report to their supervisor and to the manager. A mistake of the caller, such as a name that is taken, is raised.
"""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Final, TypeGuard, cast

import msgspec
from msgspec import Meta

from stepwell import limits
from stepwell.domain.bounded_types import Label, StrategyName
from stepwell.domain.tasks.model import StrategyProblem
from stepwell.errors import InvalidArgument, NotFound
from stepwell.strategies.builtin.graph import GraphStrategy
from stepwell.strategies.builtin.keyword import KeywordStrategy
from stepwell.strategies.builtin.plan_decision import PlanDecisionStrategy
from stepwell.strategies.builtin.recency import RecencyStrategy
from stepwell.strategies.builtin.semantic import SemanticStrategy
from stepwell.strategies.builtin.tiered import TieredStrategy
from stepwell.strategies.function_strategy import FunctionStrategy, StrategyFunction
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.index.words.keyword_hits import KeywordSearch
from stepwell.strategies.protocol import Partitioned, Strategy, StrategyInfo

GROUP: Final = "stepwell.strategies"
"""The group of entry points under which packages offer strategies."""

_ADVICE: Final = (
    "give an object with name, capabilities, can_handle, assemble and explain, its class, a function that makes one, "
    "or a function of request, view and budget_tokens"
)
_METHODS: Final = ("can_handle", "assemble", "explain")
_Capabilities = Annotated[frozenset[Label], Meta(max_length=limits.CAPABILITIES_MAX)]
"""The bounds of `StrategyOffer`: a manager would refuse a worker that offers more, with all its strategies."""


def built_in(caches: IndexCaches | None = None) -> tuple[Strategy, ...]:
    """Return the strategies that come with stepwell.

    They share one cache for each kind of index, so that a project is indexed once for all of them. That needs no lock,
    because a worker gives its strategies one request at a time.
    """
    shared = IndexCaches() if caches is None else caches
    hits = KeywordSearch(shared.words)
    return (
        KeywordStrategy(shared.words),
        RecencyStrategy(shared.timelines),
        GraphStrategy(hits, shared.neighbours),
        SemanticStrategy(shared),
        TieredStrategy(hits, shared.timelines),
        PlanDecisionStrategy(hits, shared.neighbours),
    )


class Registry:
    """The strategies of one process, by name.

    A worker has one registry, with an instance of each strategy that it offers. Only the worker's thread uses it.
    """

    def __init__(self, candidates: Iterable[object] | None = None) -> None:
        """Register the built-in strategies, or `candidates` in place of them."""
        self._strategies: dict[str, Strategy] = {}
        self._problems: list[StrategyProblem] = []
        for candidate in built_in() if candidates is None else candidates:
            self.add(candidate)

    def __len__(self) -> int:
        return len(self._strategies)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._strategies))

    def __contains__(self, name: str) -> bool:
        return name in self._strategies

    def __getitem__(self, name: str) -> Strategy:
        """Return a strategy, or raise `NotFound`."""
        if name not in self._strategies:
            raise NotFound(f"there is no strategy {name!r}: there are {', '.join(self) or 'none'}")
        return self._strategies[name]

    @property
    def problems(self) -> tuple[StrategyProblem, ...]:
        """The entry points that could not be loaded, at most `limits.STRATEGY_PROBLEMS_MAX`.

        If there are more, the last one says how many.
        """
        if len(self._problems) <= limits.STRATEGY_PROBLEMS_MAX:
            return tuple(self._problems)
        shown = self._problems[: limits.STRATEGY_PROBLEMS_MAX - 1]
        hidden = len(self._problems) - len(shown)
        return (*shown, StrategyProblem.of("...", GROUP, f"{hidden} more could not be loaded"))

    def describe(self) -> tuple[StrategyInfo, ...]:
        """Return the descriptions of all strategies, by name."""
        return tuple(_info(self[name]) for name in self)

    def add(self, candidate: object) -> Strategy:
        """Register a strategy and return it.

        The candidate is a strategy, its class, a function without arguments that makes one, or a function of request,
        view and budget. Raise `InvalidArgument` if it is none of these, if its name is taken, or if there are too many.
        Two names that differ only in '-' and '_' count as the same: a caller would ask for the wrong one.
        """
        strategy = _as_strategy(candidate)
        taken = {_without_underscores(name): name for name in self._strategies}
        if known := taken.get(_without_underscores(strategy.name)):
            like = "" if known == strategy.name else f", which {strategy.name!r} is too much like"
            raise InvalidArgument(f"there is a strategy {known!r} already{like}: give this one another name")
        if len(self) == limits.STRATEGIES_MAX:
            raise InvalidArgument(f"there are {limits.STRATEGIES_MAX} strategies already: leave some out")
        self._strategies[strategy.name] = strategy
        return strategy

    def load_entry_points(self) -> None:
        """Register the strategies of installed packages. A failure becomes a problem.

        The order is that of their names, so that it does not depend on the order of installation which of two equal
        names wins.
        """
        try:
            points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))
        except Exception as error:  # noqa: BLE001 - one malformed line spoils the entry points of all packages
            self._problems.append(StrategyProblem.of("*", GROUP, f"no entry point can be read: {_reason(error)}"))
            return
        for point in points:
            try:
                self.add(point.load())
            except (Exception, SystemExit) as error:  # noqa: BLE001 - an installed package may raise anything
                self._problems.append(StrategyProblem.of(point.name, _source(point), _reason(error)))

    def load(self, text: str) -> Strategy:
        """Register the strategy that the text `module:attribute` names, and return it.

        Raise `NotFound` with the reason if it cannot be imported or made, and `InvalidArgument` if the text or the
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
        except (Exception, SystemExit) as error:
            raise NotFound(f"the strategy {text!r} cannot be loaded: {_reason(error)}") from error


def _info(strategy: Strategy) -> StrategyInfo:
    return StrategyInfo(strategy.name, tuple(sorted(strategy.capabilities)), isinstance(strategy, Partitioned))


def _without_underscores(name: str) -> str:
    return name.replace("_", "-")


def _reason(error: BaseException) -> str:
    """Return an error in a line: a syntax error with its place, a refusal of the registry without its class.

    An error of an installed package may fail to describe itself, which `traceback` tolerates.
    """
    told = error.message if isinstance(error, InvalidArgument) else "".join(traceback.format_exception_only(error))
    return " ".join(told.split())


def _source(point: EntryPoint) -> str:
    """Return the object that an entry point refers to, and the package that has the entry point, if it has a name."""
    try:
        return point.value if point.dist is None else f"{point.value}, of {point.dist.name} {point.dist.version}"
    except Exception:  # noqa: BLE001 - the metadata of a broken package
        return point.value


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
    if not _is_valid(strategy.name, StrategyName):
        raise InvalidArgument(
            f"{strategy.name!r:.80} cannot name a strategy: a name is 1 to 64 lower case letters, digits, hyphens and "
            "underscores, and begins with a letter or digit"
        )
    if not _is_valid(strategy.capabilities, _Capabilities):
        raise InvalidArgument(
            f"the capabilities of strategy {strategy.name!r} are malformed: capabilities are a frozenset of at most "
            f"{limits.CAPABILITIES_MAX} texts, each of 1 to 64 letters, digits and any of '._/:-'"
        )
    for method in _METHODS:
        if not callable(getattr(strategy, method)):
            raise InvalidArgument(f"{method} of the strategy {strategy.name!r} is no method: {_ADVICE}")
    return strategy


def _is_valid(value: object, kind: object) -> bool:
    """Return True if a value is of a type, within its bounds."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True
