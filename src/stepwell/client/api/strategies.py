"""Strategies, as a client asks for them: each a future, done by whichever worker is free."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple

from msgspec.structs import replace

from stepwell import limits
from stepwell.client.api.calls import Call
from stepwell.client.api.views import View, Views
from stepwell.client.session.session import Session
from stepwell.client.session.task_futures import OnProgress, TaskFuture, TaskFutures, new_task_id
from stepwell.domain.replies import StrategiesFound
from stepwell.domain.tasks.commands import ListStrategies, ReleaseWorker, ReportDeath, SubmitTask
from stepwell.errors import InvalidArgument, NotFound
from stepwell.strategies.payload import Share, StrategyResult, StrategyTask, ViewAt, encoder, result_decoder
from stepwell.strategies.protocol import ContextRequest, ScoredFragment

Shares = tuple[tuple[ScoredFragment, ...], ...]


class _Terms(NamedTuple):
    """How soon, and for how long."""

    priority: int
    deadline_ms: int


class StrategyService:
    """What the workers can do. Safe from any number of threads."""

    def __init__(self, session: Session, views: Views) -> None:
        self._session = session
        self._views = views
        self._tasks = TaskFutures(session)

    def list(self) -> StrategiesFound:
        """What is offered, by which workers, and how much is waiting. Chores are no strategies, and left out."""
        return self._session.perform(listing())

    def submit(
        self,
        name: str,
        request: ContextRequest,
        *,
        view: View | None = None,
        budget_tokens: int | None = None,
        priority: int = 5,
        deadline_s: float | None = None,
        parts: int = 1,
        on_progress: OnProgress | None = None,
    ) -> Future[StrategyResult]:
        """Have a strategy answer a request, on the state of now, or on that of a view.

        `deadline_s` is what an attempt may take, by default a minute: then its worker is stopped, and the future has
        `DeadlineExceeded`. `parts` shares the work of a strategy that can be shared by so many workers.
        `on_progress` is called, in a thread of the client's, with how much is done, of how much, and a few words.
        `future.cancel()` stops the work, too.
        """
        at = None if view is None else _at(view)
        work = StrategyTask(request, budget_tokens or request.budget_tokens, at)
        terms = _terms(priority, deadline_s)
        if parts == 1:
            return self._submit(name, work, terms, on_progress)
        return self._submit_parts(name, work, parts, terms, on_progress)

    def map(
        self,
        name: str,
        requests: Iterable[ContextRequest],
        *,
        timeout: float | None = None,
        priority: int = 5,
        deadline_s: float | None = None,
    ) -> Iterator[StrategyResult]:
        """The results of many requests, in their order. Leaving it before the end cancels the rest."""
        until_s = None if timeout is None else time.monotonic() + timeout
        terms = _terms(priority, deadline_s)
        commands = [_command(name, StrategyTask(request, request.budget_tokens), terms) for request in requests]
        return _results(self._tasks.submit_many(commands, result_decoder.decode), until_s)

    def submit_chores(self, name: str, project: str, payloads: Iterable[bytes]) -> Sequence[Future[bytes]]:
        """Have workers do what is no strategy. What goes there and what comes back is between them and the caller."""
        commands = [SubmitTask(new_task_id(), name, (project,), payload) for payload in payloads]
        return self._tasks.submit_many(commands, bytes)

    def report_death(self, pid: int, evidence: str) -> None:
        """Say what a worker of ours that died has left; for whoever starts workers."""
        command = ReportDeath(pid, evidence[-limits.EVIDENCE_CHARS_MAX :])
        self._session.perform(Call(command, lambda answered: answered.reply))

    def release(self, pid: int) -> None:
        """Say that a worker of ours is about to be stopped, so that nobody takes it for a death."""
        self._session.perform(Call(ReleaseWorker(pid), lambda answered: answered.reply))

    def close(self) -> None:
        """Whoever still waits gets `RuntimeLost`."""
        self._tasks.close()

    def _submit(
        self, name: str, work: StrategyTask, terms: _Terms, on_progress: OnProgress | None = None
    ) -> TaskFuture[StrategyResult]:
        return self._tasks.submit(_command(name, work, terms), result_decoder.decode, on_progress)

    def _submit_parts(
        self, name: str, work: StrategyTask, parts: int, terms: _Terms, on_progress: OnProgress | None
    ) -> Future[StrategyResult]:
        """All parts look at one view; when the last is there, a worker merges them."""
        if parts < 1:
            raise InvalidArgument("parts is at least 1")
        if not any(each.name == name and each.is_partitioned for each in self.list().offers):
            raise NotFound(f"no worker has offered a strategy {name!r} that can be shared: leave parts out")
        at = work.view or _at(self._views.open(work.request.projects, None))
        share = StrategyTask(work.request, work.budget_tokens, at)
        asked = [self._submit(name, _shared(share, part, parts), terms) for part in range(parts)]

        def merge(shares: Shares) -> Future[StrategyResult]:
            merging = StrategyTask(work.request, work.budget_tokens, at, None, shares)
            return self._submit(name, merging, terms, on_progress)

        return _Merged(asked, merge)


def listing() -> Call[StrategiesFound]:
    """Asks what is offered, chores left out."""
    return Call(ListStrategies(), lambda answered: _without_chores(answered.reply))


def _without_chores(found: StrategiesFound) -> StrategiesFound:
    return replace(found, offers=tuple(each for each in found.offers if not each.is_job))


class _Merged(Future[StrategyResult]):
    """Ends when what its parts come to is there, or one of them has failed; cancelling it cancels them."""

    def __init__(
        self, parts: Sequence[Future[StrategyResult]], merge: Callable[[Shares], Future[StrategyResult]]
    ) -> None:
        super().__init__()
        self._parts = parts
        self._merge = merge
        self._left = len(parts)
        self._counting = threading.Lock()
        for part in parts:
            part.add_done_callback(self._count)

    def cancel(self) -> bool:
        """Whether nobody will hear of it any more."""
        if not super().cancel():
            return False
        with contextlib.suppress(RuntimeError):  # somebody else has cancelled it at the same moment
            self.set_running_or_notify_cancel()
        self._give_up()
        return True

    def _give_up(self) -> None:
        for part in self._parts:
            part.cancel()

    def _count(self, part: Future[StrategyResult]) -> None:
        with self._counting:
            self._left -= 1
            is_last = self._left == 0
        if self.done():
            return
        if part.cancelled() or part.exception() is not None:
            self._end(part)
            self._give_up()
        elif is_last:
            merging: Future[StrategyResult]
            try:
                merging = self._merge(tuple(each.result().fragments for each in self._parts))
            except Exception as error:  # noqa: BLE001 - it is the caller's to know
                merging = Future()
                merging.set_exception(error)
            self._parts = (merging,)
            merging.add_done_callback(self._end)

    def _end(self, ended: Future[StrategyResult]) -> None:
        with contextlib.suppress(InvalidStateError):  # it is over: cancelled, or another part has failed
            if ended.cancelled():
                super().cancel()
                self.set_running_or_notify_cancel()
            elif (error := ended.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(ended.result())


def _terms(priority: int, deadline_s: float | None) -> _Terms:
    return _Terms(priority, limits.TASK_DEADLINE_MS if deadline_s is None else max(1, round(deadline_s * 1000)))


def _command(name: str, work: StrategyTask, terms: _Terms) -> SubmitTask:
    payload = encoder.encode(work)
    if len(payload) > limits.TASK_PAYLOAD_BYTES_MAX:
        raise InvalidArgument(f"the request has {len(payload)} bytes, at most 512 KiB are allowed: ask for less")
    projects = tuple(work.request.projects)
    return SubmitTask(new_task_id(), name, projects, payload, terms.priority, terms.deadline_ms)


def _shared(work: StrategyTask, part: int, parts: int) -> StrategyTask:
    return StrategyTask(work.request, work.budget_tokens, work.view, Share(part, parts))


def _at(view: View) -> ViewAt:
    if view.is_difference:
        raise InvalidArgument("a strategy looks at a whole view: open one without since=")
    return ViewAt(view.epoch, view.revision, view.ends)


def _results(futures: Sequence[Future[StrategyResult]], until_s: float | None) -> Iterator[StrategyResult]:
    try:
        for future in futures:
            yield future.result(None if until_s is None else max(0.0, until_s - time.monotonic()))
    finally:
        for future in futures:
            future.cancel()
