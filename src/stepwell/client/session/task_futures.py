"""Tasks of a session: futures here, work somewhere else, and one thread that hears what became of it.

The thread begins with the first task and ends with the client. A manager that comes back after a restart has forgotten
all tasks: those that nobody has heard of are submitted again, under their ids, so that each has one outcome.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Final, Generic, Protocol, TypeVar

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
_RECEIVED_TOGETHER: Final = 64
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

    def end(self, outcome: bytes | BaseException) -> None:
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

    def progress(self, message: TaskProgressed) -> None:
        if self._on_progress is not None and not self.done():
            with contextlib.suppress(Exception):  # a callback that fails costs nobody a result
                self._on_progress(message.done, message.total, message.note)


class _Waiting(Protocol):
    """A future, of whatever."""

    task_id: str
    command: SubmitTask
    is_accepted: bool

    def end(self, outcome: bytes | BaseException) -> None: ...
    def progress(self, message: TaskProgressed) -> None: ...


class TaskFutures:
    """Those of one session that are not over. Safe from any number of threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._begin()
        session.channel.on_fork(self._in_forked_child)

    def _in_forked_child(self) -> None:
        """There are none: the parent's are the parent's."""
        if self._standing is not None:
            self._standing.in_forked_child()
            self._standing.close()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[str, _Waiting] = {}
        self._standing: PushConnection | None = None
        self._thread: threading.Thread | None = None
        self._is_heard = False  # by the thread: it may have ended all futures, and be about to end
        self._is_followed = threading.Event()
        self._received: list[str] = []  # outcomes that the manager still keeps

    def submit(
        self, command: SubmitTask, finish: Callable[[bytes], R], on_progress: OnProgress | None
    ) -> TaskFuture[R]:
        """Have something done; the future is there before the task is, so that no outcome can come too early."""
        future = TaskFuture(self, command, finish, on_progress)
        with self._lock:
            self._futures[future.task_id] = future
            self._follow()
        if on_progress is not None:  # or the first of it could be told before anybody listens
            self._is_followed.wait(limits.RECONNECT_SECONDS_MAX)
        try:
            self._session.perform(_call(command))
            future.is_accepted = True
        except BaseException:
            self._take(future.task_id)
            raise
        return future

    def submit_many(self, commands: Sequence[SubmitTask], finish: Callable[[bytes], R]) -> list[TaskFuture[R]]:
        """Have much done, in a few frames. If one of them is refused, so are all."""
        futures = [TaskFuture(self, command, finish, None) for command in commands]
        with self._lock:
            self._futures.update({future.task_id: future for future in futures})
            self._follow()
        try:
            groups = (list(map(_call, group)) for group in _framed(commands))
            for future, outcome in zip(futures, self._session.perform_many(groups), strict=True):
                future.is_accepted = _accepted(outcome)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        return futures

    def cancel(self, future: TaskFuture[R]) -> None:
        """Nobody waits for it: let its worker do something else."""
        if self._take(future.task_id) is not None:
            with contextlib.suppress(StepwellError):  # it is over, or the manager is gone
                self._session.perform(Call(CancelTask(future.task_id), lambda answered: answered.reply.state))

    def close(self) -> None:
        """End the thread; who still waits gets `RuntimeLost`."""
        with self._lock:
            standing, thread = self._standing, self._thread
            self._standing = self._thread = None
        if standing is not None and thread is not None:
            standing.stop()
            thread.join()
            standing.close()
        self._end_all(RuntimeLost("this client was closed before the task was over"))

    def _take(self, task_id: str) -> _Waiting | None:
        with self._lock:
            return self._futures.pop(task_id, None)

    def _end_all(self, error: StepwellError) -> None:
        with self._lock:
            futures, self._futures = self._futures, {}
        for future in futures.values():
            future.end(error)

    def _follow(self) -> None:
        """Begin to listen, if nobody does."""
        if not self._is_heard or self._thread is None or not self._thread.is_alive():
            if self._standing is not None:
                self._standing.close()
            self._standing = PushConnection(self._session.channel, self._greet)
            name, args = "stepwell-tasks", (self._standing,)
            self._thread = threading.Thread(target=self._listen, args=args, name=name, daemon=True)
            self._is_heard = True
            self._thread.start()

    def _greet(self, connection: Connection) -> None:
        """Say what we wait for. What the manager does not know, it has never had, or lost with an earlier life."""
        with self._lock:
            waiting = dict(self._futures)
        answer = connection.exchange(FollowTasks(0, tuple(waiting)))
        unknown = _followed(answer)
        self._is_followed.set()
        for task_id in unknown:
            self._submit_again(waiting[task_id])

    def _submit_again(self, future: _Waiting) -> None:
        """Harmless where the first submission is only on its way: a task is known by its id."""
        try:
            again = replace(future.command, was_accepted=future.is_accepted)
            self._session.perform(_call(again))
        except RuntimeLost:
            raise
        except StepwellError as error:
            if self._take(future.task_id) is not None:
                future.end(error)

    def _listen(self, standing: PushConnection) -> None:
        try:
            while not standing.is_closed and (message := standing.receive(None)) is not None:
                self._hear(standing, message)
        except StepwellError as error:
            with self._lock:
                self._is_heard = self._is_heard and self._standing is not standing
            self._end_all(error)

    def _hear(self, standing: PushConnection, message: ManagerMessage) -> None:
        match message:
            case TaskEnded():
                outcome = self._outcome(message)
                future = self._take(message.task_id)
                self._received.append(message.task_id)
                if len(self._received) >= _RECEIVED_TOGETHER or not self._futures:
                    self._acknowledge(standing)
                if future is not None:
                    future.end(outcome)
            case TaskProgressed():
                with self._lock:
                    future = self._futures.get(message.task_id)
                if future is not None:
                    future.progress(message)
            case Rejected():
                raise message.refusal.error()
            case _:
                raise ProtocolError(f"the manager told a follower {type(message).__name__}")

    def _acknowledge(self, standing: PushConnection) -> None:
        """Some at a time, and when there is nothing to wait for: each is a message that somebody has to wake up for."""
        received, self._received = tuple(self._received), []
        with contextlib.suppress(RuntimeLost):  # they will be told again, and received then
            standing.send(TasksReceived(received))

    def _outcome(self, message: TaskEnded) -> bytes | BaseException:
        if message.state is not TaskState.DONE:
            return _failure(message)
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


def _accepted(outcome: TaskState | StepwellError) -> bool:
    if isinstance(outcome, StepwellError):
        raise outcome
    return True


def _framed(commands: Sequence[SubmitTask]) -> Iterator[list[SubmitTask]]:
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


def _failure(message: TaskEnded) -> StepwellError:
    fault = message.fault
    if fault is None:
        return TaskFailed(f"the task is {message.state}")
    evidence = [f"process {death.pid}: {death.evidence or 'it left nothing'}" for death in message.deaths]
    error = revive(fault.kind, fault.message, {"evidence": evidence} if evidence else {})
    return error if isinstance(error, TaskFailed) else TaskFailed(f"{fault.kind}: {fault.message}", kind=fault.kind)


def _followed(answer: ManagerMessage) -> Sequence[str]:
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
