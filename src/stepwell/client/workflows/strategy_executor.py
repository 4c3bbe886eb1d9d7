"""Run several strategies for one request, at the same time and on one view; a failure costs that strategy only.

The executor bounds how long an outcome may take. The manager stops a strategy that runs past its deadline, but not a
task that no worker has started. So when no strategy of a request has ended for one deadline and a grace period, the
executor gives up the rest. The clock restarts whenever one ends: therefore one worker that runs all strategies one
after another is enough.
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
from stepwell.strategies.execution import checked_deadline
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import ContextRequest

StrategyError = TaskFailed | NotFound | Busy | BodyGone
"""The reason why a strategy has no result."""

OnStrategyProgress = Callable[[str, int, int, str], None]
"""Called with a strategy's name, the amount done, the total amount, and a short text about the present step."""

_Outcomes = dict[str, StrategyResult | StrategyError]

_GONE_TEXTS: Final = (f"{BodyGone.__name__}: ", "not to be had any more")
"""Texts in a worker's error which mean that the view, or a body of it, was gone when the strategy read it."""


class StrategyClient(Protocol):
    """The part of `Client` that an executor uses; a protocol, because workflows do not import the facades."""

    @property
    def strategies(self) -> StrategyService: ...

    def view(self, projects: Iterable[str] | None = None, *, since: int | None = None) -> View: ...


class Execution(Struct, frozen=True):
    """The outcomes of one request: each requested strategy is either in `results` or in `failures`, in their order.

    All strategies looked at the state of `revision` in the manager's `epoch`.
    """

    results: dict[str, StrategyResult]
    failures: dict[str, StrategyError]
    revision: int
    epoch: str


class _CheckedRequest(Struct, frozen=True):
    """The arguments of one `execute`, checked and with defaults filled in."""

    request: ContextRequest
    names: tuple[str, ...]
    budgets: Mapping[str, int]
    deadline_s: float
    on_progress: OnStrategyProgress | None


class DefaultStrategyExecutor:
    """Runs strategies on the workers of a client's manager.

    Any number of threads may share one executor; a forked child may use it, too, with fresh circuit breakers. It has
    one circuit breaker for each strategy: one that fails repeatedly is not called for a while, and `execute` reports
    `CircuitOpen` for it. The breakers belong to this executor, so use one for a long time. It owns no connection or
    thread, and need not be closed.
    """

    def __init__(self, client: StrategyClient, *, breaker: BreakerSettings | None = None) -> None:
        require_instance(breaker, (BreakerSettings, type(None)), "breaker is a stepwell.BreakerSettings")
        self._client = client
        self._settings = breaker or BreakerSettings()
        self.begin_anew()
        _executors.add(self)

    def begin_anew(self) -> None:
        """Reset all circuit breakers. Called in a forked child, because a trial in progress belongs to the parent."""
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
        """Run strategies for a request: the named ones, or those that the request prefers, or all that are offered.

        All strategies look at one state: that of `view`, or the present one. If bodies of that state are gone before
        every strategy has read them, all run once more on a new view. `deadline_s` is the time that each strategy may
        take, by default a minute. `budgets` has the tokens of strategies that are to use others than the request's.
        `on_progress` is called in a thread of the client.

        Failures of single strategies are in the returned value. Errors that concern all of them are raised: the manager
        cannot be reached, or the request is malformed or out of scope.
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
        """Do the same as `execute`, and return the view that all strategies looked at, too."""
        checked = self._checked_request(request, strategies, budgets or {}, deadline_s, on_progress)
        seen = self._client.view(request.projects) if view is None else _checked_view(view, request)
        permits, refused = self._admit(checked.names)
        ended: _Outcomes = {}
        try:
            ended = self._run(checked, permits, seen)
            # One view for all results is promised, so a gone view means that every strategy runs again, once.
            if any(map(_is_gone, ended.values())):
                seen = self._client.view(request.projects)
                ended = self._run(checked, permits, seen)
        finally:
            self._record_endings(permits, ended)
        return _execution(checked.names, {**refused, **ended}, seen), seen

    def _checked_request(
        self,
        request: ContextRequest,
        strategies: Sequence[str] | None,
        budgets: Mapping[str, int],
        deadline_s: float | None,
        on_progress: OnStrategyProgress | None,
    ) -> _CheckedRequest:
        """Check the arguments and choose the strategies; raise `InvalidArgument`, or `NotFound` if none is offered."""
        require_instance(request, (ContextRequest,), "request is a stepwell.ContextRequest")
        if strategies is None:
            names = request.strategies or self._offered()
        else:
            names = replace(request, strategies=strategies).strategies  # checks each name
        names = tuple(dict.fromkeys(names))
        _check_budgets(budgets, names)
        allowed_s = limits.TASK_DEADLINE_MS / 1000 if deadline_s is None else checked_deadline(deadline_s)
        return _CheckedRequest(request, names, budgets, allowed_s, on_progress)

    def _offered(self) -> tuple[str, ...]:
        """Return the names of all strategies that workers offer now; `NotFound` if there are none."""
        names = tuple(each.name for each in self._client.strategies.list().offers)
        if not names:
            raise NotFound("no worker has offered a strategy: start workers first")
        return names

    def _admit(self, names: Sequence[str]) -> tuple[dict[str, Permit], _Outcomes]:
        """Return a permit for each strategy that may be called, and the refusals of the others."""
        permits: dict[str, Permit] = {}
        refused: _Outcomes = {}
        for name in names:
            try:
                permits[name] = self._breakers.admit(name, time.monotonic())
            except CircuitOpen as error:
                refused[name] = error
        return permits, refused

    def _record_endings(self, permits: Mapping[str, Permit], ended: _Outcomes) -> None:
        """Record the ending of every permit, also after an exception: otherwise a trial would stay open for ever."""
        for name, permit in permits.items():
            self._breakers.record(permit, _ending(ended.get(name)), time.monotonic())

    def _run(self, checked: _CheckedRequest, names: Collection[str], view: View) -> _Outcomes:
        """Run the strategies and return an outcome for each; tasks that are not done in time are cancelled.

        If the connection to the manager is lost, that error is raised, and all tasks are cancelled.
        """
        futures: dict[str, Future[StrategyResult]] = {}
        outcomes: _Outcomes = {}
        try:
            for name in names:
                try:
                    futures[name] = self._submit(checked, name, view)
                except (NotFound, Busy) as error:
                    outcomes[name] = error
            _wait_for_endings(futures.values(), checked.deadline_s + limits.EXECUTOR_GRACE_SECONDS)
            return outcomes | {name: _outcome(name, future, checked) for name, future in futures.items()}
        finally:
            for future in futures.values():
                future.cancel()

    def _submit(self, checked: _CheckedRequest, name: str, view: View) -> Future[StrategyResult]:
        """Submit one strategy as a task; progress is reported under the strategy's name."""
        return self._client.strategies.submit(
            name,
            checked.request,
            view=view,
            budget_tokens=checked.budgets.get(name),
            deadline_s=checked.deadline_s,
            on_progress=None if checked.on_progress is None else partial(checked.on_progress, name),
        )


