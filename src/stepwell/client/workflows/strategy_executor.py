"""Several strategies for one request, at the same time and on one view; what fails costs that strategy only.

How long an outcome may take is bounded here, too: the manager stops a strategy that is past its deadline, but not one
that no worker has begun. Whenever nothing of a request has ended for as long as one may take and a grace, what is left
of it is given up. One worker that does all of it, one after the other, is thereby as good as one for each.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from stepwell import limits
from stepwell.client.api.strategies import StrategyService
from stepwell.client.api.views import View
from stepwell.client.workflows.circuit_breaker import Breakers, BreakerSettings, Ending, Permit
from stepwell.domain.checks import require_instance
from stepwell.errors import (
    BodyGone,
    Busy,
    CircuitOpen,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    StepwellError,
    TaskFailed,
)
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest

StrategyError = TaskFailed | NotFound | Busy | BodyGone
"""Why there is no result of a strategy."""

OnStrategyProgress = Callable[[str, int, int, str], None]
"""Is told of which strategy how much is done, of how much, and in a few words of what."""

_Outcomes = dict[str, StrategyResult | StrategyError]

_GONE: Final = (f"{BodyGone.__name__}: ", "not to be had any more")
"""What a worker says that could not see the view that it was to look at, or all of it."""


class StrategyClient(Protocol):
    """The part of `Client` that an executor uses."""

    @property
    def strategies(self) -> StrategyService: ...

    def view(self, projects: Iterable[str] | None = None, *, since: int | None = None) -> View: ...


class Execution(Struct, frozen=True):
    """What came of some strategies: each that was asked for is in one of both, in the order asked for."""

    results: dict[str, StrategyResult]
    failures: dict[str, StrategyError]
    revision: int  # of all results
    epoch: str


class _Asked(Struct, frozen=True):
    """What is to be done, all of it checked."""

    request: ContextRequest
    names: tuple[str, ...]
    budgets: Mapping[str, int]
    deadline_s: float
    on_progress: OnStrategyProgress | None


class DefaultStrategyExecutor:
    """Runs strategies on the workers of a client's manager. Safe from any number of threads, and in a forked child.

    It remembers which of them fail again and again, and does not ask those for a while.
    """

    def __init__(self, client: StrategyClient, *, breaker: BreakerSettings | None = None) -> None:
        require_instance(breaker, (BreakerSettings, type(None)), "breaker is a stepwell.BreakerSettings")
        self._client = client
        self._settings = breaker or BreakerSettings()
        self.begin_anew()
        _executors.add(self)

    def begin_anew(self) -> None:
        """Forget what has failed. A forked child has to: a trial that is under way in its parent is not its own."""
        self._breakers = Breakers(self._settings)

    def execute(
        self,
        request: ContextRequest,
        strategies: Sequence[str] | None = None,
        *,
        budgets: Mapping[str, int] | None = None,
        deadline_s: float | None = None,
        view: View | None = None,
        on_progress: OnStrategyProgress | None = None,
    ) -> Execution:
        """Have strategies answer a request: those named, or else those that it prefers, or else all that there are.

        All look at one state, that of `view` or of now; if that is gone before they have, all look at a new one.
        `deadline_s` is what each may take, by default a minute. `budgets` has the tokens of those that are to have
        others than the request. `on_progress` is called in a thread of the client's.

        What a strategy does wrong is in the answer. What is raised concerns all of them: that there is no manager, or
        that the request is malformed or out of scope.
        """
        return self.observe(
            request, strategies, budgets=budgets, deadline_s=deadline_s, view=view, on_progress=on_progress
        )[0]

    def observe(
        self,
        request: ContextRequest,
        strategies: Sequence[str] | None = None,
        *,
        budgets: Mapping[str, int] | None = None,
        deadline_s: float | None = None,
        view: View | None = None,
        on_progress: OnStrategyProgress | None = None,
    ) -> tuple[Execution, View]:
        """As `execute`; and the view that all of them have looked at."""
        asked = self._asked(request, strategies, budgets or {}, deadline_s, on_progress)
        seen = self._client.view(request.projects) if view is None else _fitting(view, request)
        permits, refused = self._admit(asked.names)
        ended: _Outcomes = {}
        try:
            ended = self._run(asked, permits, seen)
            if any(map(_is_gone, ended.values())):
                seen = self._client.view(request.projects)
                ended = self._run(asked, permits, seen)
        finally:
            self._settle(permits, ended)
        return _execution(asked.names, {**refused, **ended}, seen), seen

    def _asked(
        self,
        request: ContextRequest,
        strategies: Sequence[str] | None,
        budgets: Mapping[str, int],
        deadline_s: float | None,
        on_progress: OnStrategyProgress | None,
    ) -> _Asked:
        require_instance(request, (ContextRequest,), "request is a stepwell.ContextRequest")
        if strategies is None:
            names = request.strategies or self._offered()
        else:
            names = replace(request, strategies=strategies).strategies  # or say what is wrong with one of them
        names = tuple(dict.fromkeys(names))
        _check_budgets(budgets, names)
        allowed_s = limits.TASK_DEADLINE_MS / 1000 if deadline_s is None else _checked_deadline(deadline_s)
        return _Asked(request, names, budgets, allowed_s, on_progress)

    def _offered(self) -> tuple[str, ...]:
        names = tuple(each.name for each in self._client.strategies.list().offers)
        if not names:
            raise NotFound("no worker has offered a strategy: start workers first")
        return names

    def _admit(self, names: Sequence[str]) -> tuple[dict[str, Permit], _Outcomes]:
        """Whom we may ask, and why not the others."""
        permits: dict[str, Permit] = {}
        refused: _Outcomes = {}
        for name in names:
            try:
                permits[name] = self._breakers.admit(name, time.monotonic())
            except CircuitOpen as error:
                refused[name] = error
        return permits, refused

    def _settle(self, permits: Mapping[str, Permit], ended: _Outcomes) -> None:
        """Every permit is given back, also where all of it was broken off: a trial must not be under way for ever."""
        for name, permit in permits.items():
            self._breakers.settle(permit, _ending(ended.get(name)), time.monotonic())

    def _run(self, asked: _Asked, names: Collection[str], view: View) -> _Outcomes:
        """An outcome of each. What has none in time is stopped, and so is all of it if the manager is lost."""
        futures: dict[str, Future[StrategyResult]] = {}
        outcomes: _Outcomes = {}
        try:
            for name in names:
                try:
                    futures[name] = self._submit(asked, name, view)
                except (NotFound, Busy) as error:
                    outcomes[name] = error
            _await(futures.values(), asked.deadline_s + limits.EXECUTOR_GRACE_SECONDS)
            return outcomes | {name: _outcome(name, future, asked) for name, future in futures.items()}
        finally:
            for future in futures.values():
                future.cancel()

    def _submit(self, asked: _Asked, name: str, view: View) -> Future[StrategyResult]:
        return self._client.strategies.submit(
            name,
            asked.request,
            view=view,
            budget_tokens=asked.budgets.get(name),
            deadline_s=asked.deadline_s,
            on_progress=None if asked.on_progress is None else partial(asked.on_progress, name),
        )


def _fitting(view: View, request: ContextRequest) -> View:
    """A strategy shows what its view has: of other projects, that would not be what was asked for."""
    require_instance(view, (View,), "view is a stepwell.View")
    if {*view.projects} != {*request.projects}:
        raise InvalidArgument(
            f"the view is of {', '.join(view.projects)}, the request of {', '.join(request.projects)}"
        )
    return view


def _check_budgets(budgets: Mapping[str, int], names: Collection[str]) -> None:
    for name, tokens in budgets.items():
        if name not in names:
            raise InvalidArgument(f"budgets has {name!r}, which is not asked for: it is for {', '.join(names)}")
        require_instance(tokens, (int,), "a budget is a whole number of tokens")
        if tokens < 1:
            raise InvalidArgument(f"the budget of {name!r} is {tokens}: give at least one token")


def _checked_deadline(deadline_s: float) -> float:
    require_instance(deadline_s, (int, float), "deadline_s is a number of seconds")
    if not 0 < deadline_s <= limits.TASK_DEADLINE_MS_MAX / 1000:
        raise InvalidArgument(f"deadline_s is {deadline_s}: give more than 0 and at most a day")
    return deadline_s


def _await(futures: Collection[Future[StrategyResult]], patience_s: float) -> None:
    """Until all have ended, or none has for a while."""
    pending = {*futures}
    while pending:
        ended, pending = wait(pending, patience_s, FIRST_COMPLETED)
        if not ended:
            return


def _outcome(name: str, future: Future[StrategyResult], asked: _Asked) -> StrategyResult | StrategyError:
    if not future.done():
        waited_s = asked.deadline_s + limits.EXECUTOR_GRACE_SECONDS
        return DeadlineExceeded(
            f"strategy {name!r} was stopped: neither it nor another one has ended for {waited_s:g} s"
        )
    match error := future.exception():
        case None:
            return future.result()
        case TaskFailed() | NotFound() | Busy() | BodyGone():
            return error
        case StepwellError():
            raise error
        case _:
            return TaskFailed(f"strategy {name!r} gave a result that cannot be read: {error}")


def _is_gone(outcome: StrategyResult | StrategyError) -> bool:
    match outcome:
        case BodyGone():
            return True
        case TaskFailed():
            return any(words in outcome.message for words in _GONE)
        case _:
            return False


def _ending(outcome: StrategyResult | StrategyError | None) -> Ending:
    """Nobody is blamed for what is not there: a strategy, room in the queue, or the view."""
    match outcome:
        case StrategyResult():
            return Ending.SUCCEEDED
        case TaskFailed() if not _is_gone(outcome):
            return Ending.FAILED
        case _:
            return Ending.ABSTAINED


def _execution(names: Sequence[str], outcomes: _Outcomes, view: View) -> Execution:
    results: dict[str, StrategyResult] = {}
    failures: dict[str, StrategyError] = {}
    for name in names:
        match outcomes[name]:
            case StrategyResult() as result:
                results[name] = result
            case error:
                failures[name] = error
    return Execution(results, failures, view.revision, view.epoch)


_executors: weakref.WeakSet[DefaultStrategyExecutor] = weakref.WeakSet()


def _begin_anew() -> None:
    for executor in list(_executors):
        executor.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
