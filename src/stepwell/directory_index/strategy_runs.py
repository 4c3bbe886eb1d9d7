"""The strategies that are asked one question about a directory, and what each of them returns.

The built-in ones run in this process, one after the other: each takes a few milliseconds. Those of other packages run
in workers meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from stepwell.assembly.inputs import Failure
from stepwell.assembly.stages.select import names_to_ask
from stepwell.directory_index.installed_strategies import IndexLocation, InstalledStrategies
from stepwell.domain.tasks.model import StrategyProblem
from stepwell.errors import DeadlineExceeded, NotFound, StepwellError, TaskFailed
from stepwell.strategies import execution, progress
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest, StrategyInfo, StrategyView
from stepwell.strategies.registry import Registry

OnStrategyProgress = Callable[[str, int, int, str], None]
"""Called with a strategy's name, the amount done, the total amount, and a short text about the present step."""


class Asked(Struct, frozen=True):
    """A request, the strategies that are named (None: all), the tokens that each may return, and the time for each."""

    request: ContextRequest
    names: Sequence[str] | None
    budget_tokens: int
    limit_s: float


class StrategyRuns(Struct, frozen=True):
    """The outcomes of all strategies that were asked, the descriptions of all that there are, and the ones that cannot
    be loaded.
    """

    results: tuple[StrategyResult, ...]
    failures: tuple[Failure, ...]
    offers: tuple[StrategyInfo, ...]
    problems: tuple[StrategyProblem, ...]


def run_all(
    asked: Asked,
    view: StrategyView,
    registry: Registry,
    locate: Callable[[], IndexLocation],
    on_progress: OnStrategyProgress | None,
) -> StrategyRuns:
    """Ask strategies: those of the registry in this process, others in workers, which find the index by `locate`."""
    results: list[StrategyResult] = []
    failures: list[Failure] = []
    is_known = asked.names is not None and all(name in registry for name in asked.names)
    with InstalledStrategies() as installed:
        others = () if is_known else installed.offers
        offers = (*registry.describe(), *others)
        names = names_to_ask(asked.request, offers) if asked.names is None else tuple(asked.names)
        finishing: list[tuple[str, Callable[[], StrategyResult]]] = []
        for name in sorted(names, key=lambda each: each in registry):  # workers begin first
            try:
                if name in registry:
                    finishing.append((name, partial(_run, registry, name, asked, view, on_progress)))
                elif any(each.name == name for each in others):
                    installed.begin(name, locate(), asked.request, asked.budget_tokens)
                    finishing.append((name, partial(installed.finish, name, asked.limit_s)))
                else:
                    known = ", ".join(sorted(each.name for each in offers))
                    raise NotFound(f"there is no strategy {name!r}: there are {known}")
            except StepwellError as error:
                failures.append(Failure(name, error.kind, error.message))
        for name, finish in reversed(finishing):
            try:
                results.append(finish())
            except StepwellError as error:
                failures.append(Failure(name, error.kind, error.message))
        problems = () if is_known else installed.problems
    return StrategyRuns(tuple(results), tuple(failures), offers, problems)


def _run(
    registry: Registry, name: str, asked: Asked, view: StrategyView, on_progress: OnStrategyProgress | None
) -> StrategyResult:
    """Return the result of a built-in strategy. Raise `DeadlineExceeded` if it took too long, and `TaskFailed`
    for an error that is not one of stepwell's, such as that of a model that cannot be imported.
    """
    begun_s = time.perf_counter()

    def report(done: int, total: int, note: str) -> None:
        if on_progress is not None:
            on_progress(name, done, total, note)

    strategy = registry[name]
    try:
        with progress.reporting_to(report):
            confidence, fragments = execution.run(strategy, asked.request, view, asked.budget_tokens, view)
    except StepwellError:
        raise
    except Exception as error:
        raise TaskFailed(execution.describe_error(name, error)) from error
    seconds = time.perf_counter() - begun_s
    if seconds > asked.limit_s:
        raise DeadlineExceeded(f"strategy {name!r} took {seconds:.1f} s, and may take {asked.limit_s:g} s")
    return StrategyResult(name, fragments, view.revision, confidence, strategy.explain(), seconds)
