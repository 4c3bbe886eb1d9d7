"""The main program of a strategy worker: it leases one task after the other from the manager and runs it.

While the worker runs a task, the manager may already have put the next one into the worker's inbox, so that the
worker does not wait for a round trip between two tasks. Such a task is prefetched: the manager may recall it until the
worker has told the manager that it begins the task.

    worker                                   manager
      JoinAsWorker, with its strategies    -->     and with those that it could not load
                                           <--  WorkerAccepted
                                           <--  TaskAssigned, with the ends of the catalogues of its view
      ReportProgress, bounded in frequency -->
                                           <--  TaskAssigned: the next task, prefetched
      FinishTask, BeginTask of the next    -->
                                           <--  Response, or TaskRecalled: the prefetched task went to another worker

The worker keeps its strategies, and the indexes that they have computed, from task to task. It ends when its
supervisor disconnects the lifeline, and when the manager goes away; the manager gives its unfinished tasks to other
workers.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from stepwell import limits
from stepwell.client.api.tiers import ContextTierService
from stepwell.client.api.views import View, Views
from stepwell.client.session.channel import Channel
from stepwell.client.session.session import Session
from stepwell.domain.tasks.commands import BeginTask, FinishTask
from stepwell.domain.tasks.model import StrategyOffer, TaskFault
from stepwell.errors import (
    BodyGone,
    InvalidArgument,
    LeaseLost,
    OutcomeUnknown,
    OutOfScope,
    ProtocolError,
    RuntimeLost,
    StepwellError,
)
from stepwell.pool import pickling
from stepwell.pool.process_limits import ProcessLimits, restrict_process
from stepwell.pool.strategy import jobs
from stepwell.pool.strategy.settings import EXIT_NO_MANAGER, EXIT_RECYCLED, WorkerReady, WorkerSettings
from stepwell.protocol import messages
from stepwell.protocol.messages import (
    OfferUpload,
    Refusal,
    Request,
    Response,
    TaskAssigned,
    TaskRecalled,
    UploadGranted,
    WorkerAccepted,
)
from stepwell.strategies import execution, progress
from stepwell.strategies.payload import StrategyResult, StrategyTask, ViewAt, encoder, task_decoder
from stepwell.strategies.protocol import Partitioned, ScoredFragment, Strategy, StrategyView
from stepwell.strategies.registry import Registry
from stepwell.telemetry import configure
from stepwell.transport.connection import Connection

_NO_ROOM: Final = TaskFault("TaskFailed", "there is no room for its result")
_TOO_LARGE: Final = TaskFault("TaskFailed", "its result has more than 64 MiB: return less")


def main(encoded: str) -> int:
    """Run tasks until the worker is stopped or the manager is gone; return the exit code."""
    settings = msgspec.json.decode(encoded, type=WorkerSettings)
    restrict_process(
        ProcessLimits(parent_pid=settings.parent_pid, max_memory_bytes=settings.max_memory_bytes, nice=settings.nice)
    )
    registry = _registry(settings)
    if "structlog" in sys.modules:  # a strategy has imported it, and may log with it
        configure(settings.log_level)
    # A session numbers its requests. Those of the worker and those of its views are numbered apart.
    task_channel, view_channel = Channel(settings.address, None), Channel(settings.address, None)
    try:
        with socket.socket(fileno=settings.lifeline_fd) as lifeline:
            return StrategyWorker(task_channel, view_channel, registry, lifeline).run()
    except (RuntimeLost, OutcomeUnknown):
        return EXIT_NO_MANAGER
    finally:
        task_channel.close()
        view_channel.close()


def _registry(settings: WorkerSettings) -> Registry:
    """Return the built-in, installed, named and pickled strategies. Raise NotFound if a named one cannot be loaded."""
    registry = Registry()
    registry.load_entry_points()
    for text in settings.strategies:
        registry.load(text)
    if settings.pickled_strategies_fd is not None:
        with os.fdopen(settings.pickled_strategies_fd, "rb") as file:
            found = cast("list[object]", pickling.loads(file.read()))
        for each in found:
            registry.add(each)
    return registry


class _Recycle(Exception):
    """Ends the worker after its task, because it ran out of memory and a new process has all of it again."""


class StrategyWorker:
    """The loop of one worker: it joins the manager, then receives and runs tasks. One thread uses it.

    `task_channel` has the session in which tasks are leased and finished, `view_channel` the session of the views
    that strategies see. An exception of a task fails the task alone. Two end the loop: the loss of the manager,
    and a MemoryError, after which the worker is recycled.
    """

    def __init__(
        self, task_channel: Channel, view_channel: Channel, registry: Registry, lifeline: socket.socket
    ) -> None:
        self._registry = registry
        self._lifeline = lifeline
        self._epoch = view_channel.open().epoch
        session = Session(view_channel)
        self._views = Views(session, ContextTierService(session))
        self._connection: Connection = task_channel.dial()
        self._inbox: deque[TaskAssigned] = deque()
        self._is_begun = False  # True if the manager knows that the first task of the inbox is begun
        self._number = 0
        self._reported_at_s = 0.0
        self._is_end_reported = False  # the end of a task's progress is reported at once, and only once

    def run(self) -> int:
        """Join the manager and run tasks; return the exit code."""
        try:
            self._join()
            while (task := self._next_task()) is not None:
                self._run_task(task)
        except _Recycle:
            return EXIT_RECYCLED
        finally:
            self._connection.close()
        return 0

    def _join(self) -> None:
        """Offer the strategies to the manager and tell the supervisor; raise RuntimeLost if the manager refuses."""
        offers = tuple(
            StrategyOffer(each.name, each.capabilities, each.is_partitioned) for each in self._registry.describe()
        )
        problems = self._registry.problems
        answer = self._connection.exchange(messages.JoinAsWorker(0, (*jobs.OFFERS, *offers), problems))
        if isinstance(answer, Response) and isinstance(refusal := answer.results[0], Refusal):
            raise RuntimeLost(refusal.message)
        if not isinstance(answer, WorkerAccepted):
            raise ProtocolError(f"the manager answered JoinAsWorker with {type(answer).__name__}")
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone, which `_next_task` will see
            self._lifeline.sendall(WorkerReady(problems).encode())

    def _next_task(self) -> TaskAssigned | None:
        """Wait for the next task and return it, or None when the worker is stopped."""
        while not self._is_begun:
            self._listen(0.0 if self._inbox else None)
            if self._is_stopped():
                return None
            if self._inbox and not self._inbox[0].is_prefetched:
                break
            if beginning := self._beginning():
                self._send(*beginning)
        self._is_begun = False
        return self._inbox.popleft()

    def _beginning(self) -> tuple[BeginTask, ...]:
        """Return the command that begins the next task, or nothing if there is no task or the worker is stopped."""
        self._listen(0.0)
        if not self._inbox or self._is_stopped():
            return ()
        self._is_begun = True
        return (BeginTask(self._inbox[0].task_id, self._inbox[0].attempt),)

    def _is_stopped(self) -> bool:
        """Return True if the supervisor has disconnected the lifeline, which never carries data to the worker."""
        return bool(select.select([self._lifeline], [], [], 0)[0])

    def _listen(self, timeout_s: float | None) -> None:
        """Receive messages: without a timeout until there is a task, otherwise until none comes for that long."""
        while timeout_s is not None or not self._inbox:
            message = self._connection.receive_within(timeout_s, self._lifeline.fileno())
            if message is None:
                break
            self._handle(message)

    def _handle(self, message: messages.ManagerMessage) -> None:
        """Put an assigned task into the inbox, take a recalled one out of it, or check an answer."""
        match message:
            case TaskAssigned():
                self._inbox.append(message)
            case TaskRecalled():
                gone = message.task_id, message.attempt
                self._inbox = deque(each for each in self._inbox if (each.task_id, each.attempt) != gone)
            case Response():
                self._check(message)
            case _:
                raise ProtocolError(f"the manager sent {type(message).__name__} to a worker")

    def _run_task(self, task: TaskAssigned) -> None:
        """Run a task and report its result. An exception fails the task alone; MemoryError also recycles the worker."""
        recycle = self._is_end_reported = False
        try:
            with progress.reporting_to(lambda done, total, note: self._progress(task, done, total, note)):
                result, fault = self._result(task), None
        except (RuntimeLost, OutcomeUnknown):
            raise
        except MemoryError as error:
            result, fault, recycle = (
                None,
                TaskFault("MemoryExceeded", execution.describe_error(task.strategy, error)),
                True,
            )
        except BaseException as error:  # noqa: BLE001 - `sys.exit` in a strategy does not end the worker
            result, fault = None, TaskFault("TaskFailed", execution.describe_error(task.strategy, error))
        self._finish(task, result, fault, is_last=recycle)
        if recycle:
            raise _Recycle

    def _result(self, task: TaskAssigned) -> bytes:
        """Run the job or the strategy of a task and return its encoded result."""
        if job := jobs.JOBS.get(task.strategy):
            return job(task.payload)
        begun_s = time.perf_counter()
        work = task_decoder.decode(task.payload)
        strategy = self._registry[task.strategy]
        request = work.request
        _require_scope(task, work)
        if work.shares is not None:
            return self._merged(strategy, work)
        try:
            confidence, fragments, revision = self._answer(strategy, work, self._view(task, work))
        except BodyGone:
            if work.view is not None:
                raise
            # The view that came with a prefetched task may be too old by now, so open a new one.
            view = self._views.open(request.projects, None)
            confidence, fragments, revision = self._answer(strategy, work, view)
        seconds = time.perf_counter() - begun_s
        result = StrategyResult(task.strategy, fragments, revision, confidence, strategy.explain(), seconds)
        return encoder.encode(result)

    def _answer(
        self, strategy: Strategy, work: StrategyTask, whole_view: View
    ) -> tuple[float, tuple[ScoredFragment, ...], int]:
        """Return the confidence of the strategy, the fragments that it found, and the revision of its view."""
        view = cast("StrategyView", whole_view)
        if work.share is not None:
            view = _partitioned(strategy).partition(view, work.share.part, work.share.parts)
        whole = cast("StrategyView", whole_view)
        return *execution.run(strategy, work.request, view, work.budget_tokens, whole), whole_view.revision

    def _merged(self, strategy: Strategy, work: StrategyTask) -> bytes:
        """Return the encoded merge of the shares that other workers have computed."""
        assert work.shares is not None
        assert work.view is not None
        merged = _partitioned(strategy).merge(work.request, work.shares, work.budget_tokens)
        fragments = tuple(msgspec.convert(each, ScoredFragment) for each in merged)
        return encoder.encode(StrategyResult(strategy.name, fragments, work.view.revision, 1.0, strategy.explain()))

    def _view(self, task: TaskAssigned, work: StrategyTask) -> View:
        """Return the view of the task: the one that came with it costs no request."""
        return self._view_of_task(task, work) or self._open(work.view, work.request.projects)

    def _view_of_task(self, task: TaskAssigned, work: StrategyTask) -> View | None:
        """Return the view that came with the task, or None if the task names another view or a part of it is gone."""
        if work.view is not None or not task.catalogues or tuple(work.request.projects) != task.projects:
            return None
        return self._views.open_at(self._epoch, task.revision, task.catalogues)

    def _open(self, at: ViewAt | None, projects: Sequence[str]) -> View:
        """Return the view at that revision, or at the latest one. Raise BodyGone if the view is gone."""
        if at is None:
            return self._views.open(projects, None)
        found = self._views.open_at(at.epoch, at.revision, at.catalogues)
        if found is None:
            raise BodyGone("the view that this was asked of is not to be had any more: ask again, with a new one")
        return found

    def _progress(self, task: TaskAssigned, done: int, total: int, note: str) -> None:
        """Report the progress of a task, but not more often than the limit."""
        now_s = time.monotonic()
        is_all = done >= total and not self._is_end_reported
        if now_s >= self._reported_at_s + limits.WORKER_PROGRESS_SECONDS or is_all:
            self._reported_at_s = now_s
            self._is_end_reported |= is_all
            short = note[: limits.ERROR_CHARS_MAX].encode("utf-8", "replace").decode()
            self._connection.send(
                messages.ReportProgress(task.task_id, task.attempt, max(0, done), max(0, total), short)
            )

    def _finish(self, task: TaskAssigned, result: bytes | None, fault: TaskFault | None, *, is_last: bool) -> None:
        """Report the result or the fault of a task, and begin the next one in the same request.

        A large result is uploaded first. If there is no room for it, the task fails.
        """
        if result is not None and len(result) > limits.BODY_BYTES_MAX:
            result, fault = None, _TOO_LARGE
        carried: bytes | int | None = result
        if result is not None and len(result) > limits.TASK_RESULT_BYTES_MAX:
            carried = self._upload(result)
        if carried is None and fault is None:
            fault = _NO_ROOM
        finished = FinishTask(task.task_id, task.attempt, carried, fault, is_last)
        if isinstance(carried, int):
            (refusal,) = self._refusals(self._await(self._send(finished)))
            if refusal is None or isinstance(refusal, LeaseLost):
                return
            finished = FinishTask(task.task_id, task.attempt, None, _NO_ROOM, is_last)
        self._send(finished, *(() if is_last else self._beginning()))

    def _send(self, *commands: FinishTask | BeginTask) -> int:
        """Send a request and return its number. `_handle` receives the answer later."""
        self._number += 1
        self._connection.send(Request(self._number, commands, self._number))
        return self._number

    def _await(self, number: int) -> Response:
        """Handle messages until the answer to that request comes, and return the answer."""
        while not (isinstance(message := self._connection.receive(), Response) and message.request_id == number):
            self._handle(message)
        return message

    def _upload(self, result: bytes) -> int | None:
        """Send a result into shared memory; return its number in the request, or None if there is no room."""
        self._connection.send(OfferUpload(1, len(result)))
        while not isinstance(answer := self._connection.receive(), UploadGranted):
            self._handle(answer)
        if not answer.accepted:
            return None
        self._connection.send_body(result)
        return 1

    @staticmethod
    def _refusals(response: Response) -> list[StepwellError | None]:
        """Return the error of each command of a request, or None for a command that was accepted."""
        return [each.error() if isinstance(each, Refusal) else None for each in response.results]

    def _check(self, response: Response) -> None:
        """Raise ProtocolError if the manager refused a command, unless another worker has the task by now."""
        for refusal in self._refusals(response):
            if refusal is not None and not isinstance(refusal, LeaseLost):
                raise ProtocolError(f"the manager refused a result: {refusal.message}")


def _require_scope(task: TaskAssigned, work: StrategyTask) -> None:
    """Raise OutOfScope unless the payload stays within the task's projects, which alone the manager has checked."""
    ends = () if work.view is None else work.view.catalogues
    if not {*work.request.projects, *(end.project for end in ends)} <= {*task.projects}:
        raise OutOfScope("the task asks for projects that it was not submitted for")


def _partitioned(strategy: Strategy) -> Partitioned:
    """Return the strategy, if it can share its work; otherwise raise InvalidArgument."""
    if not isinstance(strategy, Partitioned):
        raise InvalidArgument(f"strategy {strategy.name!r} cannot be shared: leave parts out")
    return strategy
