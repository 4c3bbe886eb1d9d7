"""Tasks of a session: futures here, work somewhere else, and one thread that hears what became of it.

The thread begins with the first task and ends with the client. A manager that comes back after a restart has forgotten
all tasks: those that nobody has heard of are submitted again, under their ids, so that each has one outcome.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace
from ulid import ULID

from stepwell import limits
from stepwell.client.session.calls import Call
from stepwell.client.session.push_connection import PushConnection
from stepwell.client.session.session import Session
from stepwell.domain.tasks.commands import CancelTask, SubmitTask
from stepwell.domain.tasks.model import TaskState
from stepwell.errors import BodyGone, ProtocolError, RuntimeLost, StepwellError, TaskFailed, revive
from stepwell.protocol.messages import (
    FollowTasks,
    ManagerMessage,
    Refusal,
    Rejected,
    Response,
    TaskEnded,
    TaskProgressed,
    TasksFollowed,
    TasksReceived,
)
from stepwell.transport.blocking import Connection

R = TypeVar("R")
OnProgress = Callable[[int, int, str], None]
"""Is told how much is done, of how much, and in a few words of what."""


class TaskFuture(Future[R], Generic[R]):
    """A future whose work is done elsewhere. `cancel` stops it, even while it runs."""

    def __init__(
        self, tasks: TaskFutures, command: SubmitTask, finish: Callable[[bytes], R], on_progress: OnProgress | None
    ) -> None:
        super().__init__()
        self.task_id = command.task_id
        self.command = command
        self.is_accepted = False
        self._tasks = tasks
        self._finish = finish
        self._on_progress = on_progress

    def cancel(self) -> bool:
        """Whether nobody will hear of it any more."""
        if not super().cancel():
            return False
        with contextlib.suppress(RuntimeError):  # somebody else has cancelled it at the same moment
            self.set_running_or_notify_cancel()
        self._tasks.cancel(self)
        return True

    def set_outcome(self, outcome: bytes | BaseException) -> None:
        """Its outcome is there, unless it was cancelled before."""
        with contextlib.suppress(Exception):  # cancelled meanwhile: nobody wants to know
            if not self.set_running_or_notify_cancel():
                return
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
                return
            try:
                self.set_result(self._finish(outcome))
            except Exception as error:  # noqa: BLE001 - a result that cannot be read is its caller's to know
                self.set_exception(error)

    def report_progress(self, message: TaskProgressed) -> None:
        if self._on_progress is not None and not self.done():
            with contextlib.suppress(Exception):  # a callback that fails costs nobody a result
                self._on_progress(message.done, message.total, message.note)


class _OpenFuture(Protocol):
    """A future, of whatever."""

    task_id: str
    command: SubmitTask
    is_accepted: bool

    def set_outcome(self, outcome: bytes | BaseException) -> None: ...
    def report_progress(self, message: TaskProgressed) -> None: ...


class TaskFutures:
    """Those of one session that are not over. Safe from any number of threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reset()
        session.channel.on_fork(self._in_forked_child)

    def _in_forked_child(self) -> None:
        """There are none: the parent's are the parent's."""
        if self._push is not None:
            self._push.in_forked_child()
            self._push.close()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, _OpenFuture] = {}
        self._push: PushConnection | None = None
        self._thread: threading.Thread | None = None
        self._is_listening = False  # by the thread: it may have ended all futures, and be about to end
        self._subscribed = threading.Event()
        self._unacknowledged: list[str] = []  # outcomes that the manager still keeps

    def submit(
        self, command: SubmitTask, finish: Callable[[bytes], R], on_progress: OnProgress | None
    ) -> TaskFuture[R]:
        """Have something done; the future is there before the task is, so that no outcome can come too early."""
        future = TaskFuture(self, command, finish, on_progress)
        with self._lock:
            self._futures[future.task_id] = future
            self._ensure_listener()
        if on_progress is not None:  # or the first of it could be told before anybody listens
            self._subscribed.wait(limits.RECONNECT_SECONDS_MAX)
        try:
            self._session.perform(_call(command))
            future.is_accepted = True
        except BaseException:
            self._pop(future.task_id)
            raise
        return future

    def submit_many(self, commands: Sequence[SubmitTask], finish: Callable[[bytes], R]) -> list[TaskFuture[R]]:
        """Have much done, in a few frames. If one of them is refused, so are all."""
        futures = [TaskFuture(self, command, finish, None) for command in commands]
        with self._lock:
            self._futures.update({future.task_id: future for future in futures})
            self._ensure_listener()
        try:
            groups = (list(map(_call, group)) for group in _in_frames(commands))
            for future, outcome in zip(futures, self._session.perform_many(groups), strict=True):
                future.is_accepted = _require_accepted(outcome)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return futures

    def cancel(self, future: TaskFuture[R]) -> None:
        """Nobody waits for it: let its worker do something else."""
        if self._pop(future.task_id) is not None:
            with contextlib.suppress(StepwellError):  # it is over, or the manager is gone
                self._session.perform(Call(CancelTask(future.task_id), lambda answered: answered.reply.state))

    def close(self) -> None:
        """End the thread; who still waits gets `RuntimeLost`."""
        with self._lock:
            push, thread = self._push, self._thread
            self._push = self._thread = None
        if push is not None and thread is not None:
            push.stop()
            thread.join()
            push.close()
        self._fail_all(RuntimeLost("this client was closed before the task was over"))

    def _pop(self, task_id: str) -> _OpenFuture | None:
        with self._lock:
            return self._futures.pop(task_id, None)

    def _fail_all(self, error: StepwellError) -> None:
        with self._lock:
            futures, self._futures = self._futures, {}
        for future in futures.values():
            future.set_outcome(error)

    def _ensure_listener(self) -> None:
        """Begin to listen, if nobody does."""
        if not self._is_listening or self._thread is None or not self._thread.is_alive():
            if self._push is not None:
                self._push.close()
            self._push = PushConnection(self._session.channel, self._subscribe)
            name, args = "stepwell-tasks", (self._push,)
            self._thread = threading.Thread(target=self._listen, args=args, name=name, daemon=True)
            self._is_listening = True
            self._thread.start()

    def _subscribe(self, connection: Connection) -> None:
        """Say what we wait for. What the manager does not know, it has never had, or lost with an earlier life."""
        with self._lock:
            waiting = dict(self._futures)
        answer = connection.exchange(FollowTasks(0, tuple(waiting)))
        unknown = _unknown_tasks(answer)
        self._subscribed.set()
        for task_id in unknown:
            self._resubmit(waiting[task_id])

    def _resubmit(self, future: _OpenFuture) -> None:
        """Harmless where the first submission is only on its way: a task is known by its id."""
        try:
            again = replace(future.command, was_accepted=future.is_accepted)
            self._session.perform(_call(again))
        except RuntimeLost:
            raise
        except StepwellError as error:
            if self._pop(future.task_id) is not None:
                future.set_outcome(error)

    def _listen(self, push: PushConnection) -> None:
        try:
            while not push.is_closed and (message := push.receive(None)) is not None:
                self._handle(push, message)
        except StepwellError as error:
            with self._lock:
                self._is_listening = self._is_listening and self._push is not push
            self._fail_all(error)

    def _handle(self, push: PushConnection, message: ManagerMessage) -> None:
        match message:
            case TaskEnded():
                outcome = self._outcome(message)
                future = self._pop(message.task_id)
                self._unacknowledged.append(message.task_id)
                if len(self._unacknowledged) >= limits.TASKS_ACKNOWLEDGED_TOGETHER or not self._futures:
                    self._acknowledge(push)
                if future is not None:
                    future.set_outcome(outcome)
            case TaskProgressed():
                with self._lock:
                    future = self._futures.get(message.task_id)
                if future is not None:
                    future.report_progress(message)
            case Rejected():
                raise message.refusal.error()
            case _:
                raise ProtocolError(f"the manager told a follower {type(message).__name__}")

    def _acknowledge(self, push: PushConnection) -> None:
        """Some at a time, and when there is nothing to wait for: each is a message that somebody has to wake up for."""
        received, self._unacknowledged = tuple(self._unacknowledged), []
        with contextlib.suppress(RuntimeLost):  # they will be told again, and received then
            push.send(TasksReceived(received))

    def _outcome(self, message: TaskEnded) -> bytes | BaseException:
        if message.state is not TaskState.DONE:
            return _error_of(message)
        if message.result is not None:
            return message.result
        if message.digest is None or message.handle is None:
            return BodyGone("the result of this task is gone")
        try:
            return bytes(self._session.bodies.read(message.digest, message.handle))
        except StepwellError as error:
            return error


