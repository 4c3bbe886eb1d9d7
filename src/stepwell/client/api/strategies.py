"""`StrategyService`: has strategies executed by worker processes, and returns futures of their results.

A strategy is executed as a task: the manager gives it to a free worker that offers the strategy. A strategy that can be
partitioned may be split into parts, which several workers process at once. A last task merges their results.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple

from msgspec.structs import replace

from stepwell import limits
from stepwell.client.api.views import View, Views
from stepwell.client.session.calls import Call
from stepwell.client.session.session import Session
from stepwell.client.session.task_futures import OnProgress, TaskFuture, TaskFutures
from stepwell.domain.replies import StrategiesFound
from stepwell.domain.tasks.commands import ListStrategies, ReleaseWorker, ReportDeath, SubmitTask
from stepwell.errors import InvalidArgument, NotFound
from stepwell.strategies.payload import Share, StrategyResult, StrategyTask, ViewAt, encoder, result_decoder
from stepwell.strategies.protocol import ContextRequest, ScoredFragment
from stepwell.text import plural

Shares = tuple[tuple[ScoredFragment, ...], ...]


class _TaskTerms(NamedTuple):
    """The scheduling of a task: its priority, and the time that one attempt may take."""

    priority: int
    deadline_ms: int


class StrategyService:
    """The strategies that the workers offer. Any number of threads may use it.

    It owns the futures of its tasks, and with them the thread that receives their outcomes.
    """

    def __init__(self, session: Session, views: Views) -> None:
        self._session = session
        self._views = views
        self._tasks = TaskFutures(session)

    def list(self) -> StrategiesFound:
        """Return the offered strategies, their workers and the lengths of their queues. Internal jobs are left out.

        `problems` of the result are the installed strategies that workers could not load, with the reasons.
        """
        return self._session.perform(list_strategies())

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
        """Have a worker execute a strategy for a request, on the current state or on that of a view; return the future.

        `deadline_s` bounds one attempt, by default to a minute. After it the worker is stopped, and the future raises
        `DeadlineExceeded`. `parts` splits the work of a strategy that can be partitioned among so many workers.
        `on_progress` is called on a thread of the client with the amount that is done, the total and a short
        description. `future.cancel()` also stops the work.
        """
        at = None if view is None else _view_at(view)
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
        """Yield the results of many requests in their order. A consumer that stops early cancels the remaining tasks.

        All requests are submitted before the first result is returned. `timeout` bounds the whole iteration, in
        seconds.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        terms = _terms(priority, deadline_s)
        commands = [self._command(name, StrategyTask(request, request.budget_tokens), terms) for request in requests]
        return _results(self._tasks.submit_many(commands, result_decoder.decode), until_s)

    def submit_jobs(self, name: str, project: str, payloads: Iterable[bytes]) -> Sequence[Future[bytes]]:
        """Have workers execute an internal job, which is no strategy, for each payload.

        Return the futures of the raw results. Payload and result are a matter between the caller and the job.
        """
        commands = [SubmitTask(self._session.new_id(), name, (project,), payload) for payload in payloads]
        return self._tasks.submit_many(commands, bytes)

    def report_death(self, pid: int, evidence: str) -> None:
        """Report the last output of a worker process that died, for the supervisor that started the worker."""
        command = ReportDeath(pid, evidence[-limits.EVIDENCE_CHARS_MAX :])
        self._session.perform(Call(command))

    def release(self, pid: int) -> None:
        """Announce that a worker process is about to be stopped, so that the manager does not count it as a crash."""
        self._session.perform(Call(ReleaseWorker(pid)))

    def close(self) -> None:
        """End the thread that receives outcomes. Futures without an outcome get `RuntimeLost`."""
        self._tasks.close()

    def _command(self, name: str, work: StrategyTask, terms: _TaskTerms) -> SubmitTask:
        """Return the command that submits a task; `InvalidArgument` if the request is too large for a message.

        The payload is encoded once, here, in the format that the workers decode.
        """
        payload = encoder.encode(work)
        if len(payload) > limits.TASK_PAYLOAD_BYTES_MAX:
            raise InvalidArgument(
                f"the request has {plural(len(payload), 'byte')}, at most 512 KiB are allowed: ask for less"
            )
        projects = tuple(work.request.projects)
        return SubmitTask(self._session.new_id(), name, projects, payload, terms.priority, terms.deadline_ms)

    def _submit(
        self, name: str, work: StrategyTask, terms: _TaskTerms, on_progress: OnProgress | None = None
    ) -> TaskFuture[StrategyResult]:
        """Submit one task, and return its future."""
        return self._tasks.submit(self._command(name, work, terms), result_decoder.decode, on_progress)

    def _submit_parts(
        self, name: str, work: StrategyTask, parts: int, terms: _TaskTerms, on_progress: OnProgress | None
    ) -> Future[StrategyResult]:
        """Submit all parts on one view; when the last is done, submit the task that merges them."""
        if parts < 1:
            raise InvalidArgument("parts is at least 1")
        if not any(each.name == name and each.is_partitioned for each in self.list().offers):
            raise NotFound(f"no worker has offered a strategy {name!r} that can be shared: leave parts out")
        at = work.view or _view_at(self._views.open(work.request.projects, None))
        share = StrategyTask(work.request, work.budget_tokens, at)
        futures = [self._submit(name, _share_of(share, part, parts), terms) for part in range(parts)]

        def merge(shares: Shares) -> Future[StrategyResult]:
            merging = StrategyTask(work.request, work.budget_tokens, at, None, shares)
            return self._submit(name, merging, terms, on_progress)

        return _MergedFuture(futures, merge)


