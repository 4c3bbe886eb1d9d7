"""Futures of tasks that run in worker processes, and the thread that receives their outcomes.

A task is submitted as a command. Its outcome arrives later, on a push connection, and completes the future. One
listener thread for each client receives all outcomes; it starts with the first task and ends with the client.

The manager keeps an outcome until the client has acknowledged it. A manager that restarts has forgotten all tasks. So
after each connect the listener names the tasks it waits for, and submits those again that the manager does not know. A
task keeps its id, therefore it has one outcome however often it is submitted. The manager knows the id until the
outcome is acknowledged. So the listener acknowledges no outcome while the caller's own submission is under way: the
manager would take that submission for a new task and run it a second time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

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
from stepwell.transport.connection import Connection

R = TypeVar("R")
OnProgress = Callable[[int, int, str], None]
"""Called with the amount of work that is done, the total amount and a short description of the current step."""


class TaskFuture(Future[R], Generic[R]):
    """The future of one task. `cancel` also stops a task that is running, unlike `concurrent.futures`.

    `is_accepted` becomes True when the manager has accepted the submission. A resubmission to a restarted manager says
    so. That manager then accepts a strategy that no worker has offered yet, because the workers are still reconnecting.
    """

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
        """Cancel the future, and the task in its worker. Return False if the outcome is already here.

        The call waits for the manager's answer, so that the worker is free, or about to be, when it returns.
        """
        if not super().cancel():
            return False
        with contextlib.suppress(RuntimeError):  # another thread has cancelled the future at the same moment
            self.set_running_or_notify_cancel()
        self._tasks.cancel(self)
        return True

    def set_outcome(self, outcome: bytes | BaseException) -> None:
        """Complete the future with the bytes of a result or with an error, unless it was cancelled.

        Done callbacks of the future run in this call: on the listener thread, or on the thread that closes the client.
        """
        with contextlib.suppress(Exception):  # the future was cancelled meanwhile
            if not self.set_running_or_notify_cancel():
                return
            if isinstance(outcome, BaseException):
                self.set_exception(outcome)
                return
            try:
                self.set_result(self._finish(outcome))
            except Exception as error:  # noqa: BLE001 - the caller learns why its result cannot be decoded
                self.set_exception(error)

    def report_progress(self, message: TaskProgressed) -> None:
        """Call `on_progress`, on the listener thread. An exception in the callback is dropped."""
        if self._on_progress is not None and not self.done():
            with contextlib.suppress(Exception):  # a callback that fails must not end the listener
                self._on_progress(message.done, message.total, message.note)


class _OpenFuture(Protocol):
    """A `TaskFuture` whose type of result does not matter, as the listener sees it."""

    task_id: str
    command: SubmitTask
    is_accepted: bool

    def set_outcome(self, outcome: bytes | BaseException) -> None: ...
    def report_progress(self, message: TaskProgressed) -> None: ...


class TaskFutures:
    """The open futures of one session, and their listener thread. Any number of threads may use it.

    A future is registered before its task is submitted, so that no outcome can arrive too early. `_lock` protects the
    registry and the start of the listener; it is never held during I/O or callbacks.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reset()
        session.channel.on_fork(self._in_forked_child)

    def _in_forked_child(self) -> None:
        """Forget the parent's futures and close the inherited connection. The child has no listener thread."""
        if self._push is not None:
            self._push.in_forked_child()
            self._push.close()
        self._reset()

    def _reset(self) -> None:
        """Start without futures and without a listener."""
        self._lock = threading.Lock()
        self._futures: dict[str, _OpenFuture] = {}
        self._submitting: set[str] = set()  # tasks whose submission by the caller is under way
        self._push: PushConnection | None = None
        self._thread: threading.Thread | None = None
        self._is_listening = False  # False once the listener has failed all futures, although it may still run
        self._subscribed = threading.Event()
        self._unacknowledged: list[str] = []  # tasks whose outcomes have arrived; only the listener uses it

    def submit(
        self, command: SubmitTask, finish: Callable[[bytes], R], on_progress: OnProgress | None
    ) -> TaskFuture[R]:
        """Submit a task and return its future. `finish` decodes the bytes of the result.

        If the submission is refused, the refusal is raised and there is no future. With `on_progress` the call waits
        until the listener is subscribed, because the manager does not repeat progress.
        """
        future = TaskFuture(self, command, finish, on_progress)
        with self._lock:
            self._futures[future.task_id] = future
            self._submitting.add(future.task_id)
            self._ensure_listener()
        try:
            if on_progress is not None:  # progress before the subscription would be lost
                self._subscribed.wait(limits.RECONNECT_SECONDS_MAX)
            self._session.perform(_call(command))
            future.is_accepted = True
        except BaseException:
            self._pop(future.task_id)
            raise
        finally:
            self._submitted((future.task_id,))
        return future

    def submit_many(self, commands: Sequence[SubmitTask], finish: Callable[[bytes], R]) -> list[TaskFuture[R]]:
        """Submit many tasks in a few frames and return their futures. If one is refused, all are cancelled.

        Tasks that are accepted early may run, and even end, while later frames are still being sent.
        """
        futures = [TaskFuture(self, command, finish, None) for command in commands]
        with self._lock:
            self._futures.update({future.task_id: future for future in futures})
            self._submitting.update(future.task_id for future in futures)
            self._ensure_listener()
        try:
            groups = (list(map(_call, group)) for group in _in_frames(commands))
            for future, outcome in zip(futures, self._session.perform_many(groups), strict=True):
                future.is_accepted = _require_accepted(outcome)
                self._submitted((future.task_id,))
        except BaseException:
            self._submitted([future.task_id for future in futures])
            for future in futures:
                future.cancel()
            raise
        return futures

    def cancel(self, future: TaskFuture[R]) -> None:
        """Cancel the task of a future that its caller has cancelled, so that its worker becomes free."""
        if self._pop(future.task_id) is not None:
            with contextlib.suppress(StepwellError):  # the task is over, or the manager is gone
                self._session.perform(Call(CancelTask(future.task_id), lambda answered: answered.reply.state))

    def close(self) -> None:
        """End the listener thread. Futures without an outcome get `RuntimeLost`.

        The thread is joined without the lock, because the listener needs the lock to end.
        """
        with self._lock:
            push, thread = self._push, self._thread
            self._push = self._thread = None
        if push is not None and thread is not None:
            push.stop()
            thread.join()
            push.close()
        self._fail_all(RuntimeLost("this client was closed before the task was over"))

    def _submitted(self, task_ids: Iterable[str]) -> None:
        """Note that the callers' submissions of these tasks are over, so that their outcomes may be acknowledged."""
        with self._lock:
            self._submitting.difference_update(task_ids)

    def _pop(self, task_id: str) -> _OpenFuture | None:
        """Remove a future and return it; None if it was cancelled or completed meanwhile."""
        with self._lock:
            return self._futures.pop(task_id, None)

    def _fail_all(self, error: StepwellError) -> None:
        """Complete all open futures with an error."""
        with self._lock:
            futures, self._futures = self._futures, {}
        for future in futures.values():
            future.set_outcome(error)

    def _ensure_listener(self) -> None:
        """Start the listener thread if none is running. The caller holds the lock.

        A listener that has failed all futures is about to end, although its thread may still be alive. A future that is
        registered after that would wait for ever, so `_is_listening` decides, and a new listener replaces the failed
        one.
        """
        if not self._is_listening or self._thread is None or not self._thread.is_alive():
            if self._push is not None:
                self._push.close()
            self._push = PushConnection(self._session.channel, self._subscribe)
            name, args = "stepwell-tasks", (self._push,)
            self._thread = threading.Thread(target=self._listen, args=args, name=name, daemon=True)
            self._is_listening = True
            self._thread.start()

    def _subscribe(self, connection: Connection) -> None:
        """Name the tasks of all open futures to the manager, and submit again the ones that it does not know.

        The manager does not know a task that is still being submitted, or that it has lost by a restart.
        """
        with self._lock:
            waiting = dict(self._futures)
        answer = connection.exchange(FollowTasks(0, tuple(waiting)))
        unknown = _unknown_tasks(answer)
        self._subscribed.set()
        for task_id in unknown:
            self._resubmit(waiting[task_id])

    def _resubmit(self, future: _OpenFuture) -> None:
        """Submit a task again. If it is refused now, its future gets the refusal.

        That is harmless for a task whose first submission is still under way, because the manager knows tasks by their
        ids.
        """
        try:
            again = replace(future.command, was_accepted=future.is_accepted)
            self._session.perform(_call(again))
        except RuntimeLost:
            raise
        except StepwellError as error:
            if self._pop(future.task_id) is not None:
                future.set_outcome(error)

    def _listen(self, push: PushConnection) -> None:
        """Receive until `close`. An error that ends the connection for good completes all futures.

        The flag is cleared before the futures are failed, so that a task that is submitted later starts a new listener
        instead of waiting for this one.
        """
        try:
            while not push.is_closed and (message := push.receive(None)) is not None:
                self._handle(push, message)
        except StepwellError as error:
            with self._lock:
                self._is_listening = self._is_listening and self._push is not push
            self._fail_all(error)

    def _handle(self, push: PushConnection, message: ManagerMessage) -> None:
        """Complete a future, report progress, or raise the reason for which the manager ends the connection."""
        match message:
            case TaskEnded():
                outcome = self._outcome(message)  # read before it is acknowledged, because the manager then drops it
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
                raise ProtocolError(f"the manager sent {type(message).__name__} to a task listener")

    def _acknowledge(self, push: PushConnection) -> None:
        """Tell the manager which outcomes have arrived, so that it can drop them.

        Acknowledgements go in groups, and when no future is open any more, because each message wakes the manager. An
        outcome that has overtaken the answer to its submission waits for the next acknowledgement.
        """
        with self._lock:
            received = tuple(each for each in self._unacknowledged if each not in self._submitting)
            self._unacknowledged = [each for each in self._unacknowledged if each in self._submitting]
        if received:
            with contextlib.suppress(RuntimeLost):  # the manager sends these outcomes again on the next connection
                push.send(TasksReceived(received))

    def _outcome(self, message: TaskEnded) -> bytes | BaseException:
        """Return the bytes of a result, read from shared memory if they are large, or the error of the task."""
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
    """Return the call that submits a task."""
    return Call(command, lambda answered: answered.reply.state)


