"""Strategies of other packages, asked about a directory: each runs in a worker process.

The command does not import them, because an import may do anything. A worker maps the index from the cache, so it sees
what the command sees. A strategy that raises, hangs or dies costs the answer its own result only.
"""

from __future__ import annotations

import functools
import os
import time
from concurrent.futures import Future
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, cast

import msgspec
from msgspec import Struct

from stepwell import limits
from stepwell.directory_index import contents
from stepwell.directory_index.model import DirectoryState
from stepwell.directory_index.view import DirectoryView, FileTexts
from stepwell.directory_index.workers import start_workers
from stepwell.domain.tasks.model import StrategyProblem
from stepwell.errors import BodyGone, DeadlineExceeded, NotFound, StepwellError, TaskFailed
from stepwell.strategies import execution
from stepwell.strategies.index.index_cache import IndexCaches
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo, StrategyView
from stepwell.strategies.registry import GROUP, Registry, built_in

if TYPE_CHECKING:
    from stepwell.pool.functions.executor import FunctionExecutor


class IndexLocation(Struct, frozen=True, array_like=True):
    """The place at which a worker finds the index: its file and version, the project, the root, and the state.

    Paths are bytes, because a path need not be UTF-8.
    """

    path: bytes
    version: str
    project: str
    root: bytes
    epoch: str
    revision: int


class _Offers(Struct, frozen=True, array_like=True):
    """The strategies of other packages, and those that cannot be loaded."""

    strategies: tuple[StrategyInfo, ...]
    problems: tuple[StrategyProblem, ...]


class _Call(Struct, frozen=True, array_like=True):
    """A question for one strategy."""

    name: str
    location: IndexLocation
    request: ContextRequest
    budget_tokens: int


_encoder: Final = msgspec.msgpack.Encoder()
_offers_decoder: Final = msgspec.msgpack.Decoder(_Offers)
_call_decoder: Final = msgspec.msgpack.Decoder(_Call)
_outcome_decoder: msgspec.msgpack.Decoder[StrategyResult | str] = msgspec.msgpack.Decoder(StrategyResult | str)


class InstalledStrategies:
    """The strategies of other packages, for one answer. Workers are started when the first one is needed, and end with
    the block.
    """

    def __init__(self) -> None:
        self._executor: FunctionExecutor | None = None
        self._begun: Final[dict[str, Future[bytes]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._executor is not None:
            self._executor.kill_workers()
            self._executor.shutdown()

    @functools.cached_property
    def _offers(self) -> _Offers:
        if not entry_points(group=GROUP):
            return _Offers((), ())
        future = self._workers().submit(describe_installed)
        try:
            return _offers_decoder.decode(future.result(limits.DIRECTORY_STRATEGY_START_SECONDS))
        except TimeoutError:
            reason = "importing the strategies of other packages takes too long"
        except StepwellError as error:
            reason = f"importing the strategies of other packages failed: {error.message}"
        return _Offers((), (StrategyProblem.of("*", GROUP, reason),))

    @property
    def offers(self) -> tuple[StrategyInfo, ...]:
        """The descriptions of the strategies."""
        return self._offers.strategies

    @property
    def problems(self) -> tuple[StrategyProblem, ...]:
        """The strategies that cannot be loaded, with the reasons."""
        return self._offers.problems

    def begin(self, name: str, location: IndexLocation, request: ContextRequest, budget_tokens: int) -> None:
        """Have a worker run a strategy; `finish` returns its result."""
        call = _encoder.encode(_Call(name, location, request, budget_tokens))
        self._begun[name] = self._workers().submit(run_installed, call)

    def finish(self, name: str, limit_s: float) -> StrategyResult:
        """Return the result of a strategy that was begun. Raise a `StepwellError` if there is none in time."""
        try:
            outcome = _outcome_decoder.decode(self._begun[name].result(limit_s))
        except TimeoutError:
            raise DeadlineExceeded(f"strategy {name!r} has not ended within {limit_s:g} s") from None
        if isinstance(outcome, str):
            raise TaskFailed(outcome)
        return outcome

    def _workers(self) -> FunctionExecutor:
        if self._executor is None:
            self._executor = start_workers()
        return self._executor


def describe_installed() -> bytes:
    """Return the encoded offers, in a worker process."""
    registry, known = _registry(), {each.name for each in built_in()}
    found = tuple(each for each in registry.describe() if each.name not in known)
    return _encoder.encode(_Offers(found, registry.problems))


def run_installed(call: bytes) -> bytes:
    """Run one strategy, in a worker process. Return its encoded result, or a text about its failure."""
    asked = _call_decoder.decode(call)
    begun_s = time.perf_counter()
    try:
        strategy = _registry()[asked.name]
        state = _state(asked.location)
        view = cast("StrategyView", DirectoryView(asked.location.project, state, FileTexts(asked.location.root)))
        confidence, fragments = execution.run(strategy, asked.request, view, asked.budget_tokens, view)
        seconds = time.perf_counter() - begun_s
        explanation = strategy.explain()
        result = StrategyResult(asked.name, fragments, state.revision, confidence, explanation, seconds)
        return _encoder.encode(result)
    except BaseException as error:  # noqa: BLE001 - `sys.exit` in a strategy does not end the worker
        return _encoder.encode(execution.describe_error(asked.name, error))


@functools.cache
def _registry() -> Registry:
    """Return the strategies of this process, with the built-in ones, whose names no other one may have."""
    registry = Registry()
    registry.load_entry_points()
    return registry


@functools.lru_cache(maxsize=1)
def _state(location: IndexLocation) -> DirectoryState:
    """Return the state in the cache; raise `BodyGone` if another command has replaced it."""
    state = contents.load(Path(os.fsdecode(location.path)), location.version, location.project, IndexCaches())
    if state is None:
        raise NotFound(f"there is no index at {location.path!r}")
    if state.at != (location.epoch, location.revision):
        raise BodyGone("another command has written the index meanwhile: ask again")
    return state