def _checked_view(view: View, request: ContextRequest) -> View:
    """Return the view; `InvalidArgument` unless it has the request's projects, because strategies show all of it."""
    require_instance(view, (View,), "view is a stepwell.View")
    if {*view.projects} != {*request.projects}:
        raise InvalidArgument(
            f"the view is of {', '.join(view.projects)}, the request of {', '.join(request.projects)}"
        )
    return view


def _check_budgets(budgets: Mapping[str, int], names: Collection[str]) -> None:
    """Raise `InvalidArgument` for a budget of a strategy that does not run, or of less than one token."""
    for name, tokens in budgets.items():
        if name not in names:
            raise InvalidArgument(f"budgets has {name!r}, which is not asked for: it is for {', '.join(names)}")
        require_instance(tokens, (int,), "a budget is a whole number of tokens")
        if tokens < 1:
            raise InvalidArgument(f"the budget of {name!r} is {tokens}: give at least one token")


def _wait_for_endings(futures: Collection[Future[StrategyResult]], patience_s: float) -> None:
    """Return when all futures have ended, or when none has ended for `patience_s`."""
    pending = {*futures}
    while pending:
        ended, pending = wait(pending, patience_s, FIRST_COMPLETED)
        if not ended:
            return


def _outcome(name: str, future: Future[StrategyResult], checked: _CheckedRequest) -> StrategyResult | StrategyError:
    """Return a strategy's outcome; errors that concern all strategies are raised."""
    if not future.done():
        waited_s = checked.deadline_s + limits.EXECUTOR_GRACE_SECONDS
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
    """Return True if a strategy failed because the view was gone; a worker reports that as text only."""
    match outcome:
        case BodyGone():
            return True
        case TaskFailed():
            return any(words in outcome.message for words in _GONE_TEXTS)
        case _:
            return False


def _ending(outcome: StrategyResult | StrategyError | None) -> Ending:
    """Return the ending for the circuit breaker: a missing strategy, a full queue or a gone view is no failure."""
    match outcome:
        case StrategyResult():
            return Ending.SUCCEEDED
        case TaskFailed() if not _is_gone(outcome):
            return Ending.FAILED
        case _:
            return Ending.ABSTAINED


def _execution(names: Sequence[str], outcomes: _Outcomes, view: View) -> Execution:
    """Return the outcomes, sorted into results and failures in the order of the names."""
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
"""All executors of this process, so that a forked child can reset their breakers."""


def _begin_anew() -> None:
    """Reset the breakers of all executors; runs in every forked child, where their locks may be held, too."""
    for executor in list(_executors):
        executor.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