def _require_accepted(outcome: TaskState | StepwellError) -> bool:
    """Return True if a submission was accepted, or raise its refusal."""
    if isinstance(outcome, StepwellError):
        raise outcome
    return True


def _in_frames(commands: Sequence[SubmitTask]) -> Iterator[list[SubmitTask]]:
    """Split commands into groups that fit into a frame."""
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
    """Return the error of a task that failed, with the evidence of the worker processes that died at it."""
    fault = message.fault
    if fault is None:
        return TaskFailed(f"the task is {message.state}")
    evidence = [f"process {death.pid}: {death.evidence or 'it left nothing'}" for death in message.deaths]
    error = revive(fault.kind, fault.message, {"evidence": evidence} if evidence else {})
    return error if isinstance(error, TaskFailed) else TaskFailed(f"{fault.kind}: {fault.message}", kind=fault.kind)


def _unknown_tasks(answer: ManagerMessage) -> Sequence[str]:
    """Return the ids of the tasks that the manager does not know, or raise its refusal."""
    match answer:
        case TasksFollowed():
            return answer.unknown
        case Response(_, (Refusal() as refusal,)):
            raise refusal.error()
        case Rejected():
            raise answer.refusal.error()
        case _:
            raise ProtocolError(f"the manager answered FollowTasks with {type(answer).__name__}")