def list_strategies() -> Call[StrategiesFound]:
    """Return the call that lists the offered strategies without internal jobs."""
    return Call(ListStrategies(), lambda answered: _without_jobs(answered.reply))


def _without_jobs(found: StrategiesFound) -> StrategiesFound:
    return replace(found, offers=tuple(each for each in found.offers if not each.is_job))


class _MergedFuture(Future[StrategyResult]):
    """The future of a partitioned task: it ends with the merged result, or with the error of the first part that fails.

    Cancelling it cancels the parts. Done callbacks of the parts run on the listener thread, `cancel` on any thread;
    `_count_lock` protects the number of open parts.
    """

    def __init__(
        self, parts: Sequence[Future[StrategyResult]], merge: Callable[[Shares], Future[StrategyResult]]
    ) -> None:
        super().__init__()
        self._parts = parts
        self._merge = merge
        self._parts_left = len(parts)
        self._count_lock = threading.Lock()
        for part in parts:
            part.add_done_callback(self._on_part_done)

    def cancel(self) -> bool:
        """Cancel the future and all its parts. Return False if the result is already here."""
        if not super().cancel():
            return False
        with contextlib.suppress(RuntimeError):  # another thread has cancelled the future at the same moment
            self.set_running_or_notify_cancel()
        self._cancel_parts()
        return True

    def _cancel_parts(self) -> None:
        """Cancel the parts, or the merging task that has replaced them."""
        for part in self._parts:
            part.cancel()

    def _on_part_done(self, part: Future[StrategyResult]) -> None:
        """End the future if a part failed; submit the merging task after the last part.

        It runs on the listener thread, which then waits for the submission: outcomes of other tasks arrive a little
        later.
        """
        with self._count_lock:
            self._parts_left -= 1
            is_last = self._parts_left == 0
        if self.done():
            return
        if part.cancelled() or part.exception() is not None:
            self._copy_outcome(part)
            self._cancel_parts()
        elif is_last:
            merging: Future[StrategyResult]
            try:
                merging = self._merge(tuple(each.result().fragments for each in self._parts))
            except Exception as error:  # noqa: BLE001 - the caller learns why the parts could not be merged
                merging = Future()
                merging.set_exception(error)
            self._parts = (merging,)
            merging.add_done_callback(self._copy_outcome)

    def _copy_outcome(self, ended: Future[StrategyResult]) -> None:
        """Take over the outcome of a part that failed, or of the merging task."""
        with contextlib.suppress(InvalidStateError):  # the future was cancelled, or another part has failed
            if ended.cancelled():
                super().cancel()
                self.set_running_or_notify_cancel()
            elif (error := ended.exception()) is not None:
                self.set_exception(error)
            else:
                self.set_result(ended.result())


def _terms(priority: int, deadline_s: float | None) -> _TaskTerms:
    """Return the terms of a task; without a deadline the default one, and never less than a millisecond."""
    return _TaskTerms(priority, limits.TASK_DEADLINE_MS if deadline_s is None else max(1, round(deadline_s * 1000)))


def _share_of(work: StrategyTask, part: int, parts: int) -> StrategyTask:
    """Return the task of one part of a partitioned strategy."""
    return StrategyTask(work.request, work.budget_tokens, work.view, Share(part, parts))


def _view_at(view: View) -> ViewAt:
    """Return the position of a view, by which a worker opens the same view."""
    if view.is_difference:
        raise InvalidArgument("a strategy looks at a whole view: open one without since=")
    return ViewAt(view.epoch, view.revision, view.ends)


def _results(futures: Sequence[Future[StrategyResult]], until_s: float | None) -> Iterator[StrategyResult]:
    """Yield the results of futures in order, until `until_s`; cancel all of them at the end."""
    try:
        for future in futures:
            yield future.result(None if until_s is None else max(0.0, until_s - time.monotonic()))
    finally:
        for future in futures:
            future.cancel()