def _call(command: SubmitTask) -> Call[TaskState]:
    return Call(command, lambda answered: answered.reply.state)


def _require_accepted(outcome: TaskState | StepwellError) -> bool:
    if isinstance(outcome, StepwellError):
        raise outcome
    return True


def _in_frames(commands: Sequence[SubmitTask]) -> Iterator[list[SubmitTask]]:
    """As many as a frame should have."""
    group: list[SubmitTask] = []
    size = 0
    for command in commands:
        if group and (len(group) >= limits.STREAM_COMMANDS or size + len(command.payload) > limits.STREAM_BYTES):
            yield group
            group, size = [], 0
        group.append(command)
        size += len(command.payload)
    if group:
        yield group


def _error_of(message: TaskEnded) -> StepwellError:
    fault = message.fault
    if fault is None:
        return TaskFailed(f"the task is {message.state}")
    evidence = [f"process {death.pid}: {death.evidence or 'it left nothing'}" for death in message.deaths]
    error = revive(fault.kind, fault.message, {"evidence": evidence} if evidence else {})
    return error if isinstance(error, TaskFailed) else TaskFailed(f"{fault.kind}: {fault.message}", kind=fault.kind)


def _unknown_tasks(answer: ManagerMessage) -> Sequence[str]:
    match answer:
        case TasksFollowed():
            return answer.unknown
        case Response(_, (Refusal() as refusal,)):
            raise refusal.error()
        case Rejected():
            raise answer.refusal.error()
        case _:
            raise ProtocolError(f"the manager answered Follow with {type(answer).__name__}")


def new_task_id() -> str:
    """An id that no other task has."""
    return str(ULID())
